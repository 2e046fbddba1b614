"""Data of the user's own: what is read, how it is scaled, that later data are prepared alike, and what is refused."""

import numpy as np
import pytest
import torch

from leanbayes import config, data
from leanbayes.data import Preparation
from leanbayes.errors import ConfigError, DataError, LeanBayesWarning


def table(path, rows=60, header="age,colour,länge,kind", cells=None):
    """A table with numbers, texts, a name outside ASCII and a target of two classes."""
    lines = [header] if header else []
    for i in range(rows):
        lines.append(cells(i) if cells else f"{20 + i},{('rot', 'grün', 'blau')[i % 3]},{i / 7},{'ab'[i % 2]}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_table_is_split_scaled_and_encoded(tmp_path):
    found = data.read(table(tmp_path / "t.csv"), target="kind")
    assert repr(found) == "DataSet('t.csv', classification: 42 train, 6 val, 12 test; inputs (5,), 2 classes)"
    assert found.class_names == ("a", "b")
    known = found.preparation
    assert known.columns == ("age", "colour", "länge")
    assert known.categories == ((), ("blau", "grün", "rot"), ())
    x, y = found.train.tensors
    torch.testing.assert_close(x[:, [0, 4]].mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(x[:, [0, 4]].std(0, correction=0), torch.ones(2), atol=1e-5, rtol=0)
    assert x[:, 1:4].unique().tolist() == [0, 1]
    assert bool((x[:, 1:4].sum(1) == 1).all())
    ages = x[:, 0].double() * known.std[0] + known.mean[0]
    assert torch.equal((ages.round() % 2).long(), y)  # rows are whole: even ages are of class a
    parts = torch.cat([part.tensors[0][:, 0] for part in found.parts.values()])
    assert len(parts.unique()) == 60  # every row once


def test_later_data_are_prepared_like_the_training_data(tmp_path):
    """By name, whatever the order of the columns, with or without the target."""
    path = table(tmp_path / "t.csv")
    found = data.read(path, target="kind")
    (tmp_path / "new.csv").write_text("länge,kind,colour,age\n0.5,b,rot,30\n", encoding="utf-8")
    (tmp_path / "bare.csv").write_text("colour;age;länge\nrot;30;0.5\n", encoding="utf-8")
    known = found.preparation
    wanted = [(30 - known.mean[0]) / known.std[0], 0, 0, 1, (0.5 - known.mean[4]) / known.std[4]]
    for name in ("new.csv", "bare.csv"):
        later = data.read(tmp_path / name, like=found)
        torch.testing.assert_close(later.test.tensors[0][0], torch.tensor(wanted))
    assert data.read(tmp_path / "new.csv", like=known).test.tensors[1].tolist() == [1]
    assert data.read(tmp_path / "bare.csv", like=known).task == "unlabelled"
    again = config.from_dict(config.to_dict(known))  # as a model file has it
    assert again == known


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("30,lila,1.0,a", r"line 2: column 'colour': expected one of .*blau, grün, rot, received 'lila'"),
        ("x,rot,1.0,a", r"line 2: column 'age': expected a finite number, received 'x'"),
        (",rot,1.0,a", r"line 2: column 'age': expected a value, received none \(1 of 1"),
        ("inf,rot,1.0,a", r"column 'age': expected a finite number, received 'inf'"),
        ("30,,1.0,a", r"column 'colour': expected a value"),
        ("30,rot,1.0,c", r"expected the classes of training, a, b, received 'c'"),
        ("30,rot,1.0", r"line 2: expected 4 cells as in the first line, received 3"),
    ],
)
def test_later_data_that_differ_are_refused_with_their_line(tmp_path, cell, message):
    found = data.read(table(tmp_path / "t.csv"), target="kind")
    (tmp_path / "new.csv").write_text(f"age,colour,länge,kind\n{cell}\n", encoding="utf-8")
    with pytest.raises(DataError, match=message):
        data.read(tmp_path / "new.csv", like=found)


def test_columns_that_differ_are_refused(tmp_path):
    found = data.read(table(tmp_path / "t.csv"), target="kind")
    (tmp_path / "new.csv").write_text("age,length\n30,1\n")
    with pytest.raises(DataError, match="received none called 'colour', 'länge'; it has age, length"):
        data.read(tmp_path / "new.csv", like=found)


def test_missing_values_are_refused_or_filled(tmp_path):
    def cells(i):
        return f"{'' if i == 5 else i},{'NA' if i == 7 else 'pq'[i % 2]},{i % 2}"

    path = table(tmp_path / "t.csv", header="size,sort,y", cells=cells)
    with pytest.raises(DataError, match=r"line 7: column 'size': expected a value.*missing='fill'"):
        data.read(path, target="y", test_fraction=0, val_fraction=0)
    found = data.read(path, target="y", missing="fill", test_fraction=0, val_fraction=0)
    x = found.train.tensors[0]
    assert x[5].tolist() == [0, 0, 1]  # the mean of training
    assert x[7, 1:].tolist() == [0, 0]  # none of the known texts
    (tmp_path / "new.csv").write_text("size,sort\n?,r\n")
    assert data.read(tmp_path / "new.csv", like=found).test.tensors[0].tolist() == [[0, 0, 0]]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "expected rows of data, received an empty file"),
        ("\n \n", {}, "empty file"),
        ("a,y\n", {}, "received a header alone"),
        ("a,y\n1,2\n", {"target": None}, "expected the name of the target column, received none; it has a, y"),
        ("a,y\n1,2\n", {"target": "z"}, "expected a column 'z' to predict, received a, y"),
        ("a,a,y\n1,2,3\n", {}, "received 'a' twice"),
        ("a,,y\n1,2,3\n", {}, "a name for every column, received none for column 2"),
        ("y\n" + "0\n1\n" * 20, {}, "expected at least one column beside the target"),
        ("a,y\n" + "1,0\n" * 40, {}, "expected at least two classes, received only '0'"),
        ("a,y\n" + "1,0\n" * 40, {"task": "regression"}, "expected targets that differ"),
        ("a,y\n1,0\n2,1\n", {}, "expected enough data to hold 0.2 out as test, received 2"),
        ("a,y\n" + "1,\n2,1\n" * 20, {}, "expected a target in every row, .* have none"),
        ("a,y\n" + "1,0.5\n2,1.5\n" * 20, {"task": "classification"}, "whole numbers as classes, received 0.5"),
        ("a,y\n" + "1,p\n2,q\n" * 20, {"task": "regression"}, "expected numbers as targets, received the text 'p'"),
        ("a,y\n" + "1,0\n" * 30 + "x,1\n" + "2,1\n" * 30, {},
         r"line 32: column 'a': expected a number .* received 'x'"),
        ('a;y\n' + '"1,5";0\n2,5;1\n' * 20, {}, "expected decimal points"),
        ("a,y\n" + "".join(f"n{i},{i % 2}\n" for i in range(60)), {},
         r"received \d+ different ones in \d+ rows.*drop a"),
        ("a,y\n" + f"1{'0' * 400},0\n2,1\n" * 20, {}, "column 'a': expected a finite number"),
        ("a,y\n" + "1e300,0\n-1e300,1\n" * 20, {}, "expected numbers within a float32"),
        ("a,y\n" + "".join(f"{i},n{i}\n" for i in range(40)), {}, "expected classes of several data each, received 40"),
        ("a,y\n" + "nan,0\nnan,1\n" * 20, {}, "column 'a': expected values, received none"),
        ('a,y\n"1,0\n', {}, "expected a readable .csv file"),
    ],
)  # fmt: skip
def test_nonsense_is_refused(tmp_path, text, options, message):
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        data.read(path, **{"target": "y", **options})


def test_bytes_that_are_no_text_and_names_that_are_no_file_are_refused(tmp_path):
    (tmp_path / "t.csv").write_bytes(bytes(range(256)))
    with pytest.raises(DataError, match="expected text in UTF-8"):
        data.read(tmp_path / "t.csv", target="y")
    with pytest.raises(DataError, match="does not exist"):
        data.read(tmp_path / "no.csv", target="y")
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"expected .csv, .*or a folder of images"):
        data.read(tmp_path / "t.xlsx")
    with pytest.raises(DataError, match="source: expected a path"):
        data.read(3)


def test_what_a_target_means(tmp_path):
    """Texts and few whole numbers are classes, numbers are regressed on; huge whole numbers keep their names."""
    cases = {
        "text": (lambda i: f"{i},{'xyz'[i % 3]}", "classification", ("x", "y", "z")),
        "codes": (lambda i: f"{i},{10 if i % 2 else 9}", "classification", ("9", "10")),
        "huge": (lambda i: f"{i},{2**40 + i % 2}", "classification", (str(2**40), str(2**40 + 1))),
        "beyond": (lambda i: f"{i},{2**60 + i % 2}", "classification", (str(2**60), str(2**60 + 1))),
        "ids": (lambda i: f"{i},{i % 45}", "regression", ()),
        "counts": (lambda i: f"{i},{i}", "regression", ()),
        "real": (lambda i: f"{i},{i / 10}", "regression", ()),
    }
    for name, (cells, task, classes) in cases.items():
        found = data.read(table(tmp_path / f"{name}.csv", header="a,y", cells=cells), target="y")
        assert (name, found.task, found.class_names) == (name, task, classes)
    y = found.train.tensors[1]
    assert y.shape == (42, 1)
    assert abs(float(y.mean())) < 1e-5


def test_a_table_without_a_header_has_numbers_as_names(tmp_path):
    found = data.read(table(tmp_path / "t.csv", header="", cells=lambda i: f"{i},{i % 2}"), target="1")
    assert found.preparation.columns == ("0",)


def test_arrays(tmp_path):
    """x and y, or parts; images of bytes, channels last; a .npy with targets in another."""
    rng = np.random.RandomState(0)
    x, y = rng.randint(0, 256, (50, 6, 5, 3)).astype(np.uint8), np.arange(50) % 5 + 1
    np.savez(tmp_path / "a.npz", x=x, y=y)
    found = data.read(tmp_path / "a.npz")
    assert (found.input_shape, found.class_names) == ((3, 6, 5), ("1", "2", "3", "4", "5"))
    original = found.train.tensors[0] * found.std[:, None, None] + found.mean[:, None, None]
    assert 0 <= float(original.min()) < float(original.max()) <= 1 + 1e-6
    np.savez(tmp_path / "b.npz", X_train=x[:30], Y_train=y[:30], X_test=x[30:], Y_test=y[30:])
    found = data.read(tmp_path / "b.npz", val_fraction=0)
    assert {name: len(part) for name, part in found.parts.items()} == {"train": 30, "test": 20}
    np.save(tmp_path / "x.npy", x[:, 0, 0].astype(float))
    np.save(tmp_path / "y.npy", rng.randn(50, 1))
    found = data.read(tmp_path / "x.npy", target=str(tmp_path / "y.npy"))
    assert (found.task, found.input_shape) == ("regression", (3,))
    later = data.read(tmp_path / "x.npy", like=found)
    assert later.task == "unlabelled"
    original = later.test.tensors[0][:3].numpy() * found.std.numpy() + found.mean.numpy()
    np.testing.assert_allclose(original, x[:3, 0, 0], rtol=1e-5)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros((9, 2)), "b": np.zeros(9)}, "expected arrays called x and y.*received a, b"),
        ({"x": np.zeros((9, 2)), "y": np.zeros(8)}, "expected a target for each of 9 data, received 8"),
        ({"x": np.zeros(9), "y": np.zeros(9)}, r"shape \(9,\); one datum needs \[None\]"),
        ({"x": np.zeros((9, 2))}, "expected targets to learn from, received none"),
        ({"x": np.zeros((9, 2)), "y": np.eye(9)}, "expected one target for each datum"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0)}, r"received float64 of shape \(0, 2\)"),
        ({"x": np.full((40, 2), np.nan), "y": np.arange(40) % 2}, "row 0 of the training part has others"),
        ({"x": np.array([["a"]]), "y": np.zeros(1)}, "expected numbers"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message):
        data.read(tmp_path / "a.npz")


def test_later_arrays_of_another_shape_or_scale_are_refused(tmp_path):
    x = np.random.RandomState(0).randint(0, 256, (40, 4, 4)).astype(np.uint8)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(40) % 2)
    found = data.read(tmp_path / "a.npz")
    np.save(tmp_path / "wide.npy", np.zeros((2, 1, 4, 5)))
    with pytest.raises(DataError, match=r"expected data of shape \(1, 4, 4\).*received \(1, 4, 5\)"):
        data.read(tmp_path / "wide.npy", like=found)
    np.save(tmp_path / "floats.npy", x.astype(float))
    with pytest.raises(DataError, match="expected whole numbers from 0 to 255 as in training, or numbers from 0 to 1"):
        data.read(tmp_path / "floats.npy", like=found)
    np.save(tmp_path / "unit.npy", x / 255)
    np.save(tmp_path / "bytes.npy", x)
    pair = [data.read(tmp_path / name, like=found).test.tensors[0] for name in ("unit.npy", "bytes.npy")]
    torch.testing.assert_close(*pair)


def picture(path, size=(6, 6), colour=False, value=100):
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0], 3) if colour else (size[1], size[0])
    image.fromarray(np.full(shape, value, np.uint8)).save(path)


def test_folders_of_images(tmp_path):
    """A folder is a class; grey or colour by what is there; single images and flat folders later."""
    for name, value in (("猫", 40), ("Hund", 200)):
        for i in range(20):
            picture(tmp_path / "all" / name / f"{i}.png", value=value + i)
    found = data.read(tmp_path / "all")
    assert (found.class_names, found.input_shape) == (("Hund", "猫"), (1, 6, 6))
    assert {name: len(part) for name, part in found.parts.items()} == {"train": 28, "val": 4, "test": 8}
    later = data.read(tmp_path / "all" / "猫" / "0.png", like=found).test.tensors[0]
    pixels = later * found.std[:, None, None] + found.mean[:, None, None]
    torch.testing.assert_close(pixels, torch.full((1, 1, 6, 6), 40 / 255))
    assert data.read(tmp_path / "all" / "猫", like=found).task == "unlabelled"
    assert data.read(tmp_path / "all", like=found).test.tensors[1].tolist() == [0] * 20 + [1] * 20
    picture(tmp_path / "big.png", size=(7, 6))
    with pytest.raises(DataError, match=r"expected data of shape \(1, 6, 6\).*received \(1, 6, 7\).*size"):
        data.read(tmp_path / "big.png", like=found)
    resized = data.read(tmp_path / "all", size=4)
    assert data.read(tmp_path / "big.png", like=resized).test.tensors[0].shape == (1, 1, 4, 4)
    picture(tmp_path / "red.png", colour=True)
    with pytest.raises(DataError, match="expected a grey image as in training"):
        data.read(tmp_path / "red.png", like=found)


def test_folders_that_are_no_classes_are_refused(tmp_path):
    picture(tmp_path / "a" / "cat" / "0.png")
    (tmp_path / "a" / "dog").mkdir()
    with pytest.raises(DataError, match="expected images of the class 'dog', received none"):
        data.read(tmp_path / "a")
    picture(tmp_path / "a" / "dog" / "0.png", size=(8, 8))
    with pytest.raises(DataError, match=r"expected an image of 6x6 pixels, as 0.png is, received 8x8; give a size"):
        data.read(tmp_path / "a")
    (tmp_path / "a" / "dog" / "0.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="expected a readable image"):
        data.read(tmp_path / "a")
    picture(tmp_path / "flat" / "0.png")
    with pytest.raises(DataError, match="expected a folder for each class and nothing else, received the image"):
        data.read(tmp_path / "flat")
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="received none"):
        data.read(tmp_path / "none")
    for i in range(20):
        picture(tmp_path / "one" / "cat" / f"{i}.png")
    (tmp_path / "one" / "cat" / "notes.txt").write_text("")
    with (
        pytest.warns(LeanBayesWarning, match=r"1 files that are no images are left out, such as notes.txt"),
        pytest.raises(DataError, match="expected at least two classes, received only 'cat'"),
    ):
        data.read(tmp_path / "one")


def test_official_parts_of_a_folder(tmp_path):
    for part, count in (("train", 6), ("test", 2)):
        for name in ("cat", "dog"):
            for i in range(count):
                picture(tmp_path / part / name / f"{i}.png", value=10 * i)
    found = data.read(tmp_path, val_fraction=0)
    assert {name: len(part) for name, part in found.parts.items()} == {"train": 12, "test": 4}


@pytest.mark.extra
def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = {"a": list(range(40)), "colour": ["red", "blue"] * 20, "y": [float(i) for i in range(40)]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "t.parquet")
    found = data.read(tmp_path / "t.parquet", target="y")
    assert (found.task, found.preparation.categories) == ("regression", ((), ("blue", "red")))
    (tmp_path / "u.parquet").write_bytes(b"no")
    with pytest.raises(DataError, match=r"expected a readable .parquet file"):
        data.read(tmp_path / "u.parquet", target="y")


def test_a_preparation_that_contradicts_itself_is_refused():
    good = Preparation("table", "regression", (2,), (0.0, 0.0), (1.0, 1.0), columns=("a", "b"), categories=((), ()))
    for change in ({"mean": [0]}, {"std": [1, 0]}, {"columns": ["a"]}, {"categories": [["x", "y"], []]}, {"y_std": 0}):
        with pytest.raises(ConfigError, match="Preparation"):
            config.from_dict({**config.to_dict(good), **change})
