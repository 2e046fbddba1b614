"""MedMNIST's .npz files with three official parts; PneumoniaMNIST is in the catalogue."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from .arrays import Arrays, check_images, check_labels
from .download import Remote
from .files import Request, find
from .npz import read_npz

_FILE = "pneumoniamnist.npz"
_REMOTE = Remote(
    _FILE, "28209eda62fecd6e6a2d98b1501bb15f", (f"https://zenodo.org/record/6496656/files/{_FILE}?download=1",)
)


def read_medmnist(path: str | os.PathLike[str], *, num_classes: int = 2) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The "train", "val" and "test" part: grey images (n, 1, 28, 28) uint8 and labels (n,) int64.

    >>> import pathlib, tempfile
    >>> arrays = {f"{part}_images": np.zeros((2, 28, 28), np.uint8) for part in ("train", "val", "test")}
    >>> arrays |= {f"{part}_labels": np.array([[0], [1]], np.uint8) for part in ("train", "val", "test")}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(pathlib.Path(folder) / "a.npz", **arrays)
    ...     images, labels = read_medmnist(pathlib.Path(folder) / "a.npz")["val"]
    >>> images.shape, labels
    ((2, 1, 28, 28), array([0, 1]))
    """
    path, parts = Path(path), {}
    names = ("train", "val", "test")
    arrays = read_npz(path, [f"{part}_{what}" for part in names for what in ("images", "labels")])
    for part in names:
        images = check_images(path, arrays[f"{part}_images"], (28, 28))[:, None]
        labels = check_labels(path, arrays[f"{part}_labels"].reshape(-1), len(images), num_classes)
        parts[part] = (images, labels)
    return parts


def build(request: Request) -> Arrays:
    """PneumoniaMNIST."""
    path = find(request, [f"MedMNIST/{_FILE}", f"medmnist/{_FILE}", _FILE], _REMOTE)
    return Arrays("classification", read_medmnist(path), ("normal", "pneumonia"))
