"""Tiny files in the published layouts, and a machine without data: no variable, no cache, no network."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def bare_machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.path.name == "test_real.py":
        return
    monkeypatch.delenv("LEANBAYES_DATA", raising=False)
    monkeypatch.setattr("leanbayes.data.files.cache", lambda name: tmp_path / "cache" / name.replace("/", "-"))


def idx_bytes(array: np.ndarray) -> bytes:
    codes = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}
    header = bytes([0, 0, codes[array.dtype.str[1:]], array.ndim])
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return header + sizes + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_idx_set(folder: Path, count: int = 40, seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The four files of an MNIST-like set; labels go round the ten classes."""
    folder.mkdir(parents=True, exist_ok=True)
    random, parts = np.random.RandomState(seed), {}
    for part, stem in (("train", "train"), ("test", "t10k")):
        images = random.randint(0, 256, (count, 28, 28)).astype(np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        (folder / f"{stem}-images-idx3-ubyte").write_bytes(idx_bytes(images))
        (folder / f"{stem}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
        parts[part] = (images, labels)
    return parts


def cifar_batch(count: int = 10, classes: int = 10, key: str = "labels", seed: int = 0) -> dict[str, Any]:
    data = np.random.RandomState(seed).randint(0, 256, (count, 3072)).astype(np.uint8)
    return {"data": data, key: [i % classes for i in range(count)], "filenames": [f"{i}.png" for i in range(count)]}


def write_cifar10(folder: Path) -> dict[str, dict[str, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    batches = {name: cifar_batch(seed=seed) for seed, name in enumerate(names)}
    classes = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    for name, batch in {**batches, "batches.meta": {"label_names": classes}}.items():
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return batches


def write_uci(folder: Path, rows: int = 30, splits: int = 2) -> np.ndarray:
    folder.mkdir(parents=True, exist_ok=True)
    data = np.random.RandomState(0).normal(3.0, 2.0, (rows, 4))
    data[:, 1] = 7.1  # a feature that never changes, as naval propulsion has
    np.savetxt(folder / "data.txt", data)
    np.savetxt(folder / "index_features.txt", [0, 1, 2], fmt="%d")
    np.savetxt(folder / "index_target.txt", [3], fmt="%d")
    for split in range(splits):
        order = np.random.RandomState(split).permutation(rows)
        np.savetxt(folder / f"index_train_{split}.txt", order[rows // 10 :], fmt="%d")
        np.savetxt(folder / f"index_test_{split}.txt", order[: rows // 10], fmt="%d")
    return data
