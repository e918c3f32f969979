"""How two draws differ is asked as two views can tell it."""

import pytest
import torch

from prelax import augment
from prelax.record import Record, Target, differences, differing


@pytest.mark.parametrize(
    "ops",
    [
        augment.preset("simsiam-32").ops,
        augment.presets("byol-128", 32)[0].ops,
        (augment.Erase(p=1.0), augment.Flip(vertical=True), augment.Crop(24, (0.2, 1.0)), augment.Flip()),
        (augment.Flip(), augment.Crop(24, (0.2, 1.0)), augment.Erase(p=1.0)),
    ],
)
def test_how_two_draws_differ_is_the_same_of_an_image_and_its_mirror_image_whose_views_are_the_same(
    ops: tuple[augment.Operation, ...],
) -> None:
    """What the pictures cannot tell is not asked."""
    pipeline = augment.Pipeline(list(ops))
    images = torch.randint(256, (64, 3, 32, 32), dtype=torch.uint8)

    def twin(record: Record) -> Record:
        """The draws that make of the mirror images what these make of the images."""
        columns, first = dict(record.columns), list(dict.fromkeys(name.partition(".")[0] for name in record.columns))
        for name in first[: first.index("flip")]:
            if f"{name}.left" in columns:
                columns[f"{name}.left"] = 32 - columns[f"{name}.left"] - columns[f"{name}.width"]
                columns[f"{name}.x"] = 1 - columns[f"{name}.x"]
        columns["flip.applied"] = ~columns["flip.applied"]
        return Record(columns, record.specs)

    records = [pipeline(images, seed).record for seed in (1, 2)]
    for record in records:
        one, other = pipeline.replay(images, record), pipeline.replay(images.flip(-1), twin(record))
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)
    drawn = records[0].specs
    specs = differing(drawn, drawn)
    found = differences(*(record.targets() for record in records), drawn)
    mirrored = differences(*(twin(record).targets() for record in records), drawn)
    for spec in specs:
        torch.testing.assert_close(found[spec.name], mirrored[spec.name], atol=1e-5, rtol=0)
        assert found[spec.name].float().std() > 0 or spec.name.endswith(".applied")  # there is something to tell


def lain(images: torch.Tensor, turns: int, mirrored: bool) -> torch.Tensor:
    """Images mirrored, and then turned clockwise."""
    return (images.flip(-1) if mirrored else images).rot90(-turns, (-2, -1))


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("mirrored", [False, True])
def test_how_two_draws_differ_is_the_same_however_an_image_from_above_lies(turns: int, mirrored: bool) -> None:
    """Images that are turned or mirrored, with draws that make the same views of them: nobody can tell them apart."""
    pipeline = augment.preset("satellite", 24)
    images = torch.randint(256, (64, 3, 32, 32), dtype=torch.uint8)

    def twin(record: Record) -> Record:
        c = dict(record.columns)
        # The box, which goes with the image.
        left = 32 - c["crop.left"] - c["crop.width"] if mirrored else c["crop.left"]
        box = c["crop.top"], left, c["crop.height"], c["crop.width"]
        for _ in range(turns):  # clockwise: what was at the bottom is at the left
            top, left, height, width = box
            box = left, 32 - top - height, width, height
        c["crop.top"], c["crop.left"], c["crop.height"], c["crop.width"] = box
        c["crop.y"], c["crop.x"] = (box[0] + box[2] / 2) / 32, (box[1] + box[3] / 2) / 32
        c["crop.aspect"] = 1 / c["crop.aspect"] if turns % 2 else c["crop.aspect"]
        # And what undoes that first: all of it as one mirroring from side to side and one turn.
        flip, over, turn = record["flip.applied"], record["vertical-flip.applied"], record["rotation.turns"]
        back = torch.full_like(turn, turns if mirrored else -turns)  # mirrored, a turn goes the other way round
        flips = flip ^ over ^ mirrored
        flipped = torch.where(flip ^ over, -back, back)
        c["flip.applied"], c["vertical-flip.applied"] = flips, torch.zeros_like(over)
        c["rotation.turns"] = (turn + 2 * over.long() + flipped) % 4
        return Record(c, record.specs)

    records = [pipeline(images, seed).record for seed in (1, 2)]
    for record in records:
        one = pipeline.replay(images, record)
        other = pipeline.replay(lain(images, turns, mirrored), twin(record))
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)
    drawn = records[0].specs
    specs = differing(drawn, drawn)
    assert {"crop.y", "crop.x", "crop.aspect", "flip.applied", "rotation.turns"} <= {spec.name for spec in specs}
    assert "vertical-flip.applied" not in {spec.name for spec in specs}
    found = differences(*(record.targets() for record in records), drawn)
    same = differences(*(twin(record).targets() for record in records), drawn)
    for spec in specs:
        torch.testing.assert_close(found[spec.name], same[spec.name], atol=1e-5, rtol=0)
        assert found[spec.name].float().std() > 0
    assert set(found["rotation.turns"].tolist()) == {0, 1, 2, 3}


def test_of_rearrangements_only_whether_they_differ_can_be_told() -> None:
    puzzle = augment.Jigsaw().targets[0]
    (told,) = differing((puzzle,), (puzzle,))
    one, two = torch.tensor([3, 3, 0]), torch.tensor([3, 1, 23])
    found = differences({puzzle.name: one}, {puzzle.name: two}, (puzzle,))[told.name]
    assert (told.kind, found.tolist()) == ("binary", [0.0, 1.0, 1.0])


def test_of_two_quarter_turns_only_what_they_come_to_is_asked() -> None:
    first, again = (Target(f"{name}.turns", "categorical", classes=4, turns=True) for name in ("rotation", "again"))
    assert differing((first, again), (first, again)) == (first,)
    one = {first.name: torch.tensor([1, 3]), again.name: torch.tensor([1, 2])}
    two = {first.name: torch.tensor([2, 0]), again.name: torch.tensor([3, 0])}
    assert differences(one, two, (first, again))[first.name].tolist() == [1, 1]
