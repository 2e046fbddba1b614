"""How this process asks for memory: a training step on a CPU allocates and frees the same tensors over and over."""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let glibc keep what tensors free instead of handing it back to the system; False where malloc is another one.

    A tensor of some megabytes is mapped anew whenever it is made, and every page of it faults once.
    Settings of the environment (MALLOC_...) are left alone. For whole processes of ours only: a library must not
    change its user's allocator.

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
