"""The idx format of MNIST and its relatives: a magic number, the sizes, then the values, big-endian."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path

import numpy as np

from ..errors import DataError
from .arrays import Arrays, check_images, check_labels
from .download import Remote
from .files import Request, find
from .limits import Stream, open_packed, read_bytes

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MOST = 2**30  # bytes of values; the largest relative of MNIST has 640 MB
_MOST_DIMENSIONS = 8
_AGAIN = "delete it and fetch it again"

_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """The array in an idx file, plain or gzipped (by its first bytes, whatever its name), in native byte order.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "labels"
    ...     _ = path.write_bytes(bytes([0, 0, 0x08, 1, 0, 0, 0, 3, 7, 8, 9]))
    ...     read_idx(path)
    array([7, 8, 9], dtype=uint8)
    """
    path = Path(path)
    try:
        with open_packed(path, _MOST) as (file, capacity):
            return _parse(path, file, capacity)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: expected a whole gzip file, received a damaged one ({error}); {_AGAIN}") from error
    except OSError as error:
        raise DataError(f"{path}: expected a readable idx file, received {error.strerror or error}") from error


def _parse(path: Path, file: Stream, capacity: int) -> np.ndarray:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES or not 0 < magic[3] <= _MOST_DIMENSIONS:
        known = ", ".join(f"{code:02x}" for code in _TYPES)
        raise DataError(
            f"{path}: expected the magic number of an idx file (00 00, a type of {known}, then the number of "
            f"dimensions), received {magic.hex(' ') or 'an empty file'}; {_AGAIN}"
        )
    dtype, ndim = np.dtype(_TYPES[magic[2]]), magic[3]
    sizes = file.read(4 * ndim)
    if len(sizes) < 4 * ndim:
        raise DataError(f"{path}: expected {ndim} sizes after the magic number, received a file cut short; {_AGAIN}")
    shape = struct.unpack(f">{ndim}I", sizes)
    expected = math.prod(shape) * dtype.itemsize
    # Before reading: a header must not make us allocate more memory than the file can fill, nor hold sizes whose
    # product overflows, which numpy refuses.
    if expected > capacity or math.prod(n or 1 for n in shape) >= 2**62:
        raise DataError(
            f"{path}: expected {expected} bytes of values for shape {shape}, received a file that cannot hold more "
            f"than {capacity}; {_AGAIN}"
        )
    values = read_bytes(file, expected)
    if len(values) < expected or file.read(1):
        received = str(len(values)) if len(values) < expected else "more"
        raise DataError(f"{path}: expected {expected} bytes of values for shape {shape}, received {received}; {_AGAIN}")
    return values.view(dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def build(request: Request) -> Arrays:
    """MNIST, Fashion-MNIST or KMNIST: images (n, 1, 28, 28), labels (n,)."""
    parts = {part: _part(request, part) for part in request.parts}
    return Arrays("classification", parts, tuple(request.facts["classes"]))


def _part(request: Request, part: str) -> tuple[np.ndarray, np.ndarray]:
    image_path, label_path = (_find(request, file) for file in _FILES[part])
    images = check_images(image_path, read_idx(image_path), (28, 28))
    return images[:, None], check_labels(label_path, read_idx(label_path), len(images), len(request.facts["classes"]))


def _find(request: Request, file: str) -> Path:
    facts = request.facts
    paths = [f"{folder}/{file}{ending}" for folder in facts["folders"] for ending in ("", ".gz")]
    urls = tuple(f"{base}{file}.gz" for base in facts["urls"])
    return find(request, paths, Remote(f"{file}.gz", facts["md5"][file], urls))
