"""SVHN, the cropped digits: MATLAB files with X (32, 32, 3, n) and y (n, 1), where 10 stands for the digit 0."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import numpy as np

from ..errors import DataError
from .arrays import Arrays, check_images, check_labels, damaged
from .download import Remote
from .files import Request, find
from .matlab import read_matlab

_FILES = {
    "train": ("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
    "test": ("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
}
_URL = "http://ufldl.stanford.edu/housenumbers/"


def read_svhn(path: str | os.PathLike[str]) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, 32, 32) uint8 and labels (n,) int64 from 0 to 9.

    >>> import pathlib, tempfile
    >>> from scipy.io import savemat
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "test_32x32.mat"
    ...     savemat(path, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[10], [3]])})
    ...     images, labels = read_svhn(path)
    >>> images.shape, labels
    ((2, 3, 32, 32), array([0, 3]))
    """
    path = Path(path)
    try:
        content = read_matlab(path, ("X", "y"))
    except (OSError, ValueError, struct.error, zlib.error) as error:
        expected = "a whole MATLAB file (version 5), received a damaged or foreign one"
        raise damaged(path, expected, error) from error
    if missing := [key for key in ("X", "y") if key not in content]:
        raise DataError(f"{path}: expected the variables X and y, received no {missing[0]}; fetch the file again")
    images, labels = content["X"], content["y"]
    if images.ndim != 4:
        raise DataError(f"{path}: expected X of shape (32, 32, 3, n), received {images.shape}; fetch the file again")
    images = check_images(path, images.transpose(3, 2, 0, 1), (3, 32, 32))
    stored = images.transpose(0, 1, 3, 2)  # in memory order; transposed in place, since a copy may be a gigabyte
    for at in range(0, len(stored), 1024):
        stored[at : at + 1024] = images[at : at + 1024].copy()
    images, labels = stored, labels.reshape(-1)
    # 10 stands for the digit 0; cleaned copies store 0
    return images, check_labels(path, np.where(labels == 10, 0, labels), len(images), 10)


def build(request: Request) -> Arrays:
    """SVHN without its "extra" part: images (n, 3, 32, 32), labels (n,)."""
    parts = {}
    for part in request.parts:
        file, md5 = _FILES[part]
        paths = [f"SVHN/{file}", f"svhn/{file}", file]
        parts[part] = read_svhn(find(request, paths, Remote(file, md5, (_URL + file,))))
    return Arrays("classification", parts, tuple("0123456789"))
