"""Pipelines: a view and its record, replayed, relaxed, refused."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from prelax.augment import (
    OPERATIONS,
    PRESETS,
    Blur,
    Crop,
    Erase,
    Flip,
    Grey,
    Invert,
    Jigsaw,
    Jitter,
    Maybe,
    Named,
    Noise,
    Normalise,
    Operation,
    Pipeline,
    QuarterTurn,
    batch_of,
    host_stage,
    load_record,
    operation,
    preset,
    presets,
    relaxation,
    relaxed_view,
    save_record,
)
from prelax.draws import Draws
from prelax.errors import PrelaxError
from prelax.record import Record, Target


def pictures(batch: int = 12, channels: int = 3, height: int = 40, width: int = 40) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (batch, channels, height, width), generator=generator, dtype=torch.uint8)


def every_operation() -> Pipeline:
    names = [name for name in OPERATIONS if name not in ("crop", "normalise")]
    first = [Crop(24), *(operation(name) for name in names)]
    return Pipeline([*first, Named(Maybe(QuarterTurn(), 0.5), "again"), Normalise((0.5,), (0.2,))])


class Scanlines:
    """Every second line darkened: a user's own augmentation."""

    name = "scanlines"
    targets = (Target("scanlines.strength", "continuous", mean=0.25, std=0.144),)

    def make_params(self, shape, draws):  # type: ignore[no-untyped-def]
        return {"strength": draws.uniform("strength", 0.0, 0.5)}

    def transform(self, images, params):  # type: ignore[no-untyped-def]
        odd = torch.arange(images.shape[-2], device=images.device)[:, None] % 2
        return images * (1 - params["strength"][:, None, None, None] * odd)


@pytest.mark.parametrize("name", list(PRESETS))
@pytest.mark.parametrize("channels", [1, 3, 13])
def test_every_preset_works_for_grey_rgb_and_many_channels(name: str, channels: int) -> None:
    for pipeline in presets(name, size=16, channels=channels):
        view = pipeline(pictures(4, channels, 20, 26), 0)
        assert view.images.shape == (4, channels, 16, 16)
        assert view.images.isfinite().all()
        assert set(view.record.targets()) == {spec.name for spec in pipeline.specs}


def test_simsiam_32_gives_torchvisions_pixels_from_the_record_alone() -> None:
    images, pipeline = pictures(32, 3, 48, 36), preset("simsiam-32")
    view = pipeline(images, 3)
    steps = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
    for i in range(len(images)):
        row = {name: column[i] for name, column in view.record.items()}
        box = [int(row[f"crop.{key}"]) for key in ("top", "left", "height", "width")]
        image = F.resized_crop(F.to_dtype(images[i], torch.float32, scale=True), *box, [32, 32], antialias=True)
        if row["flip.applied"]:
            image = F.horizontal_flip(image)
        if row["jitter.applied"]:
            for step in row["jitter.order"].tolist():
                factor = row[f"jitter.{('brightness', 'contrast', 'saturation', 'hue')[step]}"]
                image = steps[step](image, float(factor))
        if row["grey.applied"]:
            image = F.rgb_to_grayscale(image, 3)
        image = F.normalize(image, [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])
        torch.testing.assert_close(view.images[i], image, atol=4e-4, rtol=0)  # 1e-4 of a level, over a std of 0.25


def test_a_view_is_replayed_bit_for_bit_from_parquet(tmp_path: Path) -> None:
    images, pipeline = pictures(), every_operation()
    view = pipeline(images, 1)
    save_record(view.record, tmp_path / "record.parquet")
    record = load_record(tmp_path / "record.parquet")
    assert record.specs == view.record.specs
    assert list(record) == list(view.record)
    for name, column in view.record.items():
        assert record[name].dtype == column.dtype
        assert torch.equal(record[name], column)
    assert torch.equal(pipeline.replay(images, record), view.images)


def test_a_record_file_that_is_none_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "no.parquet").write_bytes(b"not parquet")
    for path in ("missing.parquet", "no.parquet"):
        with pytest.raises(PrelaxError, match=path):
            load_record(tmp_path / path)


def test_every_operation_leaves_its_input_as_it_was_and_traces_into_one_graph() -> None:
    images, pipeline = pictures(), every_operation()
    before = images.clone()
    view = pipeline(images, Draws(torch.tensor(5), len(images)))
    assert torch.equal(images, before)
    floats = images.float() / 255
    kept = floats.clone()
    for op in pipeline.ops:
        op.transform(floats, op.make_params((12, 3, 40, 40), Draws(0, 12)))
        assert torch.equal(floats, kept), op.name

    def both(images: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        record = pipeline.sample((12, 3, 40, 40), Draws(key, 12))
        return pipeline.apply(images, record), record.columns

    traced, columns = torch.compile(both, fullgraph=True, backend="eager")(images, torch.tensor(5))
    assert all(torch.equal(columns[name], column) for name, column in view.record.items())
    torch.testing.assert_close(traced, view.images, atol=1e-4, rtol=0)


@pytest.mark.parametrize("op", [Jigsaw(3, classes=9), Crop(6), Erase(1.0)], ids=str)
def test_a_compiler_need_not_follow_what_is_known_beforehand(op: Operation) -> None:
    pipeline, images = Pipeline([op]), pictures(4, 3, 12, 12)

    def both(key: torch.Tensor) -> tuple[torch.Tensor, Record]:
        record = pipeline.sample((4, 3, 12, 12), Draws(key, 4))
        return pipeline.apply(images, record), record

    torch.compiler.reset()
    with warnings.catch_warnings(action="error"):
        made, record = torch.compile(both, fullgraph=True, backend="eager")(torch.tensor(5))
    torch.testing.assert_close(made, pipeline(images, 5).images)
    assert record.specs == Pipeline([op]).specs_at((4, 3, 12, 12))


def test_compiled_views_are_the_eager_views_and_replay_bit_for_bit() -> None:
    pipeline = Pipeline([Crop(8), Flip(), Grey(), Normalise((0.5,), (0.2,))])
    images, fused = pictures(6, 3, 10, 10), pipeline.compiled()
    for seed in (0, 1):
        eager = pipeline(images, seed)
        view = fused.apply(images, eager.record)
        torch.testing.assert_close(view, eager.images, atol=1e-5, rtol=0)
        assert torch.equal(fused.replay(images, eager.record), view)


def test_where_compiling_fails_the_view_is_made_without_it_and_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_compiler(*args: object, **options: object) -> object:
        def fail(*args: object) -> None:
            raise RuntimeError("no C++ compiler found")

        return fail

    monkeypatch.setattr(torch, "compile", no_compiler)
    pipeline = preset("simsiam-32")
    fused = pipeline.compiled()
    with pytest.warns(UserWarning, match="no C.. compiler found"):
        view = fused(pictures(), 0)
    assert torch.equal(view.images, pipeline(pictures(), 0).images)


def test_many_compiled_pipelines_do_not_share_a_limit_and_one_of_too_many_shapes_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda f, **o: real(f, fullgraph=o["fullgraph"], dynamic=o["dynamic"], backend="eager")
    )
    pipelines = [Pipeline([Normalise((number / 10,), (0.5,))]) for number in range(10)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for pipeline in pipelines:
            assert torch.equal(pipeline.compiled()(pictures(), 0).images, pipeline(pictures(), 0).images)
    fused = pipelines[0].compiled()
    with pytest.warns(UserWarning, match="without it"):
        views = [fused(pictures(size), 0) for size in range(1, 12)]
    for size, view in enumerate(views, 1):
        assert torch.equal(view.images, pipelines[0](pictures(size), 0).images)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_views_come_in_the_asked_dtype(dtype: torch.dtype) -> None:
    pipeline = preset("simsiam-32")
    view, full = pipeline(pictures(), 0, dtype=dtype), pipeline(pictures(), 0)
    assert view.images.dtype == dtype
    assert torch.equal(view.images, full.images.to(dtype))


def test_float_images_give_the_view_of_the_same_uint8_images() -> None:
    for pipeline in (preset("simsiam-32"), Pipeline([Invert(), Crop(16)])):
        torch.testing.assert_close(
            pipeline(pictures().float() / 255, 0).images, pipeline(pictures(), 0).images, atol=1e-5, rtol=0
        )


def test_views_are_made_where_the_images_are_and_nothing_waits_for_a_value() -> None:
    images = pictures(4).to("meta")  # a device without values: to look at one, or to make anything elsewhere, fails
    ops = [op for op in every_operation().ops if op.name != "free-rotation"]  # it turns autocast off, which asks
    view = Pipeline(ops)(images, Draws(0, torch.arange(4, device="meta")))
    assert view.images.shape == (4, 3, 24, 24)
    assert {column.device.type for column in (view.images, *view.record.values())} == {"meta"}


def test_images_of_a_batch_get_their_own_parameters_and_seeds_their_own_views() -> None:
    images = pictures(1).expand(64, -1, -1, -1)
    view = preset("simsiam-32")(images, 0)
    assert len(view.images.flatten(1).unique(dim=0)) == 64
    assert not torch.equal(preset("simsiam-32")(images, 1).images, view.images)


def test_colour_on_other_than_rgb_is_refused_in_a_line() -> None:
    for op in (Jitter(), Grey(), Maybe(Grey(), 0.5)):
        with pytest.raises(PrelaxError, match=r"works on RGB and the images have 4 channel"):
            Pipeline([op])(pictures(2, 4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pipeline([Flip(), Flip()]), "two operations are called 'flip'"),
        (lambda: preset("simsiam-32")(pictures()[0]), "B x C x H x W"),
        (lambda: preset("simsiam-32")(pictures().numpy()), r"not a numpy\.ndarray: torch\.as_tensor makes one"),
        (lambda: preset("simsiam-32")(pictures()[..., :0]), r"got shape \(12, 3, .*, 0\)"),
        (lambda: preset("simsiam-32")(pictures().long()), "uint8, or floats"),
        (lambda: preset("simsiam-32")(pictures(), dtype=torch.float64), "float16, bfloat16 or float32"),
        (lambda: preset("simsiam-32")(pictures(), Draws(0, 3)), "3 rows for a batch of 12"),
        (lambda: preset("simsiam32"), "did you mean 'simsiam-32'"),
        (lambda: preset("qqq"), "'qqq': choose from none, simsiam-32"),
        (lambda: preset("byol-128"), "a pipeline for each view"),
        (lambda: operation("rotate"), "did you mean 'rotation'"),
        (lambda: operation("jigsaw", gird=3), "gird"),
        (lambda: Pipeline([QuarterTurn()])(pictures(2, 3, 8, 9)), "square"),
        (lambda: Pipeline([Jigsaw(3)])(pictures(2, 3, 8, 9)), "equal tiles"),
        (lambda: Jigsaw(2, classes=25), "cannot give 25"),
        (lambda: Crop(8, (0.5, 2.0)), "at most 1"),
        (lambda: Crop(8, (0.5, 0.2)), "range"),
        (lambda: Crop(8, interpolation="nearest"), "bilinear or bicubic"),  # type: ignore[arg-type]
        (lambda: Jitter(hue=0.7), "at most 0.5"),
        (lambda: Flip(1.5), "probability"),
        (lambda: Blur(4), "odd"),
        (lambda: Pipeline([Blur(21)])(pictures(2, 3, 8, 8)), "does not fit"),
        (lambda: Pipeline([Maybe(Crop(8), 0.5)])(pictures()), "changes the shape"),
        (lambda: Pipeline([Normalise((0.5, 0.5), (1, 1))])(pictures()), "2 means"),
    ],
)
def test_a_mistake_is_told_in_a_line(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PrelaxError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_maybe_applies_to_the_images_it_says() -> None:
    images = pictures(64)
    view = Pipeline([Maybe(QuarterTurn(), 0.3)])(images, 0)
    applied, turns = view.record["rotation.applied"], view.record["rotation.turns"]
    assert 5 < applied.sum() < 40
    assert (turns[~applied] == 0).all()
    for i in range(64):
        assert torch.equal(view.images[i], torch.rot90(images[i], -int(turns[i]), (1, 2)) / 255)


@pytest.mark.parametrize(
    "op", [Jigsaw(2), Jigsaw(3, classes=9), Jitter(p=1.0), Erase(p=1.0), Noise((0.05, 0.1)), Blur(p=1.0), Flip(p=1.0)]
)
def test_what_maybe_did_not_apply_is_recorded_as_nothing_done(op: Operation) -> None:
    images = pictures(64, 3, 18, 18)
    maybe = Maybe(op, 0.5)
    view = Pipeline([maybe])(images, 0)
    alone = ~view.record[f"{op.name}.{maybe.column}"]
    assert 10 < alone.sum() < 54
    torch.testing.assert_close(view.images[alone], images[alone] / 255)
    rows = {name.partition(".")[2]: view.record[name][alone] for name in view.record}
    # What the record says of them, done again, does nothing: so nobody is taught that something was done.
    torch.testing.assert_close(op.transform(images[alone] / 255, rows), images[alone] / 255)
    assert all(len(rows[t.name.partition(".")[2]].unique()) == 1 for t in op.targets)
    if isinstance(op, Jigsaw):
        assert (rows["permutation"] == 0).all()  # the class of the image as it was


def test_jigsaw_puts_tiles_where_its_record_says() -> None:
    images = pictures(32, 3, 12, 18)
    for jigsaw in (Jigsaw(2), Jigsaw(3, classes=40)):
        params = jigsaw.make_params((32, 3, 12, 18), Draws(0, 32))
        g, out = jigsaw.grid, jigsaw.transform(images, params)
        h, w = 12 // g, 18 // g
        for i in range(32):
            for place, tile in enumerate(params["order"][i].tolist()):
                (r, c), (tr, tc) = divmod(place, g), divmod(tile, g)
                assert torch.equal(
                    out[i, :, r * h :][:, :h, c * w :][:, :, :w], images[i, :, tr * h :][:, :h, tc * w :][:, :, :w]
                )
        known = jigsaw.make_params((9999, 3, 12, 18), Draws(1, 9999))
        table = torch.cat((known["permutation"][:, None], known["order"]), 1).unique(dim=0)
        assert len(table) == jigsaw.classes == len(table[:, 1:].unique(dim=0))
        assert table[0].tolist() == [0, *range(g * g)]


def test_noise_has_its_sigma_and_replays() -> None:
    images = torch.full((8, 3, 64, 64), 0.5)
    view = Pipeline([Noise((0.0, 0.1))])(images, 0)
    torch.testing.assert_close((view.images - 0.5).flatten(1).std(1), view.record["noise.sigma"], rtol=0.03, atol=1e-4)
    assert abs((view.images - 0.5).mean()) < 1e-3


@pytest.mark.parametrize("name", ["rotation", "vertical-flip", "jigsaw", "flip"])
def test_a_relaxed_view_of_moved_pixels_is_view_one_moved(name: str) -> None:
    images, pipeline = pictures(), Pipeline([Crop(16), Jitter(), Normalise((0.5,), (0.2,))])
    view = pipeline(images, 0, dtype=torch.bfloat16)
    op, unseen = operation(name), torch.zeros_like(images)  # the batch is not looked at: view 1 is there
    relaxed = relaxed_view(pipeline, view, op, unseen, Draws(1, 12))
    params = {key.partition(".")[2]: column for key, column in relaxed.record.items() if key.startswith(f"{op.name}.")}
    assert torch.equal(relaxed.images, op.transform(view.images, params))
    assert relaxed.images.dtype == torch.bfloat16
    assert all(relaxed.record[key] is column for key, column in view.record.items())
    assert [spec.name for spec in relaxed.record.specs][-1].startswith(op.name)


@pytest.mark.parametrize("op", [Crop(), Blur(3, p=1.0), Jitter(p=1.0), Scanlines()])
def test_any_other_relaxation_goes_between_view_one_and_its_normalisation(op) -> None:  # type: ignore[no-untyped-def]
    images, body = pictures(), [Crop(16), Jitter(), Flip()]
    normalise = Normalise((0.4, 0.5, 0.6), (0.2, 0.2, 0.3))
    pipeline = Pipeline([*body, normalise])
    view = pipeline(images, 0)
    if op.name in ("crop", "jitter"):
        with pytest.raises(PrelaxError, match=r"the pipeline has a .* of its own"):
            relaxed_view(pipeline, view, op, images, Draws(1, 12))
    relaxed = relaxed_view(pipeline, view, relaxation(pipeline, op), images, Draws(1, 12))
    name = f"relaxed-{op.name}" if op.name in ("crop", "jitter") else op.name
    params = {key[len(name) + 1 :]: column for key, column in relaxed.record.items() if key.startswith(f"{name}.")}
    expected = normalise.transform(op.transform(Pipeline(body).replay(images, view.record), params), {})
    torch.testing.assert_close(relaxed.images, expected, atol=1e-5, rtol=0)
    assert all(torch.equal(relaxed.record[key], column) for key, column in view.record.items())
    assert relaxation(pipeline, op).targets[0].name.startswith(name)
    assert {spec.name for spec in relaxed.record.specs} >= {target.name for target in relaxation(pipeline, op).targets}


def test_a_users_own_augmentation_is_recorded_as_a_target_and_replayed() -> None:
    pipeline = Pipeline([Crop(16), Scanlines(), Normalise((0.5,), (0.2,))])
    view = pipeline(pictures(), 0)
    strength = view.record["scanlines.strength"]
    torch.testing.assert_close(view.record.targets()["scanlines.strength"], (strength - 0.25) / 0.144)
    assert torch.equal(pipeline.replay(pictures(), view.record), view.images)


def test_two_of_a_kind_stand_under_two_names() -> None:
    pipeline = Pipeline([Flip(), replace(Flip(), name="flip-2"), Named(Scanlines(), "lines"), Scanlines()])
    view = pipeline(pictures(), 0)
    assert list(view.record) == ["flip.applied", "flip-2.applied", "lines.strength", "scanlines.strength"]
    assert not torch.equal(view.record["lines.strength"], view.record["scanlines.strength"])


def test_a_torchvision_stage_on_the_host_feeds_a_pipeline() -> None:
    from PIL import Image

    stage = host_stage(v2.Compose([v2.CenterCrop(20), v2.RandomHorizontalFlip(1.0)]))
    batch = batch_of(stage, pictures())
    assert torch.equal(batch, pictures()[:, :, 10:30, 10:30].flip(-1))
    one = Image.fromarray(pictures()[0].permute(1, 2, 0).numpy())
    assert torch.equal(stage(one), batch[0])
    assert preset("simsiam-32")(batch, 0).images.shape == (12, 3, 32, 32)
    with pytest.raises(PrelaxError, match="different shapes"):
        batch_of(host_stage(lambda image: image), [pictures()[0], pictures()[0, :, :5]])


def test_an_albumentations_stage_gets_arrays_by_name() -> None:
    albumentations = pytest.importorskip("albumentations")
    stage = host_stage(albumentations.Compose([albumentations.HorizontalFlip(p=1.0)]))
    assert torch.equal(batch_of(stage, pictures()), pictures().flip(-1))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("os:abort", "abort is no class"),  # would end Python if it were called
        ("no_such_module:Thing", "no_such_module"),
        ("collections:OrderedDict", "lacks name"),
    ],
)
def test_an_augmentation_by_module_and_class_is_a_class_of_the_right_parts(name: str, said: str) -> None:
    with pytest.raises(PrelaxError, match=said):
        operation(name)
