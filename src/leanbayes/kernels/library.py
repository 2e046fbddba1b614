"""The compiled kernels, where there are any: a small C library behind a plain C interface, without torch's headers."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import threading
import warnings
from array import array
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..errors import DataError, LeanBayesWarning
from .buffers import working

FILE = Path(__file__).parent / "native" / "kernels.so"
LEVELS = ("any machine", "AVX2", "AVX-512")
INTERFACE = 7
"""leanbayes_interface() of the library that this code calls."""
FUNCTIONS = (
    "plan", "forward", "backward", "block", "unblock", "moments", "finish", "norm_gradients", "norm_input", "pool",
    "pool_backward", "perturb", "rectify", "pool_moments", "spread", "divergence", "divergence_gradients", "convolve",
    "squares", "together",
)  # fmt: skip
"""What `call` calls, with leanbayes_ in front."""
# as enumerated in native/arguments.h
_KINDS = {torch.float32: 1, torch.int32: 2, torch.int8: 3}
_LIST, _INTEGER, _REAL = 4, 5, 6
_NOTHING, _STRIDED = (0, 0, 0), torch.strided
AT_HAND = 2**15
"""Floats of working memory that a thread keeps: small calls, of which there are many, need no more."""
_mine = threading.local()
_REASONS = {
    1: "more or fewer arguments than it takes",
    2: "of another type than it takes, or missing",
    3: "not of the number of elements that the shape says",
    4: "out of range",
    5: "not a shape that fits together",
    6: "too large for the numbers that the kernels count with",
    7: "with places outside the weight",
    8: "with the same place twice",
    9: "of the plan of another weight, or of another image size",
}


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
    for name in FUNCTIONS:
        function = getattr(found, f"leanbayes_{name}")
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_int64), ctypes.c_int64
    return found


Argument = Tensor | Sequence[int] | int | float | None


def call(name: str, *arguments: Argument) -> None:
    """Call a kernel with tensors, lists of integers, integers, floats and None.

    Every argument goes with its type and its number of elements, which the kernel checks before it computes; what it
    refuses is a DataError. The working memory it needs comes from here.
    """
    native = library()
    assert native is not None
    words: list[int] = []
    lists = []  # this and `arguments` keep all that is pointed to alive until it returns
    for value in arguments:
        if value is None:
            words += _NOTHING
        elif isinstance(value, Tensor):
            kind = _KINDS.get(value.dtype)
            if kind is None or not value.is_cpu or value.layout is not _STRIDED:
                raise DataError(
                    f"{name} takes float32 tensors on the CPU (and its own tables of int32 and int8), received "
                    f"{_about(value)}; convert it with .to('cpu', torch.float32)"
                )
            if not value.is_contiguous() or value.is_neg():
                raise DataError(
                    f"{name} takes tensors whose elements lie side by side, received {_about(value)} with strides "
                    f"{value.stride()}; call .contiguous() and .resolve_neg() on it first"
                )
            words += (kind, value.numel(), value.data_ptr())
        elif isinstance(value, int):
            words += (_INTEGER, 1, value)
        elif isinstance(value, float):
            words += (_REAL, 1, *struct.unpack("q", struct.pack("d", value)))
        else:
            lists.append(_integers(name, value))
            words += (_LIST, len(value), lists[-1].buffer_info()[0])
    try:
        work, at_hand = _mine.work
    except AttributeError:
        work = torch.empty(AT_HAND, dtype=torch.float32, device="cpu")
        work, at_hand = _mine.work = work, (_KINDS[torch.float32], AT_HAND, work.data_ptr())
    words += at_hand
    passed, function = _integers(name, words), getattr(native, name)
    address, length = passed.buffer_info()
    while status := function(address, length // 3):
        if status < 0:
            raise _refusal(name, -status // 256, -status % 256, arguments)
        work = working(status)
        passed[-2], passed[-1] = status, work.data_ptr()


def _integers(name: str, values: Sequence[int]) -> array[int]:
    try:
        return array("q", values)
    except (OverflowError, TypeError) as error:
        raise DataError(f"{name} takes integers of 64 bits, received {values}; check the sizes of the layer") from error


def _refusal(name: str, reason: int, position: int, arguments: Sequence[Argument]) -> DataError:
    what = _about(arguments[position - 1]) if 0 < position <= len(arguments) else "the end of them"
    return DataError(
        f"{name} refused argument {position}, {what}: {_REASONS.get(reason, 'not understood')}; nothing was computed. "
        "Check the shapes of the activations and of the layer they go into"
    )


def _about(value: Argument) -> str:
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {tuple(value.shape)} on {value.device}"
    return repr(value)
