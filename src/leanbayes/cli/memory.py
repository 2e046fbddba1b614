"""Settings of the memory allocator for the processes of the command line."""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # glibc's malloc.h


def keep_freed_memory() -> bool:
    """Have glibc keep freed memory for reuse; returns False if malloc is not glibc's.

    A training step on a CPU allocates the same large tensors again and again, and fresh memory faults on every page.
    MALLOC_... variables of the environment take precedence. Only for processes of our own: a library must not change
    the allocator of its user.

    >>> keep_freed_memory() in (True, False)
    True
    """
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all([mallopt(_MMAP_MAX, 0), mallopt(_TRIM_THRESHOLD, 2**31 - 1), mallopt(_TOP_PAD, 2**26)])
