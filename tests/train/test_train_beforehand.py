"""What is said of a folder of images before it is trained on: remarks, and how long it will take."""

import pytest
import torch

from prelax.config import Settings, resolve
from prelax.data import ImageSet
from prelax.train.suit import remarks, suit
from prelax.train.trial import batch_time, estimate


def few(count: int) -> ImageSet:
    return ImageSet("folder", torch.zeros(count, 3, 4, 4, dtype=torch.uint8), None, [])


def photos(*changes: str) -> Settings:
    return resolve("folder", ["data.root=photos", *changes])


def test_few_images_and_a_question_that_needs_an_up_are_spoken_of() -> None:
    assert [line.split(";")[0] for line in remarks(photos(), few(99))] == [
        "99 images are very few to learn from",
        "part of the task is to tell how far a picture was turned",
    ]
    (turned,) = remarks(photos("method.std_tells=view"), few(100))
    assert [line.rsplit(" ", 1)[1] for line in (turned, remarks(photos(), few(100))[0])] == [
        "method.name=simsiam",
        "method.name=prelax-std",
    ]
    for changes in (["method.name=simsiam"], ["method.gamma2=0"], ["method.name=prelax-all", "method.relax=crop"]):
        assert remarks(photos(*changes), few(100)) == []


def test_what_a_step_costs_whatever_its_images_is_not_taken_for_each_of_them() -> None:
    def asked(fixed: float, each: float, batch: int = 256) -> tuple[float, list[int]]:
        tried: list[int] = []

        def timed(rows: int) -> float:
            tried.append(rows)
            return fixed + each * rows

        return batch_time(timed, batch), tried

    assert asked(9.0, 0.02) == (pytest.approx(14.12), [2, 8])  # an optimiser that takes longer than the images
    assert asked(0.0, 0.001) == (pytest.approx(0.256), [2, 8, 32, 128, 256])  # a quick step is measured whole
    assert asked(0.0, 30.0) == (pytest.approx(7680.0), [2])  # nobody waits for a second one
    assert asked(0.1, 0.01, 2) == (pytest.approx(0.12), [2])


def test_a_run_of_a_few_steps_is_not_estimated() -> None:
    settings, _ = suit(photos("train.epochs=2"), few(40), torch.device("cpu"))
    assert estimate(settings, few(40), torch.device("cpu")) is None
