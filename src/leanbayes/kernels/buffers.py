"""Memory for large activations, used again when nobody holds it any more: fresh pages cost more than the work in them.

The allocator of the C library gives blocks of this size back to the system as soon as they are free, and the system
hands out pages of zeros, one fault each, the next time. Training asks for the same sizes step after step. Large pages
also spare kernels that jump about the look-up of their addresses.

What is kept is bounded: memory in use and free memory together are at most half more than what was in use at once
at the recent peak. A training step finds all it had the last time; a server of images of many sizes keeps about as much
as the largest of them needs, whatever their number. The working memory of kernels, of which a thread needs one piece at
a time, is kept apart: a layer takes that of the one before it, where it is large enough.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
import weakref
from collections import deque
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from ..errors import OutOfMemoryError

SMALLEST = 2**20
"""Bytes from which on memory is kept."""
PAGE = 2**21
SPARE = 1.5
"""Times the recent peak that may be kept, in use or free."""
RECENT = 4096
"""Requests (at least, and at most twice as many) over which the peak is taken; a training step has fewer."""
_CPU = torch.device("cpu")
_PRIVATE: dict[str, int] = {}
if hasattr(mmap, "MAP_ANONYMOUS"):  # the default is memory that processes share, which gets no large pages
    _PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}


@dataclass
class _Kept:
    """Free memory by size, the last used last, each with a number that grows from one to the next.

    returned: memory that came back and was not sorted in yet. Finalizers run in any thread and at any time, also while
    this very thread holds the lock, so all they do is to append to it, which is atomic.
    waste: times the size that is asked for that memory may have.
    """

    waste: float
    free: dict[int, deque[tuple[int, mmap.mmap]]] = field(default_factory=dict)
    returned: deque[tuple[int, mmap.mmap]] = field(default_factory=deque)
    lock: threading.Lock = field(default_factory=threading.Lock)
    used: int = 0
    unused: int = 0
    peaks: tuple[int, int] = (0, 0)
    requests: int = 0
    order: int = 0

    def take(self, size: int) -> tuple[int, mmap.mmap]:
        """Memory of a size, kept or new, and how large it is."""
        with self.lock:
            self.collect()
            fits = [other for other in self.free if size <= other <= self.waste * size]
            size = min(fits, default=size)
            memory = self.pop(size, last=True) if fits else None
            self.used += size
            self.requests += 1
            before, now = self.peaks if self.requests % RECENT else (self.peaks[1], 0)
            self.peaks = before, max(now, self.used)
            self.trim()
        if memory is not None:
            return size, memory
        try:
            memory = _mapped(size)
        except BaseException:
            with self.lock:
                self.used -= size
            raise
        return size, memory

    def collect(self) -> None:
        """Sort in what came back; under the lock."""
        while self.returned:
            size, memory = self.returned.popleft()
            self.order += 1
            self.free.setdefault(size, deque()).append((self.order, memory))
            self.used -= size
            self.unused += size

    def trim(self) -> None:
        """Give back the longest unused memory beyond what may be kept; under the lock."""
        while self.unused and self.used + self.unused > SPARE * max(self.peaks):
            self.pop(min(self.free, key=lambda size: self.free[size][0][0]), last=False)

    def pop(self, size: int, last: bool) -> mmap.mmap:
        """The last or the first used of a size that there is, no longer kept; under the lock."""
        of_size = self.free[size]
        memory = (of_size.pop() if last else of_size.popleft())[1]
        self.unused -= size
        if not of_size:
            del self.free[size]
        return memory

    def forget(self) -> None:
        """Give back all that is free."""
        with self.lock:
            self.collect()
            self.free.clear()
            self.unused, self.peaks = 0, (0, 0)

    def after_fork(self) -> None:
        """In a child: the lock may be held by a thread that is not there, and what was free is the parent's to use."""
        self.lock = threading.Lock()
        self.free, self.unused = {}, 0


def _mapped(size: int) -> mmap.mmap:
    try:
        memory = mmap.mmap(-1, size, **_PRIVATE)
    except (OSError, ValueError, OverflowError) as error:
        raise OutOfMemoryError(
            f"expected {size / 2**30:.2f} GiB of free memory for an activation, the system has less ({error}); "
            "take smaller batches or images"
        ) from error
    with contextlib.suppress(AttributeError, OSError):  # a wish; not every system has such pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


_KEPT, _WORK = _Kept(waste=2.0), _Kept(waste=float("inf"))
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_KEPT.after_fork)
    os.register_at_fork(after_in_child=_WORK.after_fork)


def empty(shape: list[int] | tuple[int, ...] | torch.Size) -> Tensor:
    """A float32 tensor of any content on the CPU, in memory that is kept for the next one of about its size.

    >>> empty((4, 2**18)).shape
    torch.Size([4, 262144])
    """
    needed = 4 * prod(shape)
    if needed < SMALLEST:
        return torch.empty(shape, dtype=torch.float32, device=_CPU)
    return _lent(_KEPT, needed).view(shape)


def working(count: int) -> Tensor:
    """(count,) of any content, for the time of one call."""
    small = 4 * count < SMALLEST
    return torch.empty(count, dtype=torch.float32, device=_CPU) if small else _lent(_WORK, 4 * count)


def _lent(kept: _Kept, needed: int) -> Tensor:
    size, memory = kept.take(_rounded(needed))
    try:
        lent = (ctypes.c_char * needed).from_buffer(memory)
        # the tensor holds what it was lent; when the last tensor on it goes, the memory behind it comes back
        weakref.finalize(lent, kept.returned.append, (size, memory)).atexit = False
    except BaseException:
        kept.returned.append((size, memory))
        raise
    return torch.frombuffer(lent, dtype=torch.float32)


def _rounded(needed: int) -> int:
    """Whole pages, in eight sizes an octave: images of many sizes share memory, and untouched pages cost nothing."""
    pages = -(-needed // PAGE)
    step = 1 << max(0, pages.bit_length() - 4)
    return -(-pages // step) * step * PAGE


def forget() -> None:
    """Give all memory that is free back to the system."""
    _KEPT.forget()
    _WORK.forget()


def kept() -> tuple[int, int]:
    """Bytes of such memory that are in use, and that are free."""
    for kept in (_KEPT, _WORK):
        with kept.lock:
            kept.collect()
    return _KEPT.used + _WORK.used, _KEPT.unused + _WORK.unused
