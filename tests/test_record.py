"""Records: columns by name, targets as their losses want them."""

from dataclasses import FrozenInstanceError

import pytest
import torch

from prelax.record import Record, Target, View

RECORD = Record(
    {
        "crop.area": torch.tensor([0.2, 0.6, 1.0]),
        "flip.applied": torch.tensor([True, False, True]),
        "rotation.turns": torch.tensor([0, 3, 1], dtype=torch.int32),
        "jitter.order": torch.arange(12).view(3, 4),
    },
    (
        Target("crop.area", "continuous", mean=0.6, std=0.2),
        Target("flip.applied", "binary"),
        Target("rotation.turns", "categorical", classes=4),
    ),
)


def test_targets_are_standardised_floats_zero_one_floats_and_classes() -> None:
    targets = RECORD.targets()
    assert list(targets) == ["crop.area", "flip.applied", "rotation.turns"]
    torch.testing.assert_close(targets["crop.area"], torch.tensor([-2.0, 0.0, 2.0]))
    assert targets["flip.applied"].tolist() == [1.0, 0.0, 1.0]
    assert targets["flip.applied"].dtype == torch.float32
    assert targets["rotation.turns"].dtype == torch.int64


def test_a_target_of_unknown_moments_is_the_column_itself() -> None:
    column = torch.tensor([0.2, 0.6])
    assert torch.equal(Target("crop.area", "continuous").value(column), column)


def test_records_targets_and_views_cannot_be_changed() -> None:
    for thing, name in ((RECORD, "columns"), (RECORD.specs[0], "mean"), (View(torch.zeros(1), RECORD), "images")):
        with pytest.raises(FrozenInstanceError):
            setattr(thing, name, None)


def test_a_head_needs_one_output_or_one_per_class() -> None:
    assert [spec.width for spec in RECORD.specs] == [1, 1, 4]


def test_a_record_is_a_mapping_of_its_columns() -> None:
    assert "crop.area" in RECORD
    assert len(RECORD) == 4
    assert list(RECORD) == list(RECORD.columns)
    with pytest.raises(KeyError):
        RECORD["blur.sigma"]


def test_map_changes_every_column_and_keeps_the_targets() -> None:
    part = RECORD.map(lambda column: column[:2])
    assert all(len(column) == 2 for column in part.values())
    assert torch.equal(part["crop.area"], RECORD["crop.area"][:2])
    assert part.specs == RECORD.specs
    assert len(RECORD["crop.area"]) == 3


def test_what_was_done_next_is_added_and_replaces_what_it_drew_anew() -> None:
    more = Record({"flip.applied": torch.zeros(3), "blur.applied": torch.ones(3)}, (Target("blur.applied", "binary"),))
    both = RECORD.then(more)
    assert list(both)[-1] == "blur.applied"
    assert both["flip.applied"].sum() == 0
    assert [spec.name for spec in both.specs][-1] == "blur.applied"
    assert len(both.specs) == 4
    assert RECORD["flip.applied"].sum() == 2
