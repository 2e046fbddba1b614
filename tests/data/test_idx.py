from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from leanbayes.data import load, read_idx
from leanbayes.errors import DataError

from .conftest import idx_bytes, write_idx_set

DTYPES = [np.dtype(code) for code in ("u1", "i1", "i2", "i4", "f4", "f8")]
reuse = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


@reuse
@given(
    array=st.sampled_from(DTYPES).flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(max_dims=4, min_side=0))),
    zipped=st.booleans(),
)
def test_round_trip(tmp_path: Path, array: np.ndarray, zipped: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(idx_bytes(array)) if zipped else idx_bytes(array))
    read = read_idx(path)
    assert read.dtype == array.dtype
    assert read.dtype.isnative
    np.testing.assert_array_equal(read, array)


@reuse
@given(content=st.binary(max_size=60), zipped=st.booleans())
def test_any_bytes_give_an_array_or_a_data_error(tmp_path: Path, content: bytes, zipped: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(content) if zipped else content)
    try:
        read_idx(path)
    except DataError as error:
        message = str(error)
    else:
        message = str(path)
    assert str(path) in message


WHOLE = idx_bytes(np.arange(12, dtype=np.uint8).reshape(3, 4))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected the magic number.*received an empty file"),
        (b"\x89PNG" + WHOLE, "expected the magic number.*received 89 50 4e 47"),
        (b"\0\0\x07\x01" + WHOLE[4:], "expected the magic number.*received 00 00 07 01"),
        (WHOLE[:7], "expected 2 sizes"),
        (WHOLE[:-1], r"expected 12 bytes of values for shape \(3, 4\), received 11"),
        (WHOLE + b"!", r"expected 12 bytes of values for shape \(3, 4\), received more"),
        (b"\0\0\x08\x03" + b"\xff" * 12, ".*cannot hold more than 16"),
        (gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12), ".*cannot hold more than"),
        (gzip.compress(WHOLE)[:-9], "expected a whole gzip file, received a damaged one"),
        (gzip.compress(WHOLE)[:-8] + b"\0" * 8, "expected a whole gzip file, received a damaged one"),
        (gzip.compress(WHOLE)[:10] + b"\xff" * 20, "expected a whole gzip file, received a damaged one"),
    ],
    ids=["empty", "png", "type", "header", "short", "long", "huge", "huge-gz", "gz-short", "gz-sum", "gz-body"],
)
def test_damaged_files_are_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "damaged-idx1-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"damaged-idx1-ubyte: {message}"):
        read_idx(path)


def test_a_missing_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: expected a readable idx file, received No such file"):
        read_idx(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "MNIST/raw"),
        ("mnist", "MNIST"),
        ("mnist", "."),
        ("fashion-mnist", "FashionMNIST/raw"),
        ("kmnist", "KMNIST/raw"),
        ("kmnist", "kmnist"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_layouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, folder: str, zipped: bool) -> None:
    parts = write_idx_set(tmp_path / folder)
    if zipped:
        for path in list((tmp_path / folder).glob("*ubyte")):
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    monkeypatch.setenv("LEANBAYES_DATA", str(tmp_path))
    loaded = load(name, normalise=False, val_fraction=0, download=False)
    assert loaded.num_classes == 10
    assert loaded.input_shape == (1, 28, 28)
    for part in ("train", "test"):
        inputs, targets = loaded.parts[part].tensors
        np.testing.assert_allclose(inputs[:, 0].numpy() * 255, parts[part][0], atol=1e-4)
        np.testing.assert_array_equal(targets.numpy(), parts[part][1])


def test_a_bare_shared_folder_is_mnist_but_never_its_relatives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx_set(tmp_path)
    monkeypatch.setenv("LEANBAYES_DATA", str(tmp_path))
    assert len(load("mnist", download=False).test) == 40
    with pytest.raises(DataError, match="fashion-mnist: expected the file train-images-idx3-ubyte"):
        load("fashion-mnist", download=False)
    assert len(load("fashion-mnist", root=tmp_path, download=False).test) == 40  # named in the call: the user knows


def test_labels_out_of_range_or_of_another_length(tmp_path: Path) -> None:
    write_idx_set(tmp_path)
    path = tmp_path / "t10k-labels-idx1-ubyte"
    path.write_bytes(idx_bytes(np.full(40, 10, np.uint8)))
    with pytest.raises(
        DataError, match="t10k-labels-idx1-ubyte: expected labels from 0 to 9, received 10 at position 0"
    ):
        load("mnist", root=tmp_path)
    path.write_bytes(idx_bytes(np.zeros(39, np.uint8)))
    with pytest.raises(DataError, match=r"expected one label for each of the 40 images, received .*\(39,\)"):
        load("mnist", root=tmp_path)
    path.write_bytes(idx_bytes(np.zeros(40, np.float32)))
    with pytest.raises(DataError, match="expected whole-number labels, received float32"):
        load("mnist", root=tmp_path)


def test_images_of_another_size(tmp_path: Path) -> None:
    write_idx_set(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx_bytes(np.zeros((40, 8, 8), np.uint8)))
    with pytest.raises(
        DataError, match=r"expected uint8 images of shape \(n, 28, 28\), received uint8 of .*\(40, 8, 8\)"
    ):
        load("mnist", root=tmp_path)
