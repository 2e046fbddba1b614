"""Limits on the size of data files, so that a forged file is refused before it takes much time or memory.

A packed file can claim, or unpack to, a thousand times its size. Published data sets hardly pack at all (lung masks
the most: about 8 to 1), so more than `RATIO` is refused.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

FREE, RATIO = 64 * 2**20, 16
_PIECE = 2**20


class Stream(Protocol):
    """An object with a method ``read``."""

    def read(self, size: int = -1, /) -> bytes:
        """At most ``size`` bytes; empty at the end."""


def unpacked(size: int, most: int) -> int:
    """The bytes that a packed file of `size` bytes may unpack to, at most `most`.

    >>> unpacked(10 * 2**20, most=2**30) // 2**20, unpacked(2**30, most=2**30) // 2**20
    (224, 1024)
    """
    return min(FREE + RATIO * size, most)


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it; a folder, device or pipe is an OSError."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return path.open("rb")


@contextlib.contextmanager
def open_packed(path: Path, most: int) -> Iterator[tuple[Stream, int]]:
    """Open a file, gzipped (by its first bytes) or not; yields it and the bytes that it may hold, at most `most`."""
    with open_regular(path) as raw:
        zipped, size = raw.read(2) == b"\x1f\x8b", os.fstat(raw.fileno()).st_size
        raw.seek(0)
        yield (gzip.GzipFile(fileobj=raw), unpacked(size, most)) if zipped else (raw, min(size, most))


def read_whole(path: Path, most: int) -> bytes:
    """The content of a file of at most `most` bytes; more is an OSError."""
    with open_regular(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise OSError(errno.EFBIG, f"File of {size:,} bytes, where at most {most:,} are expected", str(path))
        return file.read(most)


def read_bytes(file: Stream, count: int) -> np.ndarray:
    """The next `count` bytes of a stream as uint8, fewer at its end, without a second copy in memory."""
    values = np.empty(count, np.uint8)
    at = 0
    while at < count and (piece := file.read(min(_PIECE, count - at))):
        values[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        at += len(piece)
    return values[:at]


class Bounded:
    """A stream that raises a ValueError once more than `most` bytes have been read from it.

    >>> import io
    >>> Bounded(io.BytesIO(b"abc"), 2).read(3)
    Traceback (most recent call last):
    ValueError: more than 2 bytes
    """

    def __init__(self, file: Stream, most: int) -> None:
        self.file, self.most, self.left = file, most, most

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes; all that are left if it is negative."""
        wanted = self.left + 1 if size < 0 else min(size, self.left + 1)
        data = self.file.read(wanted)
        self.left -= len(data)
        if self.left < 0:
            raise ValueError(f"more than {self.most:,} bytes")
        return data
