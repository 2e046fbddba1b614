"""Arrays of numbers in MATLAB files of version 5, with a limit on what is unpacked, which scipy does not have.

A file is 128 bytes of header, then elements: a type, a length, the content. A variable is an element of type 14, or one
of type 15, which is such an element packed by zlib. Its parts are flags, sizes, name, values ("MAT-File Format", The
MathWorks, 2019, chapter 1).
"""

from __future__ import annotations

import io
import math
import os
import struct
import zlib
from collections.abc import Collection
from pathlib import Path

import numpy as np

from .limits import Stream, open_regular, read_bytes, unpacked

_MATRIX, _PACKED = 14, 15
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
_COMPLEX = 0x08
_MOST = 2 * 2**30  # bytes of values; the largest part of SVHN has 1.6 GB
_MOST_VARIABLES = 1000


def read_matlab(path: Path, names: Collection[str]) -> dict[str, np.ndarray]:
    """The named variables in the memory order of the file (the first index runs fastest); others are skipped.

    A damaged file raises an OSError, a ValueError, a struct.error or a zlib.error.
    """
    found: dict[str, np.ndarray] = {}
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        order = _byte_order(file.read(128))
        left, at = unpacked(size, _MOST), 128
        for _ in range(_MOST_VARIABLES):
            if at >= size or len(found) == len(names):
                return found
            kind, length = struct.unpack(f"{order}II", file.read(8))
            if kind not in (_MATRIX, _PACKED) or length > size - at - 8:
                raise ValueError(f"an element of type {kind} and {length:,} bytes where {size - at - 8:,} are left")
            variable = _variable(_Unpacked(file, length) if kind == _PACKED else file, order, names, left, kind)
            if variable is not None:
                found[variable[0]] = variable[1]
                left -= variable[1].nbytes
            at += 8 + length
            file.seek(at)
    raise ValueError(f"more than {_MOST_VARIABLES} variables")


def _byte_order(header: bytes) -> str:
    marks = {b"IM": "<", b"MI": ">"}
    if len(header) < 128 or header[126:] not in marks:
        raise ValueError("no header of a MATLAB file of version 5")
    return marks[header[126:]]


def _variable(file: Stream, order: str, names: Collection[str], most: int, kind: int) -> tuple[str, np.ndarray] | None:
    """Name and values of a variable, or None if its name is not among names."""
    if kind == _PACKED and struct.unpack(f"{order}I", file.read(8)[:4])[0] != _MATRIX:
        raise ValueError("something else than a variable is packed")
    flags = _small(file, order, 8)
    sizes = np.frombuffer(_small(file, order, 64), f"{order}i4").tolist()
    name = _small(file, order, 64).decode("latin1")
    if name not in names:
        return None
    (word,) = struct.unpack(f"{order}I", flags[:4])
    if (made := _CLASSES.get(word & 0xFF)) is None or word >> 8 & _COMPLEX:
        raise ValueError(f"{name}: expected real numbers, all of them stored, received class {word & 0xFF}")
    number, length, inline = _tag(file, order)
    if (stored := _TYPES.get(number)) is None or len(sizes) < 2 or min(sizes) < 0:
        raise ValueError(f"{name}: values of type {number} and sizes {sizes}")
    # before reading: sizes must not make us allocate more memory than the file can fill
    count, each = math.prod(sizes), np.dtype(stored).itemsize
    if count * max(each, np.dtype(made).itemsize) > most or count * each != length:
        raise ValueError(f"{name}: sizes {sizes} and {length:,} bytes, where at most {most:,} can be stored")
    values = read_bytes(io.BytesIO(inline) if inline is not None else file, length)
    if len(values) < length:
        raise ValueError(f"{name}: expected {length:,} bytes, received {len(values):,}")
    return name, values.view(order + stored).astype(made, copy=False).reshape(sizes, order="F")


def _tag(file: Stream, order: str) -> tuple[int, int, bytes | None]:
    """Type and length of an element, and its content if it is so small that the tag holds it."""
    tag = file.read(8)
    first, length = struct.unpack(f"{order}II", tag)
    if first >> 16:
        if (length := first >> 16) > 4:
            raise ValueError(f"a small element of {length} bytes")
        return first & 0xFFFF, length, tag[4 : 4 + length]
    return first, length, None


def _small(file: Stream, order: str, most: int) -> bytes:
    """The content of a part of at most `most` bytes, which is padded to a multiple of 8."""
    _, length, inline = _tag(file, order)
    if inline is not None:
        return inline
    if length > most:
        raise ValueError(f"a part of {length:,} bytes where at most {most} are expected")
    return file.read(-(-length // 8) * 8)[:length]


class _Unpacked:
    """A stream of the next bytes of a file, unpacked by zlib."""

    def __init__(self, file: Stream, length: int) -> None:
        self.file, self.left = file, length
        self.zlib = zlib.decompressobj()

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes, fewer only at the end."""
        made = bytearray()
        while len(made) < size and not self.zlib.eof:
            data = self.zlib.unconsumed_tail
            if not data and self.left:
                data = self.file.read(min(self.left, 2**16))
                self.left -= len(data)
            piece = self.zlib.decompress(data, size - len(made))
            if not data and not piece:
                break
            made += piece
        return bytes(made)
