"""A wrong number in every numeric setting: the run is made, or refused in one line that names the setting."""

import contextlib
import io
import math
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prelax.cli import main
from prelax.config import keys, resolve
from prelax.errors import PrelaxError
from prelax.run import Run

NUMBERS = {
    key: field for key, field in keys().items() if {int, float} & set(get_args(field.annotation) or (field.annotation,))
}
# What makes a run long or large: such values are looked at as settings, not run.
COSTLY = {
    "train.epochs": 3,
    "data.image_size": 64,
    "augment.size": 64,
    "data.channels": 3,
    "data.workers": 0,
    "model.projector_hidden": 64,
    "model.projector_dim": 64,
    "model.predictor_hidden": 64,
    "model.head_hidden": 64,
}


def limits(field: Any) -> dict[str, float]:
    return {
        name: getattr(rule, name)
        for rule in field.metadata
        for name in ("ge", "gt", "le", "lt")
        if getattr(rule, name, None) is not None
    }


def text_of(key: str) -> list[str]:
    """Numbers at and around the limits of a setting, and numbers that are none."""
    found = ["0", "1", "2", "-1", "nan", ".nan", ".inf", "-.inf", "1e400", "1e308", "1e-308", "1e-30", "1e30", "0.5"]
    found += ["-0.0", "9" * 40, "9" * 5000, "1e", "1,5", "½", "1 2", "0x1F", "one", "[1]", "{}", "true", ""]
    for edge in limits(NUMBERS[key]).values():
        found += [repr(edge), repr(edge - 1), repr(edge + 1), repr(math.nextafter(edge, math.inf))]
    return list(dict.fromkeys(found))


def spoken(words: list[str]) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(words)
    return status, err.getvalue()


def refusal(key: str, text: str) -> str | None:
    """What is said of a value, or None when it is taken as a finite number."""
    try:
        value: Any = resolve("digits/prelax-all", [f"{key}={text}"])
    except PrelaxError as error:
        return str(error)
    for part in key.split("."):
        value = getattr(value, part)
    assert value is None or math.isfinite(value), text
    return None


@pytest.mark.parametrize("key", NUMBERS)
def test_every_number_is_taken_or_refused_by_the_name_of_its_setting(key: str) -> None:
    said = {text: refusal(key, text) for text in text_of(key)}
    assert None in said.values()
    for text, line in said.items():
        assert line is None or (key in line and "\n" not in line), text


@given(key=st.sampled_from(sorted(NUMBERS)), number=st.one_of(st.integers(), st.floats()))
@settings(max_examples=200, deadline=None)
def test_any_number_is_taken_or_refused_by_the_name_of_its_setting(key: str, number: float) -> None:
    assert key in (refusal(key, repr(number)) or key)


@pytest.mark.parametrize("key", NUMBERS)
def test_a_number_that_is_taken_runs_or_is_refused_by_name(key: str, small: list[str], tmp_path: Path) -> None:
    """The least and the greatest that the settings take, trained with for an epoch."""
    taken = []
    for text in text_of(key):
        try:
            value: Any = resolve("digits/prelax-all", [f"{key}={text}"])
        except PrelaxError:
            continue
        for part in key.split("."):
            value = getattr(value, part)
        if value is not None and value <= COSTLY.get(key, math.inf):
            taken.append((value, text))
    method = "byol" if key == "method.tau" else "simclr" if key == "method.temperature" else "prelax-all"
    for _, text in {min(taken), max(taken)}:
        others = [word for word in small if not word.startswith(f"{key}=")]
        epochs = [] if key == "train.epochs" else ["train.epochs=1"]
        run = tmp_path / str(len(list(tmp_path.iterdir())))
        words = ["pretrain", "digits/prelax-all", *others, *epochs, f"method.name={method}", f"{key}={text}"]
        status, said = spoken([*words, "--quiet", "--out", str(run)])
        assert status in (0, 2), (text, said)
        if status == 2:
            assert key in said, (text, said)
            assert said.count("\n") == 1
        else:
            assert math.isfinite(Run.open(run).metrics()[-1]["loss"])


@pytest.mark.parametrize("change", ["knn_k=1", "knn_k=1000000000", "knn_temperature=1e-3", "knn_temperature=1e3"])
def test_an_evaluation_takes_the_extremes_of_its_settings(change: str, run: Path) -> None:
    status, said = spoken(["evaluate", str(run), "-p", "knn", f"evaluate.{change}", "--quiet"])
    assert status == 0, said
    assert 0 < Run.open(run).evals()["knn"]["accuracy"] <= 100
