"""Tables of labels: which line is of which image, and what is refused."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from prelax.data.listing import class_names, read_labels
from prelax.errors import PrelaxError, PrelaxWarning


def names(found) -> list[str]:
    return [Path(path).name for path in found.paths]


@pytest.mark.parametrize("header", ["path,label\n", ""])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_csv_gives_labels_and_what_it_misses_is_minus_one(tmp_path: Path, photo, read, header, delimiter):
    for name in ("x/1.png", "x/2.png", "y/3.png", "z.png"):
        photo(tmp_path / "set" / name)
    table = tmp_path / "labels.csv"
    table.write_text(
        (header + f"x/1.png,10\n3.png,9\ngone.png,9\n{tmp_path}/set/z.png,10\n").replace(",", delimiter),
        encoding="utf-8-sig",
    )
    found = read(tmp_path / "set", labels=table)
    assert found.classes == ["9", "10"]  # in number order, and the header is no class
    assert [found.classes[i] if i >= 0 else None for i in found.labels] == ["10", None, "9", "10"]


def test_a_csv_that_names_no_file_or_cannot_be_read_is_refused(tmp_path: Path, photo, read):
    photo(tmp_path / "set" / "1.png")
    table = tmp_path / "labels.csv"
    with pytest.raises(PrelaxError, match=r"data\.labels: .* cannot be read"):
        read(tmp_path / "set", labels=table)
    table.write_text("other.png,3\n")
    with pytest.raises(
        PrelaxError, match=r"no line of .* names a file under .*; the table has other\.png, the folder 1\.png$"
    ):
        read(tmp_path / "set", labels=table)
    table.write_text("1.png\n")
    with pytest.raises(PrelaxError, match=r"line 1 of .* has no label"):
        read(tmp_path / "set", labels=table)


@pytest.mark.parametrize(
    "table",
    [
        ",filename,label\n0,x/1.png,cat\n1,z.png,dog\n",  # as pandas writes one
        "Label;width;Image\ncat;3;x/1.png\ndog;;z.png\n",
        "path,label,split\nx/1.png,cat,train\nz.png,dog,test\n",
        'path,label\n"x/1.png","cat"\nz.png,dog\n',
    ],
)
def test_of_more_columns_those_are_taken_that_the_first_line_calls_so(tmp_path: Path, photo, read, table: str):
    for name in ("x/1.png", "z.png"):
        photo(tmp_path / "set" / name)
    (tmp_path / "labels.csv").write_text(table)
    found = read(tmp_path / "set", labels=tmp_path / "labels.csv", test_fraction=0.0)
    given = dict(zip(names(found), [found.classes[i] for i in found.labels], strict=True))
    assert given == {"1.png": "cat", "z.png": "dog"}


def test_columns_that_nobody_names_are_refused_and_so_is_what_is_no_table(tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text("1.png,cat,0.5\n")
    with pytest.raises(PrelaxError, match=r"line 1 of .* has 3 columns; keep those of path and label, or call them so"):
        read_labels(table)
    table.write_text("path,size,label\n1.png,4\n")
    with pytest.raises(PrelaxError, match=r"line 2 of .* has no label"):
        read_labels(table)
    table.write_text("path,label\n1.png," + "x" * 200_000)
    with pytest.raises(PrelaxError, match=r"line 2 of .* cannot be read: field larger than"):
        read_labels(table)


def test_a_column_that_no_name_tells_is_named_with_those_there_are(tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text(",filename,species,width,site\n0,1.jpg,fish,640,pond\n")
    with pytest.raises(
        PrelaxError,
        match=r"no column of .* is called label \(class, target or category will do\): rename the one with the labels; "
        r"its columns are filename, species, width, site$",
    ):
        read_labels(table)
    table.write_text("photo,width,class\n1.jpg,640,fish\n")
    with pytest.raises(PrelaxError, match=r"called path \(file, .* or id will do\).* are photo, width, class$"):
        read_labels(table)


@pytest.mark.parametrize(
    "text",
    [
        "filename,species\n1.jpg,fish\n2.jpg,bird\n",
        "species,filename\nfish,1.jpg\nbird,2.jpg\n",
        "class,photo\nfish,1.jpg\nbird,2.jpg\n",
        ",species,filename\n0,fish,1.jpg\n1,bird,2.jpg\n",
        ",photo,class\n0,1.jpg,fish\n1,2.jpg,bird\n",
    ],
)
def test_of_two_columns_one_name_tells_which_is_which(tmp_path: Path, text: str) -> None:
    (tmp_path / "labels.csv").write_text(text)
    assert read_labels(tmp_path / "labels.csv") == {"1.jpg": "fish", "2.jpg": "bird"}


def test_of_two_columns_a_name_that_may_be_a_label_or_an_image_turns_nothing(tmp_path: Path) -> None:
    for text in ("photo,name\n1.jpg,fish\n", "file,name\n1.jpg,fish\n", "1.jpg,fish\n2.jpg,file\n"):
        (tmp_path / "labels.csv").write_text(text)
        assert read_labels(tmp_path / "labels.csv")["1.jpg"] == "fish"
    (tmp_path / "labels.csv").write_text("1.jpg,file\n2.jpg,class\n")  # the labels of two images, and no header
    assert read_labels(tmp_path / "labels.csv") == {"1.jpg": "file", "2.jpg": "class"}


def test_a_table_that_is_no_csv_is_told_how_to_become_one(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pandas.DataFrame({"filename": ["1.jpg"], "label": ["cat"]}).to_parquet(tmp_path / "lab.parquet")
    with pytest.raises(
        PrelaxError, match=r"lab\.parquet is no CSV.*pd\.read_parquet\('lab\.parquet'\)\.to_csv\('lab\.csv'"
    ):
        read_labels(tmp_path / "lab.parquet")
    with zipfile.ZipFile(tmp_path / "lab.xlsx", "w") as sheet:
        sheet.writestr("xl/workbook.xml", "")
    with pytest.raises(PrelaxError, match=r"lab\.xlsx is no CSV.*pd\.read_excel\('lab\.xlsx'\).*as 'CSV UTF-8'"):
        read_labels(tmp_path / "lab.xlsx")
    np.savez(tmp_path / "lab.npz", labels=[1])
    with pytest.raises(PrelaxError, match=r"lab\.npz is no CSV.*: write a line path,label for each image$"):
        read_labels(tmp_path / "lab.npz")


def labelled(found) -> dict[str, str | None]:
    return {
        Path(path).name: found.classes[label] if label >= 0 else None
        for path, label in zip(found.paths, found.labels.tolist(), strict=True)
    }


@pytest.mark.parametrize("start", ["C:/x/", "C:\\x\\", "/home/else/photos/", "images/"])
def test_paths_of_another_machine_are_taken_from_where_they_agree_and_that_is_said(
    tmp_path: Path, photo, read, start: str
) -> None:
    for name in ("a/1.png", "a/2.png", "b/1.png"):
        photo(tmp_path / "set" / name)
    lines = [f"{start}{name}" for name in ("a/1.png,cat", "b/1.png,dog", "b/7.png,dog")]
    (tmp_path / "labels.csv").write_text(
        "\n".join(["pictures,kind", *lines]).replace("/", "\\" if "\\" in start else "/")
    )
    with pytest.warns(PrelaxWarning) as told:
        found = read(tmp_path / "set", labels=tmp_path / "labels.csv")
    given = [found.classes[label] if label >= 0 else None for label in found.labels.tolist()]
    assert given == ["cat", None, "dog"]
    assert len(told) == 2  # what is taken for what, and b/7.png
    assert "1.png is taken for a/1.png, and the others likewise" in str(told[0].message)
    assert "names no image under" in str(told[1].message)
    assert "b/7.png" in str(told[1].message)


def test_paths_of_a_test_tree_on_another_machine_are_its_own(tmp_path: Path, photo, read) -> None:
    for name in ("train/1.png", "test/1.png"):
        photo(tmp_path / "set" / name)
    (tmp_path / "labels.csv").write_text("/far/away/train/1.png,cat\n/far/away/test/1.png,dog\n")
    with pytest.warns(PrelaxWarning, match="is taken for"):
        train, test = (read(tmp_path / "set", split, labels=tmp_path / "labels.csv") for split in ("train", "test"))
    assert (labelled(train), labelled(test)) == ({"1.png": "cat"}, {"1.png": "dog"})
    (tmp_path / "labels.csv").write_text("test/1.png,dog\n")  # of the test image, not of the other
    with pytest.raises(PrelaxError, match=r"has no label for an image under .*/train; add some"):
        read(tmp_path / "set", labels=tmp_path / "labels.csv")


def test_an_image_of_another_folder_is_not_taken_for_one_that_is_called_alike(tmp_path: Path, photo, read) -> None:
    for name in ("site1/1.png", "site1/2.png"):
        photo(tmp_path / "set" / name)
    (tmp_path / "labels.csv").write_text("site2/1.png,cat\nsite2/2.png,dog\n")
    with pytest.raises(PrelaxError, match=r"no line of .*; the table has site2/1\.png, the folder site1/1\.png$"):
        read(tmp_path / "set", labels=tmp_path / "labels.csv")
    (tmp_path / "labels.csv").write_text("site1/1.png,cat\nsite2/2.png,dog\n")  # a line that fits: all are as written
    with pytest.warns(PrelaxWarning, match=r"a line of .* names no image under .*: site2/2\.png"):
        found = read(tmp_path / "set", labels=tmp_path / "labels.csv")
    assert labelled(found) == {"1.png": "cat", "2.png": None}


def test_names_without_an_extension_are_those_of_the_images_that_alone_are_called_so(
    tmp_path: Path, photo, read
) -> None:
    for name in ("x/img_1.jpg", "x/img_2.png", "y/img_3.jpg", "y/img_3.png"):
        photo(tmp_path / "set" / name)
    (tmp_path / "labels.csv").write_text("id,label\nimg_1,cat\nimg_2,dog\nimg_3,cow\n")
    with pytest.warns(PrelaxWarning) as told:
        found = read(tmp_path / "set", labels=tmp_path / "labels.csv")
    assert labelled(found) == {"img_1.jpg": "cat", "img_2.png": "dog", "img_3.jpg": None, "img_3.png": None}
    assert "img_1 is taken for img_1.jpg" in str(told[0].message)
    assert "names no image" in str(told[1].message)


def test_a_table_without_a_line_or_a_label_is_told_so(tmp_path: Path, photo, read) -> None:
    photo(tmp_path / "set" / "1.png")
    (tmp_path / "labels.csv").write_text("path,label\n")
    with pytest.raises(PrelaxError, match="has no line path,label; write one"):
        read(tmp_path / "set", labels=tmp_path / "labels.csv")
    (tmp_path / "labels.csv").write_text("path,label\n1.png,-1\n")
    with pytest.raises(PrelaxError, match="has no label for an image under"):
        read(tmp_path / "set", labels=tmp_path / "labels.csv")


def test_a_number_of_thousands_of_digits_is_a_name(tmp_path: Path) -> None:
    assert class_names(["10", "9", None]) == ["9", "10"]
    assert class_names(["9" * 5000, "10"]) == ["10", "9" * 5000]  # int() takes 4,300 digits at most


def test_a_csv_does_not_call_two_files_by_one_name(tmp_path: Path, photo, read):
    for name in ("train/a/0.png", "test/a/0.png", "train/a/1.png", "test/a/2.png"):
        photo(tmp_path / "set" / name)
    table = tmp_path / "labels.csv"
    table.write_text("0.png,cat\n1.png,cat\n2.png,dog\n")
    with pytest.warns(PrelaxWarning, match=r"a line of .* names no image under .*: 0\.png"):
        train = read(tmp_path / "set", labels=table)
    test = read(tmp_path / "set", "test", labels=table)
    assert train.labels.tolist() == [-1, 0]
    assert [test.classes[i] if i >= 0 else None for i in test.labels] == [None, "dog"]
    table.write_text("a/0.png,cat\ntest/a/0.png,dog\ntrain/a/1.png,cow\n")
    with pytest.warns(PrelaxWarning, match=r"names no image .*: a/0\.png"):
        assert read(tmp_path / "set", labels=table).labels.tolist() == [-1, 0]
    test = read(tmp_path / "set", "test", labels=table)
    assert [test.classes[i] if i >= 0 else None for i in test.labels] == ["dog", None]


def test_a_csv_names_a_test_tree_elsewhere_by_its_own_folder(tmp_path: Path, photo, read):
    for tree in ("tr", "te"):
        for i in range(3):
            photo(tmp_path / tree / f"{i}.png")
    table = tmp_path / "labels.csv"
    table.write_text("0.png,cat\n1.png,dog\nte/1.png,cow\n")
    given = {"test_root": tmp_path / "te", "labels": table}
    train, test = (read(tmp_path / "tr", split, **given) for split in ("train", "test"))
    assert [train.classes[i] if i >= 0 else None for i in train.labels] == ["cat", "dog", None]
    assert [test.classes[i] if i >= 0 else None for i in test.labels] == [None, "cow", None]


def test_a_csv_with_mistakes_says_which(tmp_path: Path, photo, read):
    for i in range(3):
        photo(tmp_path / "set" / f"{i}.png")
    table = tmp_path / "labels.csv"
    table.write_text("path,label\n0.png,a\n1.png,-1\n2.png,b\nno.png,a\nnot.png,b\n")
    with pytest.warns(PrelaxWarning, match=r"2 of 5 lines of .* name no image .*: no\.png, not\.png") as told:
        found = read(tmp_path / "set", labels=table)
    assert len(told) == 1
    assert (found.classes, found.labels.tolist()) == (["a", "b"], [0, -1, 1])
    table.write_text("path,label\n0.png,a\n1.png,b\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a header is no mistake
        read(tmp_path / "set", labels=table)
    table.write_text("0.png,a\n1.png,b\n./0.png,b\n")
    with pytest.raises(PrelaxError, match=r"line 3 of .* calls 0\.png 'b', and a line before it 'a'"):
        read(tmp_path / "set", labels=table)
    table.write_bytes("0.png,caf\u00e9\n".encode("cp1252"))
    with pytest.raises(PrelaxError, match=r"is not UTF-8: save it as such"):
        read(tmp_path / "set", labels=table)
