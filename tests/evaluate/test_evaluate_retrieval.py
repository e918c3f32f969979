from __future__ import annotations

import builtins
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from prelax.cli import main
from prelax.config import DataSettings
from prelax.data import ImageSet, picked
from prelax.data import load as load_data
from prelax.errors import PrelaxError, PrelaxWarning
from prelax.evaluate.retrieval import describe, nearest, precision_at, search
from prelax.loading import load


@pytest.fixture(params=["faiss", "torch"])
def engine(request, monkeypatch):
    if request.param == "torch":
        real = builtins.__import__

        def without_faiss(name, *args, **kwargs):
            if name == "faiss":
                raise ImportError(name)
            return real(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", without_faiss)
    return request.param


def by_numpy(gallery, queries, k):
    gallery, queries = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (gallery, queries))
    return np.argsort(-(queries @ gallery.T), axis=1)[:, :k]


def test_nearest_is_the_largest_cosine(engine):
    rng = np.random.default_rng(0)
    gallery, queries = rng.normal(size=(60, 8)), rng.normal(size=(7, 8))
    cosine, rows = nearest(torch.tensor(gallery), torch.tensor(queries), 5)
    np.testing.assert_array_equal(rows, by_numpy(gallery, queries, 5))
    assert bool((cosine[:, :-1] >= cosine[:, 1:]).all())


def test_no_image_finds_itself_and_copies_find_each_other(engine):
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    x[7] = x[3]
    _, rows = nearest(x, x, 4, skip_self=True)
    assert rows.shape == (20, 4)
    assert not bool((rows == torch.arange(20)[:, None]).any())
    assert rows[3, 0] == 7
    assert rows[7, 0] == 3


def test_precision_is_the_share_of_neighbours_of_the_same_class(engine):
    rng = np.random.default_rng(1)
    x, labels = rng.normal(size=(40, 5)), rng.integers(0, 3, 40)
    order = by_numpy(x, x, 40)
    shares = [np.mean([labels[j] == labels[i] for j in row if j != i][:6]) for i, row in enumerate(order)]
    assert precision_at(torch.tensor(x), torch.tensor(labels), 6) == pytest.approx(100 * np.mean(shares))


def test_search_finds_a_copy_of_a_picture_and_draws_it(trained, tmp_path):
    digits = load_data(DataSettings(), "train")
    Image.fromarray(digits.images[41, 0].numpy()).save(tmp_path / "query.png")
    found, _ = search(load(trained.path), DataSettings(), [tmp_path / "query.png"], tmp_path / "out" / "found.png", k=3)
    assert found[0][0]["row"] == 41
    assert found[0][0]["cosine"] == pytest.approx(1.0, abs=1e-3)
    assert found[0][0]["class"] == digits.classes[int(digits.labels[41])]
    with Image.open(tmp_path / "out" / "found.png") as picture:
        assert picture.size[0] > picture.size[1]


@pytest.mark.parametrize("content", [None, b"not a picture"])
def test_a_query_that_is_no_picture_is_refused_in_one_line(trained, tmp_path, content):
    if content is not None:
        (tmp_path / "q.jpg").write_bytes(content)
    with pytest.raises(PrelaxError, match=r"q\.jpg"):
        search(load(trained.path), DataSettings(), [tmp_path / "q.jpg"], tmp_path / "out.png")


def test_a_picture_of_an_unknown_kind_is_refused(trained, tmp_path):
    Image.new("L", (16, 16)).save(tmp_path / "q.png")
    with pytest.raises(PrelaxError, match="cannot draw"):
        search(load(trained.path), DataSettings(), [tmp_path / "q.png"], tmp_path / "out.xyz", k=2)


def test_names_with_dollar_signs_are_drawn_as_they_are(trained, tmp_path):
    for name in ("a$\\frac$.png", "b.png"):
        Image.new("L", (16, 16)).save(tmp_path / name)
    (tmp_path / "photos" / "$\\sqrt$").mkdir(parents=True)
    for i in range(3):
        Image.new("L", (16, 16), 80 * i).save(tmp_path / "photos" / "$\\sqrt$" / f"{i}.png")
    photos = DataSettings(source="folder", root=tmp_path / "photos", image_size=16, channels=1, test_fraction=0.0,
                          cache=tmp_path / "cache")  # fmt: skip
    queries = [tmp_path / "a$\\frac$.png", tmp_path / "b.png"]
    found, _ = search(load(trained.path), photos, queries, tmp_path / "out.png", k=2)
    assert found[0][0]["class"] == "$\\sqrt$"
    assert (tmp_path / "out.png").is_file()


def test_a_name_in_letters_that_no_font_has_is_told_and_the_picture_drawn_without_a_word(trained, tmp_path, recwarn):
    Image.new("L", (16, 16)).save(tmp_path / "日本.png")
    _, drawn = search(load(trained.path), DataSettings(), [tmp_path / "日本.png"], tmp_path / "out.png", k=1)
    assert drawn is not None
    assert not [str(warning.message) for warning in recwarn if "Glyph" in str(warning.message)]


def test_of_many_only_the_first_are_drawn_and_all_are_told(trained, tmp_path, monkeypatch):
    monkeypatch.setattr("prelax.evaluate.retrieval.DRAWN", (2, 3))
    Image.new("L", (16, 16)).save(tmp_path / "q.png")
    found, _ = search(load(trained.path), DataSettings(), [tmp_path / "q.png"] * 5, tmp_path / "out.png", k=500)
    assert [len(hits) for hits in found] == [500] * 5
    with Image.open(tmp_path / "out.png") as picture:
        assert picture.size == (int(1.1 * 4 * 130), int((1.35 * 2 + 0.25) * 130))


def test_many_found_are_drawn_in_lines_that_fit_a_screen(trained, tmp_path):
    Image.new("L", (16, 16)).save(tmp_path / "q.png")
    search(load(trained.path), DataSettings(), [tmp_path / "q.png"] * 2, tmp_path / "out.png", k=15)
    with Image.open(tmp_path / "out.png") as picture:
        assert picture.size == (int(1.1 * 9 * 130), int(1.35 * 4 * 130))  # 8 and 7 of each


def test_a_picture_that_cannot_be_drawn_does_not_lose_what_was_found(trained, tmp_path):
    Image.new("L", (16, 16)).save(tmp_path / "q.png")
    (tmp_path / "file").write_text("no folder")
    with pytest.warns(PrelaxWarning, match="the picture was not drawn: cannot write"):
        found, _ = search(load(trained.path), DataSettings(), [tmp_path / "q.png"], tmp_path / "file" / "out.png", k=2)
    assert len(found[0]) == 2


def test_the_command_tells_of_a_picture_by_what_became_of_it_not_by_the_file(trained, tmp_path, monkeypatch, capsys):
    Image.new("L", (16, 16)).save(tmp_path / "q.png")
    out = tmp_path / "found.png"
    words = ["search", str(trained.path), str(tmp_path / "q.png"), "-k", "2", "-o"]
    assert main([*words, str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["out"] == str(out)

    def half_drawn(*_):
        out.write_bytes(b"half a picture")
        raise RuntimeError("the pen broke")

    monkeypatch.setattr("prelax.evaluate.retrieval.draw", half_drawn)
    assert main([*words, str(out), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["out"] is None
    assert "the picture was not drawn: the pen broke" in said.err


@pytest.mark.parametrize(("given", "drawn"), [("found", "found.png"), ("folder", "folder/search.png")])
def test_the_command_names_the_file_the_picture_is_in(trained, tmp_path, capsys, given, drawn):
    Image.new("L", (16, 16)).save(tmp_path / "q.png")
    (tmp_path / "folder").mkdir()
    words = ["search", str(trained.path), str(tmp_path / "q.png"), "-k", "2", "-o", str(tmp_path / given)]
    assert main(words) == 0
    assert f"drawn in {tmp_path / drawn}\n" in capsys.readouterr().out
    assert (tmp_path / drawn).is_file()


def test_a_picture_larger_than_the_runs_own_is_seen_as_the_gallery_is(trained, tmp_path):
    (tmp_path / "photos").mkdir()
    noise = np.random.default_rng(0)
    for i in range(8):
        Image.fromarray(noise.integers(0, 256, (40, 40), np.uint8)).save(tmp_path / "photos" / f"{i}.png")
    on = DataSettings(source="folder", root=tmp_path / "photos", image_size=40, channels=1, test_fraction=0,
                      cache=tmp_path / "cache")  # fmt: skip
    shutil.copy(tmp_path / "photos" / "5.png", tmp_path / "5.png")
    found, _ = search(load(trained.path), on, [tmp_path / "5.png"], tmp_path / "found.png", k=1)
    assert found[0][0]["row"] == 5
    assert found[0][0]["cosine"] == pytest.approx(1.0, abs=1e-5)


def test_a_picture_of_the_folder_does_not_find_itself_but_its_copies(trained, tmp_path, monkeypatch):
    (tmp_path / "photos").mkdir()
    rng = np.random.default_rng(0)
    for i in range(6):
        Image.fromarray(rng.integers(0, 256, (16, 16), np.uint8)).save(tmp_path / "photos" / f"{i}.png")
    shutil.copy(tmp_path / "photos" / "2.png", tmp_path / "photos" / "copy.png")
    shutil.copy(tmp_path / "photos" / "4.png", tmp_path / "elsewhere.png")
    on = DataSettings(source="folder", root=tmp_path / "photos", image_size=16, channels=1, test_fraction=0.3)
    monkeypatch.chdir(tmp_path / "photos")
    queries = ["2.png", tmp_path / "photos" / ".." / "photos" / "3.png", tmp_path / "elsewhere.png"]
    names = {2: "2.png", 3: "3.png"}
    for k, told in ((3, 3), (7, 6)):  # with one picture from elsewhere each of the others has 6 to find
        found, _ = search(load(trained.path), on, queries, tmp_path / "found.png", k=k, split="all")
        first, second, third = ([Path(hit["path"]).name for hit in hits] for hits in found)
        assert (first[0], third[0]) == ("copy.png", "4.png")
        assert names[2] not in first
        assert names[3] not in second
        assert [len(hits) for hits in found] == [told] * 3
        assert all(hits == sorted(hits, key=lambda hit: -hit["cosine"]) for hits in found)


def test_a_picture_of_more_than_8_bits_finds_itself(trained, tmp_path):
    (tmp_path / "photos").mkdir()
    rng = np.random.default_rng(0)
    for i in range(30):
        deep = (rng.random((16, 16)) * 4095).astype(np.uint16)  # 12 bits in 16
        Image.fromarray(deep).save(tmp_path / "photos" / f"{i:02d}.png")
    on = DataSettings(source="folder", root=tmp_path / "photos", image_size=16, channels=1, test_fraction=0)
    for i in (3, 17):
        shutil.copy(tmp_path / "photos" / f"{i:02d}.png", tmp_path / f"{i:02d}.png")
    queries = [tmp_path / f"{i:02d}.png" for i in (3, 17)]
    found, _ = search(load(trained.path), on, queries, tmp_path / "found.png", k=1)
    assert [one[0]["row"] for one in found] == [3, 17]


def test_an_image_of_a_class_that_only_test_images_have_is_named():
    pixels = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
    train = ImageSet("a", pixels, torch.tensor([0, 1, 0]), ["x", "y"])
    test = ImageSet("a", pixels, torch.tensor([2, 0, 2]), ["x", "y", "z"])
    both = picked([train, test], torch.tensor([1, 3, 4]))
    assert [describe(both, row, 1.0)["class"] for row in range(3)] == ["y", "z", "x"]
