"""LIDC lung nodules: crops of CT slices, each outlined by four annotators who disagree."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ..errors import DataError
from .arrays import Arrays, check_images
from .files import Request, find
from .npz import read_npz
from .splits import hold_out_groups

_FILE = "lidc64.npz"


def read_lidc(path: str | os.PathLike[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images (n, 1, 64, 64) uint8, masks (n, 4, 64, 64) bool (one an annotator) and patients (n,) of an .npz file.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "lidc64.npz"
    ...     np.savez(path, images=np.zeros((2, 64, 64), np.uint8), masks=np.zeros((2, 4, 64, 64), bool),
    ...              patient=np.array([7, 8]))
    ...     [array.shape for array in read_lidc(path)]
    [(2, 1, 64, 64), (2, 4, 64, 64), (2,)]
    """
    path = Path(path)
    arrays = read_npz(path, ["images", "masks", "patient"])
    images, masks, patient = check_images(path, arrays["images"], (64, 64)), arrays["masks"], arrays["patient"]
    if masks.dtype != np.bool_ or masks.shape != (len(images), 4, 64, 64):
        raise DataError(
            f"{path}: expected bool masks of shape ({len(images)}, 4, 64, 64), received {masks.dtype} of {masks.shape}"
        )
    if patient.shape != (len(images),) or not np.issubdtype(patient.dtype, np.integer):
        raise DataError(
            f"{path}: expected a whole number for each of the {len(images)} patients, received {patient.dtype} of "
            f"shape {patient.shape}"
        )
    return images[:, None], masks, patient


def build(request: Request) -> Arrays:
    """LIDC, split by patient (60, 20, 20 %), the same whatever the seed: there is no official split."""
    images, masks, patient = read_lidc(find(request, [f"LIDC/{_FILE}", f"lidc/{_FILE}", _FILE], None))
    rest, test = hold_out_groups(patient, 0.2, seed=0)
    train, val = (rest[index] for index in hold_out_groups(patient[rest], 0.25, seed=1))
    parts = {name: (images[index], masks[index]) for name, index in (("train", train), ("val", val), ("test", test))}
    return Arrays("segmentation", parts, ("background", "nodule"))
