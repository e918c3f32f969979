import doctest
import importlib
import json
import re
from pathlib import Path

import matplotlib.image
import pytest

from prelax.errors import PrelaxError
from prelax.theory import check, draw, run_theory, six_and_nine, survey, tell, worked_example

ROOT = Path(__file__).parents[2]


def test_run_theory_gives_plain_results_and_draws_both_pictures(tmp_path):
    results = run_theory(tmp_path / "new", seed=1, joints=5)
    assert json.loads(json.dumps(results))["worked_example"]["claims"]["theorem 1"] is True
    assert results["six_and_nine"]["claims"]["bound order"] is False
    assert [Path(name).name for name in results["figures"]] == ["theory.png", "theory.svg"]
    assert matplotlib.image.imread(tmp_path / "new" / "theory.png").shape[1] == 1050  # 3.5 inches at 300 dpi
    assert "<svg" in (tmp_path / "new" / "theory.svg").read_text()


def test_run_theory_without_a_folder_draws_nothing_and_tells_the_example():
    text = tell(run_theory(seed=0, joints=2))
    assert "drawn in" not in text
    assert re.search(r"prelax\s+1\.9928\s+0\.1733\s+0\.1733", text)
    assert "FAILS  theorem 2, the order of the bounds u^e" in text
    assert "-0.0000" not in text


def test_survey_counts_what_check_says():
    held = survey(seed=2, joints=20)
    assert set(held["structured"].values()) == {20}
    assert held["noisy"]["bound order"] == 20
    assert held["noisy"]["gap equality"] == 0
    assert held["tied"]["theorem 1"] == 20
    assert held["tied"]["bound order"] < 20
    assert all(count["gap bound"] == count["error bound"] == count["error order"] == 20 for count in held.values())


def test_check_names_the_claims_the_counterexample_breaks():
    assert {claim for claim, holds in check(six_and_nine()).items() if not holds} == {
        "gap equality",
        "bound order",
        "S ⊥ T | X",
    }


def test_the_same_picture_is_the_same_file(tmp_path):
    first, second = draw(worked_example(), tmp_path / "a.svg"), draw(worked_example(), tmp_path / "b.svg")
    assert first.read_bytes() == second.read_bytes()


def test_a_joint_without_task_information_can_be_drawn(tmp_path):
    assert draw(six_and_nine(), tmp_path / "six.png").stat().st_size > 0


def test_bad_requests_are_refused(tmp_path):
    with pytest.raises(PrelaxError, match="ends in"):
        draw(worked_example(), tmp_path / "theory.bmp")
    with pytest.raises(PrelaxError, match="at least one joint"):
        survey(joints=0)


@pytest.mark.parametrize("module", ["joint", "theorems", "examples", "figure", "show"])
def test_the_examples_in_docstrings_run(module):
    assert doctest.testmod(importlib.import_module(f"prelax.theory.{module}")).failed == 0


def test_the_examples_in_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "theory.md").read_text(), flags=re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, "theory.md", "exec"), {"__name__": "docs"})


def test_the_page_of_the_theorems_shows_what_its_python_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "theory.md").read_text(encoding="utf-8")
    block, shown = re.search(
        r"```python\n([^`]*?worked_example.*?)```\n\n((?:    [^\n]*\n)+)", page, re.DOTALL
    ).groups()
    exec(compile(block, "theory.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == [line.strip() for line in shown.splitlines()]
