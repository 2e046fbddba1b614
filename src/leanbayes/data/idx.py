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
from .limits import Stream, open_regular, read_bytes, unpacked

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP_MAGIC = b"\x1f\x8b"
_MOST = 2**30  # bytes of values; the largest relative of MNIST has 640 MB
_MOST_DIMENSIONS = 8
_AGAIN = "delete it and fetch it again"

_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_FOLDERS = {
    "mnist": ("MNIST/raw", "MNIST", "mnist", "."),  # bare names in a shared folder are MNIST's: it had them first
    "fashion-mnist": ("FashionMNIST/raw", "FashionMNIST", "fashion-mnist"),
    "kmnist": ("KMNIST/raw", "KMNIST", "kmnist"),
}
_URLS = {
    "mnist": ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
    "fashion-mnist": ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    "kmnist": ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
}
_MD5 = {  # of the .gz files, in the order of _FILES
    "mnist": (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    "fashion-mnist": (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    "kmnist": (
        "bdb82020997e1d708af4cf47b453dcf7",
        "e144d726b3acfaa3e44228e80efcd344",
        "5c965bf0a639b31b8f53240b1b52f4d7",
        "7320c461ea6c1c855c0b718fb2a4b134",
    ),
}
_CLASSES = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    "kmnist": ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
}


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """The array in an idx file, plain or gzipped (told by its first bytes, not by its name), in native byte order.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "labels"
    ...     _ = path.write_bytes(bytes([0, 0, 0x08, 1, 0, 0, 0, 3, 7, 8, 9]))
    ...     read_idx(path)
    array([7, 8, 9], dtype=uint8)
    """
    path = Path(path)
    try:
        with open_regular(path) as raw:
            zipped = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            size = os.fstat(raw.fileno()).st_size
            if not zipped:
                return _parse(path, raw, min(size, _MOST))
            with gzip.GzipFile(fileobj=raw) as file:
                return _parse(path, file, unpacked(size, _MOST))
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
    # Before anything is read: a header must not make us ask for more memory than the file can fill. The sizes of an
    # array without values are nobody's memory, but numpy refuses those whose product it cannot count.
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
    wanted = [part for part, asked in (("train", request.train), ("test", request.test)) if asked]
    return Arrays("classification", {part: _part(request, part) for part in wanted}, _CLASSES[request.name])


def _part(request: Request, part: str) -> tuple[np.ndarray, np.ndarray]:
    image_path, label_path = (_find(request, file) for file in _FILES[part])
    images = check_images(image_path, read_idx(image_path), (28, 28))
    return images[:, None], check_labels(label_path, read_idx(label_path), len(images), len(_CLASSES[request.name]))


def _find(request: Request, file: str) -> Path:
    name, published = request.name, [file for files in _FILES.values() for file in files]
    urls = tuple(f"{base}{file}.gz" for base in _URLS[name])
    paths = [f"{folder}/{file}{ending}" for folder in _FOLDERS[name] for ending in ("", ".gz")]
    return find(request, paths, Remote(f"{file}.gz", _MD5[name][published.index(file)], urls))
