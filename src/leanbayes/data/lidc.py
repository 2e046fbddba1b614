"""LIDC lung nodules: crops of CT slices, each outlined by four annotators."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from .arrays import Arrays, check_images
from .files import Request, find
from .npz import read_npz
from .pickles import read_pickle, unwrapped
from .splits import hold_out_groups

_FILES = ("lidc64.npz", "data_lidc.pickle")
_STEPS = 5_000_000  # instructions of the published pickle: five arrays for each of 15,096 slices


def read_lidc(path: str | os.PathLike[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images (n, 1, 64, 64) uint8, masks (n, 4, 64, 64) bool (one an annotator) and patients (n,) of an .npz file.

    A .pickle is the published file of 128x128 crops: {name: {"image": pixels in [0, 1], "masks": four of zeros and
    ones, "series_uid": the scan}}. Its pixels are rounded to 256 grey values. Scans (1,018 of 1,010 patients) are
    taken for patients.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "lidc64.npz"
    ...     np.savez(path, images=np.zeros((2, 64, 64), np.uint8), masks=np.zeros((2, 4, 64, 64), bool),
    ...              patient=np.array([7, 8]))
    ...     [array.shape for array in read_lidc(path)]
    [(2, 1, 64, 64), (2, 4, 64, 64), (2,)]
    """
    path = Path(path)
    if path.suffix in (".pickle", ".pkl"):
        return _read_pickle(path)
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


def _read_pickle(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    slices = read_pickle(path.read_bytes(), path, _STEPS)
    if not slices:
        raise DataError(f"{path}: expected at least one slice, received none")
    images, masks, scans = zip(*(_slice(f"{path}: {name}", one) for name, one in slices.items()), strict=True)
    if len(shapes := {image.shape for image in images}) > 1:
        raise DataError(f"{path}: expected slices of one size, received {sorted(shapes)}")
    return np.stack(images)[:, None], np.stack(masks), np.unique(scans, return_inverse=True)[1]


def _slice(where: str, one: Any) -> tuple[np.ndarray, np.ndarray, str]:
    """The pixels, masks and scan of a slice."""
    if not isinstance(one, dict) or not {"image", "masks", "series_uid"} <= one.keys():
        keys = ", ".join(map(str, one))[:80] if isinstance(one, dict) else type(one).__name__
        raise DataError(f"{where}: expected 'image', 'masks' and 'series_uid', received {keys}")
    image, masks = unwrapped(one["image"]), one["masks"]
    marked = [unwrapped(mask) for mask in masks] if isinstance(masks, list) else []
    if not isinstance(image, np.ndarray) or image.ndim != 2 or not ((image >= 0) & (image <= 1)).all():
        raise DataError(f"{where}: expected an image (height, width) of pixels from 0 to 1, received another")
    if len(marked) != 4 or not all(isinstance(mask, np.ndarray) and mask.shape == image.shape for mask in marked):
        raise DataError(f"{where}: expected four masks of shape {image.shape}, received others")
    if not all(((mask == 0) | (mask == 1)).all() for mask in marked):
        raise DataError(f"{where}: expected masks of zeros and ones, received other values")
    return np.rint(image * 255).astype(np.uint8), np.stack(marked).astype(bool), str(one["series_uid"])


def build(request: Request) -> Arrays:
    """LIDC, split by patient (60, 20, 20 %), the same whatever the seed: there is no official split."""
    paths = [place + name for name in _FILES for place in ("LIDC/", "lidc/", "")]
    return by_group(*read_lidc(find(request, paths, None)), names=("background", "nodule"))


def by_group(images: np.ndarray, masks: np.ndarray, groups: np.ndarray, names: tuple[str, ...]) -> Arrays:
    """Images and masks split into train, val and test (60, 20, 20 %) by patient."""
    rest, test = hold_out_groups(groups, 0.2, seed=0)
    train, val = (rest[index] for index in hold_out_groups(groups[rest], 0.25, seed=1))
    index = {"train": train, "val": val, "test": test}
    parts = {name: (images[at], masks[at]) for name, at in index.items()}
    return Arrays("segmentation", parts, names, groups={name: groups[at] for name, at in index.items()})
