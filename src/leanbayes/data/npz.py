"""Arrays of numbers in .npy and .npz files, without pickles, and with a limit on memory."""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from .arrays import damaged
from .limits import Stream, open_regular, read_bytes, unpacked

_MOST = 2 * 2**30  # bytes of all arrays of a file
_MOST_DIMENSIONS, _MOST_HEADER = 8, 10_000
_HEADERS: dict[tuple[int, int], tuple[Any, int]] = {  # by version: the reader of a header, the width of its length
    (1, 0): (np.lib.format.read_array_header_1_0, 2),
    (2, 0): (np.lib.format.read_array_header_2_0, 4),
}


def read_npz(path: str | os.PathLike[str], keys: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays under `keys`; pickled objects are refused.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(pathlib.Path(folder) / "a.npz", x=np.arange(3))
    ...     read_npz(pathlib.Path(folder) / "a.npz", ["x"])
    {'x': array([0, 1, 2])}
    """
    path, arrays = Path(path), {}
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            left = unpacked(os.fstat(file.fileno()).st_size, _MOST)
            present = set(archive.namelist())
            for key in keys:
                if (name := f"{key}.npy") not in present:
                    continue
                member = archive.getinfo(name)
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError(f"{name} is packed in a way that numpy does not use")
                with archive.open(member) as content:
                    arrays[key] = read_array(content, min(member.file_size, left))
                left -= arrays[key].nbytes
    except Exception as error:  # of zipfile, zlib, struct or numpy
        expected = "a whole .npz file of plain arrays, received a damaged or foreign one"
        raise damaged(path, expected, error) from error
    if missing := [key for key in keys if key not in arrays]:
        raise DataError(f"{path}: expected the arrays {', '.join(keys)}, received no {missing[0]}; fetch it again")
    return arrays


def read_npy(path: str | os.PathLike[str]) -> np.ndarray:
    """The array of a .npy file; pickled objects are refused.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(pathlib.Path(folder) / "a.npy", np.arange(3))
    ...     read_npy(pathlib.Path(folder) / "a.npy")
    array([0, 1, 2])
    """
    path = Path(path)
    try:
        with open_regular(path) as file:
            return read_array(file, os.fstat(file.fileno()).st_size)
    except Exception as error:  # of struct, numpy or Python's parser
        expected = "a .npy file of numbers, received a damaged or foreign one"
        raise damaged(path, expected, error, "write it with numpy.save") from error


def read_array(file: Stream, most: int) -> np.ndarray:
    """An array in the .npy format whose values take at most `most` bytes."""
    version = np.lib.format.read_magic(io.BytesIO(file.read(8)))
    if version not in _HEADERS:
        raise ValueError(f"expected version 1 or 2 of the format, received {version}")
    read, width = _HEADERS[version]
    size = file.read(width)
    if (length := int.from_bytes(size, "little")) > _MOST_HEADER:
        raise ValueError(f"a header of {length:,} bytes")
    shape, fortran, dtype = read(io.BytesIO(size + file.read(length)))
    if dtype.hasobject:
        raise ValueError("pickled objects, which allow_pickle=False does not read")
    if dtype.kind not in "biuf" or dtype.subdtype is not None or len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"expected numbers of at most {_MOST_DIMENSIONS} dimensions, received {str(dtype)[:60]}")
    if not all(type(n) is int and n >= 0 for n in shape) or math.prod(n or 1 for n in shape) >= 2**62:
        raise ValueError("the shape is none")
    # before reading: a header must not make us allocate more memory than the file can fill
    expected = math.prod(shape) * dtype.itemsize
    if expected > most:
        raise ValueError(f"an array of {expected:,} bytes in a file that cannot hold more than {most:,}")
    values = read_bytes(file, expected)
    if len(values) < expected or file.read(1):
        received = "fewer" if len(values) < expected else "more"
        raise ValueError(f"expected {expected:,} bytes of values, received {received}")
    return values.view(dtype).reshape(shape, order="F" if fortran else "C")
