from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from leanbayes.data import load, read_uci
from leanbayes.errors import DataError

from .conftest import write_uci


def test_rows_and_columns_of_a_split(tmp_path: Path) -> None:
    data = write_uci(tmp_path)
    parts = read_uci(tmp_path, split=1)
    rows = np.loadtxt(tmp_path / "index_test_1.txt").astype(int)
    np.testing.assert_allclose(parts["test"][0], data[rows][:, :3])
    np.testing.assert_allclose(parts["test"][1], data[rows][:, 3:])
    assert parts["train"][0].shape == (27, 3)


@pytest.mark.parametrize("folder", ["UCI_Datasets/yacht/data", "yacht/data"])
def test_standardised_on_train_and_undone_by_the_statistics_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    write_uci(tmp_path / folder)
    monkeypatch.setenv("LEANBAYES_DATA", str(tmp_path))
    loaded = load("uci/yacht", split=1, val_fraction=0)
    raw = read_uci(tmp_path / folder, split=1)
    inputs, targets = loaded.train.tensors
    assert (loaded.task, loaded.input_shape, loaded.num_classes) == ("regression", (3,), None)
    assert inputs.dtype == targets.dtype == loaded.mean.dtype == torch.float32
    torch.testing.assert_close(inputs.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(inputs.std(0, correction=0)[[0, 2]], torch.ones(2))
    assert inputs[:, 1].abs().max() < 1e-6  # the constant feature: 0, and neither nan nor blown-up rounding
    assert abs(targets.mean()) < 1e-5
    for part, tensors in loaded.parts.items():
        x, y = tensors.tensors
        np.testing.assert_allclose((x * loaded.std + loaded.mean).numpy(), raw[part][0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose((y * loaded.y_std + loaded.y_mean).numpy(), raw[part][1], rtol=1e-4, atol=1e-5)


def test_a_validation_part_leaves_its_statistics_out(tmp_path: Path) -> None:
    write_uci(tmp_path)
    loaded = load("uci/yacht", root=tmp_path, val_fraction=0.2)
    assert [len(part) for part in loaded.parts.values()] == [22, 5, 3]
    assert abs(loaded.train.tensors[1].mean()) < 1e-5
    assert abs(loaded.val.tensors[1].mean()) > 1e-3


def test_raw_values_on_request(tmp_path: Path) -> None:
    write_uci(tmp_path)
    loaded = load("uci/yacht", root=tmp_path, normalise=False, val_fraction=0)
    np.testing.assert_allclose(loaded.train.tensors[1].numpy(), read_uci(tmp_path)["train"][1], rtol=1e-6)
    assert (loaded.y_mean, loaded.y_std) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("data.txt", "1 2 3 4\n1 2 3\n", "expected rows of equally many numbers"),
        ("data.txt", "1 2 three 4\n", "expected rows of equally many numbers"),
        ("data.txt", "1 2 nan 4\n", "expected finite numbers, received a number that is not finite"),
        ("data.txt", "1 2 3 4\n", "index_train_0.txt: expected whole numbers from 0 to 0"),
        ("index_features.txt", "0\n4\n", "expected whole numbers from 0 to 3"),
        ("index_features.txt", "0\n1.5\n", "expected whole numbers from 0 to 3"),
        ("index_features.txt", "0\n3\n", "expected a column that is no feature, received 3"),
        ("index_target.txt", "2\n3\n", "expected one column, received 2"),
        ("index_train_0.txt", "1\n2\n2\n", "expected every position once"),
        ("index_train_0.txt", "-1\n", "expected whole numbers from 0 to 29"),
    ],
)
def test_damage(tmp_path: Path, file: str, text: str, message: str) -> None:
    write_uci(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read_uci(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.filterwarnings("ignore:.*input contained no data")
def test_empty_missing_and_overlapping_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.txt: expected a file of numbers, received"):
        read_uci(tmp_path)
    write_uci(tmp_path)
    (tmp_path / "index_test_0.txt").write_text((tmp_path / "index_train_0.txt").read_text())
    with pytest.raises(DataError, match=r"index_test_0.txt: expected rows that are not in the training part"):
        read_uci(tmp_path)
    (tmp_path / "data.txt").write_text("")
    with pytest.raises(DataError, match=r"data.txt: expected finite numbers, received an empty file"):
        read_uci(tmp_path)


@pytest.mark.parametrize("split", [2, 20, -1, 0.5, True, "0"])
def test_a_split_that_is_not_there(tmp_path: Path, split: object) -> None:
    write_uci(tmp_path)
    with pytest.raises(DataError, match=r"expected (a split from 0 to 1|a whole number of at least 0)"):
        load("uci/yacht", root=tmp_path, split=split)  # type: ignore[arg-type]


def test_a_split_that_was_never_published_is_refused_before_any_download() -> None:
    with pytest.raises(DataError, match="uci/protein: expected a split from 0 to 4, received 5"):
        load("uci/protein", split=5)


def test_the_table_of_checksums_is_complete() -> None:
    lines = resources.files("leanbayes.data").joinpath("uci.md5").read_text().splitlines()
    assert all(re.fullmatch(r"[0-9a-f]{32}  [\w-]+/data/(data|index_\w+)\.txt", line) for line in lines)
    assert len(lines) == 8 * (3 + 2 * 20) + (3 + 2 * 5)
