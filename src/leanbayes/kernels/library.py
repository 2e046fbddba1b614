"""The compiled kernels, where there are any: a small C library behind a plain C interface, without torch's headers."""

from __future__ import annotations

import ctypes
import functools
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..errors import LeanBayesWarning

FILE = Path(__file__).parent / "native" / "kernels.so"
LEVELS = ("any machine", "AVX2", "AVX-512")
INTERFACE = 2
"""leanbayes_interface() of the library that this code calls."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library, or None where it was not built, does not load, or LEANBAYES_KERNELS=off; `reason` says which."""
    return None if isinstance(_opened(), str) else _opened()  # type: ignore[return-value]


def reason() -> str | None:
    """Why there are no compiled kernels, or None where there are."""
    found = _opened()
    return found if isinstance(found, str) else None


def instructions() -> str:
    """What the kernels run on: an instruction set, or torch where they were not built.

    >>> instructions() in ("torch", *LEVELS)
    True
    """
    found = library()
    return "torch" if found is None else LEVELS[found.leanbayes_level(-1)]


@functools.cache
def tell_once() -> None:
    """Say, the first time it matters, that the slow twin runs."""
    if (why := reason()) is not None and os.environ.get("LEANBAYES_KERNELS") != "off":
        warnings.warn(
            f"sparse layers run on torch alone, which computes as if they were dense: {why}; results are the same, "
            "time and memory are not saved",
            LeanBayesWarning,
            stacklevel=3,
        )


@functools.cache
def _opened() -> ctypes.CDLL | str:
    if os.environ.get("LEANBAYES_KERNELS") == "off":
        return "they are switched off by LEANBAYES_KERNELS=off"
    if not FILE.exists():
        return "the kernels were not built; install a C compiler and reinstall leanbayes"
    # the thread pool must be the one torch brought along: two pools in one process fight for the cores
    for pool in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        ctypes.CDLL(str(pool), mode=ctypes.RTLD_GLOBAL)
    try:
        found = ctypes.CDLL(str(FILE))
    except OSError as error:
        return f"the kernels do not load ({error})"
    if not hasattr(found, "leanbayes_interface") or found.leanbayes_interface() != INTERFACE:
        return "the kernels were built from other sources; reinstall leanbayes, or run python hatch_build.py"
    return found


def call(name: str, *arguments: torch.Tensor | Sequence[int] | int | float | None) -> None:
    """Call a kernel: contiguous tensors by address, lists as int32, ints as int64, floats as doubles, None as NULL."""
    native = library()
    assert native is not None
    getattr(native, name)(*map(_passed, arguments))  # `arguments` keeps every tensor alive until it returns


def _passed(value: torch.Tensor | Sequence[int] | int | float | None) -> Any:
    if isinstance(value, torch.Tensor):
        assert value.is_contiguous()
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, int):
        return ctypes.c_int64(value)
    if isinstance(value, float):
        return ctypes.c_double(value)
    return None if value is None else (ctypes.c_int32 * len(value))(*value)
