from __future__ import annotations

import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from leanbayes.data import load, read_cifar
from leanbayes.errors import DataError

from .conftest import cifar_batch, write_cifar10
from .test_pickles import Shell


@pytest.mark.parametrize("packed", [False, True])
def test_cifar10_from_its_folder_and_from_its_archive(tmp_path: Path, packed: bool) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    batches = write_cifar10(folder)
    if packed:
        with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as archive:
            archive.add(folder, folder.name)
        for path in folder.iterdir():
            path.unlink()
    loaded = load("cifar10", root=tmp_path, normalise=False, val_fraction=0, download=False)
    assert loaded.input_shape == (3, 32, 32)
    assert loaded.class_names[:2] == ("airplane", "automobile")
    assert [len(part) for part in loaded.parts.values()] == [50, 10]
    inputs, targets = loaded.train.tensors
    wanted = np.concatenate([batches[f"data_batch_{i}"]["data"] for i in range(1, 6)]).reshape(50, 3, 32, 32)
    np.testing.assert_allclose(inputs.numpy() * 255, wanted, atol=1e-4)
    assert targets.tolist() == list(range(10)) * 5
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [folder.name] + packed * ["cifar-10-python.tar.gz"]  # nothing was unpacked
    )


def test_the_folder_itself_may_be_the_root_and_the_test_part_enough(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    for i in range(1, 6):
        (tmp_path / f"data_batch_{i}").unlink()
    assert len(load("cifar10", root=tmp_path, parts="test", normalise=False).test) == 10


def test_cifar100_takes_the_fine_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name in ("train", "test"):
        batch = cifar_batch(200, 100, "fine_labels") | {"coarse_labels": [0] * 200}
        (folder / name).write_bytes(pickle.dumps(batch))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"class {i}" for i in range(100)]}))
    loaded = load("cifar100", root=tmp_path, val_fraction=0.5)
    assert loaded.num_classes == 100
    assert sorted(loaded.val.tensors[1].tolist()) == list(range(100))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": None}, "expected an array under 'data', received NoneType"),
        ({"data": np.zeros((10, 3071), np.uint8)}, r"expected uint8 images of shape \(n, 3072\)"),
        ({"data": np.zeros((10, 3072), np.float32)}, "received float32"),
        ({"labels": [0] * 9}, "expected one label for each of the 10 images"),
        ({"labels": [0] * 9 + [10]}, "expected labels from 0 to 9, received 10 at position 9"),
        ({"labels": [0] * 9 + [-1]}, "received -1"),
        ({"labels": [0] * 9 + [2**80]}, "expected a list of whole numbers"),
        ({"labels": [[0]] * 10}, "expected a list of whole numbers"),
        ({"labels": "0123456789"}, "expected a list of whole numbers as labels, received str"),
    ],
)
def test_a_wrong_batch(tmp_path: Path, change: dict[str, object], message: str) -> None:
    (tmp_path / "test_batch").write_bytes(pickle.dumps(cifar_batch() | change))
    with pytest.raises(DataError, match=f"test_batch: {message}|test_batch.*{message}"):
        read_cifar(tmp_path, ["test_batch"])


def test_missing_keys_files_and_damage(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected the files test_batch, received .*No such file"):
        read_cifar(tmp_path, ["test_batch"])
    (tmp_path / "test_batch").write_bytes(pickle.dumps({"labels": []}))
    with pytest.raises(DataError, match="expected the keys 'data' and 'labels', received no 'data'"):
        read_cifar(tmp_path, ["test_batch"])
    (tmp_path / "test_batch").write_bytes(pickle.dumps(cifar_batch())[:1000])
    with pytest.raises(DataError, match="test_batch: expected a whole pickle"):
        read_cifar(tmp_path, ["test_batch"])
    (tmp_path / "test_batch").write_bytes(pickle.dumps({"data": Shell(), "labels": []}))
    with pytest.raises(DataError, match=r"test_batch: .*not allowed"):
        read_cifar(tmp_path, ["test_batch"])


def test_a_damaged_archive(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-py")
    path = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "cifar-10-batches-py" / "test_batch", "cifar-10-batches-py/test_batch")
    with pytest.raises(DataError, match=r"expected an archive that holds data_batch_1, received one without"):
        read_cifar(path, ["data_batch_1"])
    whole = path.read_bytes()
    for damaged in (b"", b"no archive at all", whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"cifar-10-python.tar.gz: expected a whole .tar.gz"):
            read_cifar(path, ["test_batch"])


def test_wrong_class_names(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    (tmp_path / "batches.meta").write_bytes(pickle.dumps({"label_names": ["cat"]}))
    with pytest.raises(DataError, match=r"batches.meta: expected 10 class names under 'label_names'"):
        load("cifar10", root=tmp_path)
