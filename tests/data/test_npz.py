from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leanbayes.data import load, read_lidc, read_medmnist
from leanbayes.errors import DataError


def medmnist(count: int = 10) -> dict[str, np.ndarray]:
    random, arrays = np.random.RandomState(0), {}
    for part in ("train", "val", "test"):
        arrays[f"{part}_images"] = random.randint(0, 256, (count, 28, 28)).astype(np.uint8)
        arrays[f"{part}_labels"] = (np.arange(count) % 2)[:, None].astype(np.uint8)
    return arrays


def lidc(count: int = 40) -> dict[str, np.ndarray]:
    random = np.random.RandomState(0)
    return {
        "images": random.randint(0, 256, (count, 64, 64)).astype(np.uint8),
        "masks": random.rand(count, 4, 64, 64) < 0.1,
        "patient": (np.arange(count) // 4).astype(np.int32),
    }


def save(path: Path, arrays: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


def test_pneumoniamnist_keeps_its_official_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "MedMNIST" / "pneumoniamnist.npz", medmnist())
    monkeypatch.setenv("LEANBAYES_DATA", str(tmp_path))
    loaded = load("pneumoniamnist", val_fraction=0.5)
    assert [len(part) for part in loaded.parts.values()] == [10, 10, 10]
    assert loaded.class_names == ("normal", "pneumonia")
    assert loaded.val.tensors[1].tolist() == [0, 1] * 5


def test_lidc_never_shares_a_patient(tmp_path: Path) -> None:
    arrays = lidc()
    path = save(tmp_path / "LIDC" / "lidc64.npz", arrays)
    loaded = load("lidc", root=tmp_path, normalise=False)
    assert loaded.task == "segmentation"
    assert [len(part) for part in loaded.parts.values()] == [24, 8, 8]
    images, masks = loaded.test.tensors
    assert images.shape == (8, 1, 64, 64)
    assert masks.shape == (8, 4, 64, 64)
    assert masks.dtype == torch.bool
    # Which patient an image is of, told by its content.
    of = {image.tobytes(): patient for image, patient in zip(arrays["images"], arrays["patient"], strict=True)}
    seen = [
        {of[(image * 255).round().byte().numpy().tobytes()] for image in part.tensors[0][:, 0]}
        for part in loaded.parts.values()
    ]
    assert sum(len(patients) for patients in seen) == len(set().union(*seen)) == 10
    assert [array.shape for array in read_lidc(path)] == [(40, 1, 64, 64), (40, 4, 64, 64), (40,)]


def test_lidc_cannot_be_downloaded(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"lidc64.npz(?s:.*)no public copy(?s:.*)FOLDER/LIDC/lidc64.npz"):
        load("lidc")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"val_labels": np.full((10, 1), 2)}, "expected labels from 0 to 1, received 2"),
        ({"val_labels": np.zeros((9, 1), int)}, "expected one label for each of the 10 images"),
        ({"test_images": np.zeros((10, 28, 28, 3), np.uint8)}, r"expected uint8 images of shape \(n, 28, 28\)"),
        ({"test_images": np.array([{}] * 10)}, "expected a whole .npz file of plain arrays.*allow_pickle"),
    ],
)
def test_wrong_medmnist(tmp_path: Path, change: dict[str, np.ndarray], message: str) -> None:
    path = save(tmp_path / "pneumoniamnist.npz", medmnist() | change)
    with pytest.raises(DataError, match=f"pneumoniamnist.npz: {message}"):
        read_medmnist(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"masks": np.zeros((40, 3, 64, 64), bool)}, "expected bool masks"),
        ({"masks": np.zeros((40, 4, 64, 64))}, "expected bool masks .* received float64"),
        ({"patient": np.zeros(39, int)}, "expected a whole number for each of the 40 patients"),
        ({"images": np.zeros((40, 32, 32), np.uint8)}, "expected uint8 images"),
    ],
)
def test_wrong_lidc(tmp_path: Path, change: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_lidc(save(tmp_path / "lidc64.npz", lidc() | change))


def test_damaged_and_foreign_files(tmp_path: Path) -> None:
    path = save(tmp_path / "pneumoniamnist.npz", medmnist())
    whole = path.read_bytes()
    np.save(tmp_path / "one.npy", np.zeros(3))
    for content in (b"", b"PK\x03\x04", whole[: len(whole) // 2], (tmp_path / "one.npy").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"pneumoniamnist.npz: expected a whole .npz file"):
            read_medmnist(path)
    save(path, {"train_images": np.zeros(3)})
    with pytest.raises(DataError, match=r"expected the arrays .* received no train_labels"):
        read_medmnist(path)
