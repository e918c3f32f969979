"""How two draws differ is asked as two views can tell it."""

import pytest
import torch

from prelax import augment
from prelax.record import Record
from prelax.train.step import differences


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
    specs = [spec.difference() for spec in records[0].specs]
    found = differences(*(record.targets() for record in records), specs)
    mirrored = differences(*(twin(record).targets() for record in records), specs)
    for spec in specs:
        torch.testing.assert_close(found[spec.name], mirrored[spec.name], atol=1e-5, rtol=0)
        assert found[spec.name].float().std() > 0 or spec.name.endswith(".applied")  # there is something to tell
