"""Memory for large activations, used again when nobody holds it any more: fresh pages cost more than the work in them.

The allocator of the C library gives blocks of this size back to the system as soon as they are free, and the system
hands out pages of zeros, one fault each, the next time. Training asks for the same sizes step after step. Large pages
also spare kernels that jump about the look-up of their addresses.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import weakref
from collections import defaultdict
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

SMALLEST = 2**20
"""Bytes from which on memory is kept."""
PAGE = 2**21
FORGOTTEN = 1000
"""Requests after which memory that served none of them is given back."""
_PRIVATE: dict[str, int] = {}
if hasattr(mmap, "MAP_ANONYMOUS"):  # the default is memory that processes share, which gets no large pages
    _PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}


@dataclass
class _Kept:
    """Free memory by size, each with the number of the request at which it was last in use."""

    free: dict[int, list[tuple[int, mmap.mmap]]] = field(default_factory=lambda: defaultdict(list))
    requests: int = 0

    def take(self, size: int) -> mmap.mmap:
        self.requests += 1
        if self.requests % FORGOTTEN == 0:
            self.forget(self.requests - FORGOTTEN)
        try:
            return self.free[size].pop()[1]
        except IndexError:
            memory = mmap.mmap(-1, -(-size // PAGE) * PAGE, **_PRIVATE)
            with contextlib.suppress(AttributeError, OSError):  # a wish; not every system has such pages
                memory.madvise(mmap.MADV_HUGEPAGE)
            return memory

    def give(self, size: int, memory: mmap.mmap) -> None:
        self.free[size].append((self.requests, memory))

    def forget(self, before: int) -> None:
        for size, kept in list(self.free.items()):
            self.free[size] = [(used, memory) for used, memory in kept if used >= before]


_KEPT = _Kept()


def empty(shape: list[int] | tuple[int, ...] | torch.Size) -> Tensor:
    """A float32 tensor of any content, in memory that is kept for the next one of its size.

    >>> empty((4, 2**18)).shape
    torch.Size([4, 262144])
    """
    size = 4 * prod(shape)
    if size < SMALLEST:
        return torch.empty(shape)
    memory = _KEPT.take(size)
    lent = (ctypes.c_char * size).from_buffer(memory)
    # the tensor holds what it was lent; when the last tensor on it goes, the memory behind it comes back
    weakref.finalize(lent, _KEPT.give, size, memory).atexit = False
    return torch.frombuffer(lent, dtype=torch.float32).view(shape)


def forget() -> None:
    """Give all memory that is free back to the system."""
    _KEPT.free.clear()
