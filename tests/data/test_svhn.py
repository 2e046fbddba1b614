from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from leanbayes.data import load, read_svhn
from leanbayes.errors import DataError


def write(path: Path, count: int = 20) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    images = np.random.RandomState(0).randint(0, 256, (32, 32, 3, count)).astype(np.uint8)
    savemat(path, {"X": images, "y": (np.arange(count) % 10 + 1)[:, None].astype(np.uint8)}, do_compression=True)
    return images


def test_ten_is_zero_and_axes_are_turned(tmp_path: Path) -> None:
    images = write(tmp_path / "test_32x32.mat")
    read, labels = read_svhn(tmp_path / "test_32x32.mat")
    np.testing.assert_array_equal(read[7, 2], images[:, :, 2, 7])
    assert labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0] * 2


@pytest.mark.parametrize("folder", ["SVHN", "svhn", "."])
def test_layouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    for part in ("train", "test"):
        write(tmp_path / folder / f"{part}_32x32.mat")
    monkeypatch.setenv("LEANBAYES_DATA", str(tmp_path))
    assert [len(part) for part in load("svhn").parts.values()] == [18, 2, 20]


def test_only_the_test_part_at_hand(tmp_path: Path) -> None:
    write(tmp_path / "test_32x32.mat")
    with pytest.raises(DataError, match=r"parts='test', normalise=trained_on"):
        load("svhn", root=tmp_path, download=False)
    loaded = load("svhn", root=tmp_path, parts="test", normalise=False, download=False)
    assert list(loaded.parts) == ["test"]


def test_damage(tmp_path: Path) -> None:
    path = tmp_path / "test_32x32.mat"
    write(path)
    whole = path.read_bytes()
    for content in (b"", b"not a MATLAB file at all" * 20, whole[: len(whole) // 2], whole[:200]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"test_32x32.mat: expected"):
            read_svhn(path)
    images = np.zeros((32, 32, 3, 4), np.uint8)
    for variables, message in (
        ({"X": images}, "received no y"),
        ({"X": images[..., 0], "y": np.ones((4, 1))}, r"expected X of shape \(32, 32, 3, n\)"),
        ({"X": images[:30], "y": np.ones((4, 1))}, r"expected uint8 images of shape \(n, 3, 32, 32\)"),
        ({"X": images, "y": np.ones((3, 1), np.uint8)}, "expected one label for each of the 4 images"),
        ({"X": images, "y": np.full((4, 1), 11, np.uint8)}, "expected labels from 0 to 9, received 11"),
    ):
        savemat(path, variables)
        with pytest.raises(DataError, match=message):
            read_svhn(path)
