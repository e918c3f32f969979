from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier

from prelax.config import EvaluateSettings
from prelax.evaluate import knn
from prelax.evaluate.knn import accuracy, knn_accuracy, knn_predict


def reference(train, labels, test, k, temperature, classes):
    """Image by image, as the formula reads."""
    train = train / np.linalg.norm(train, axis=1, keepdims=True)
    test = test / np.linalg.norm(test, axis=1, keepdims=True)
    answers = []
    for query in test:
        cosine = train @ query
        votes = np.zeros(classes)
        for i in np.argsort(-cosine)[:k]:
            votes[labels[i]] += np.exp(cosine[i] / temperature)
        answers.append(votes.argmax())
    return np.array(answers)


def clouds(seed=0, n=120, d=6, classes=4):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    centres = rng.normal(size=(classes, d))
    return centres[labels] + rng.normal(size=(n, d)) * 1.2, labels


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 100), st.sampled_from([0.03, 0.1, 1.0]))
def test_knn_is_the_formula(seed, k, temperature):
    x, y = clouds(seed)
    got = knn_predict(
        torch.tensor(x[:80]), torch.tensor(y[:80]), torch.tensor(x[80:]), k=k, temperature=temperature, classes=4
    )
    np.testing.assert_array_equal(got, reference(x[:80], y[:80], x[80:], min(k, 80), temperature, 4))


def test_knn_agrees_with_scikit_learn():
    x, y = clouds(3, n=200)
    model = KNeighborsClassifier(15, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.1))
    model.fit(x[:150], y[:150])
    ours = knn_predict(torch.tensor(x[:150]), torch.tensor(y[:150]), torch.tensor(x[150:]), k=15, temperature=0.1)
    np.testing.assert_array_equal(ours, model.predict(x[150:]))


@pytest.mark.parametrize("function", [knn_predict, knn_accuracy])
def test_what_is_not_said_is_as_in_the_paper(function):
    said = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
    known = EvaluateSettings()
    assert (said["k"], said["temperature"]) == (200, 0.1) == (known.knn_k, known.knn_temperature)


def test_chunks_do_not_change_the_answer(monkeypatch):
    x, y = (torch.tensor(part) for part in clouds(5))
    whole = knn_predict(x[:80], y[:80], x[80:], k=10)
    monkeypatch.setattr(knn, "CHUNK", 200)
    assert torch.equal(knn_predict(x[:80], y[:80], x[80:], k=10), whole)


def test_k_above_the_number_of_images_is_all_of_them():
    x, y = (torch.tensor(part) for part in clouds(6))
    assert torch.equal(knn_predict(x[:20], y[:20], x[20:], k=200), knn_predict(x[:20], y[:20], x[20:], k=20))


def test_a_tiny_temperature_does_not_overflow():
    x, y = (torch.tensor(part) for part in clouds(7))
    nearest = knn_predict(x[:80], y[:80], x[80:], k=1)
    assert torch.equal(knn_predict(x[:80], y[:80], x[80:], k=50, temperature=1e-5), nearest)


def test_the_same_call_twice_gives_the_same_figure_and_scale_of_features_is_nothing():
    x, y = (torch.tensor(part) for part in clouds(8))
    once = knn_accuracy(x[:80], y[:80], x[80:], y[80:], k=10)
    assert once == knn_accuracy(x[:80] * 7, y[:80], x[80:] * 0.2, y[80:], k=10)


def test_accuracy_counts_images_not_batches():
    predicted, labels = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 0, 0, 1, 0])
    assert accuracy(predicted, labels) == pytest.approx(80.0)
