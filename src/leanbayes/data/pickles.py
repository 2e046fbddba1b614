"""A reader of pickles that hold numbers and text, which can run nothing, whoever wrote the file.

A pickle is a program: plain `pickle.load` calls whatever function the file names. CIFAR is published as pickles, so
here every name in the file is looked up in a table of harmless stand-ins, and anything else is refused. Not even
numpy's own constructors see the file's values: an array is rebuilt by us, after its size has been checked.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError


def read_pickle(content: bytes, source: Path) -> dict[str, Any]:
    """The dict in a pickle of dicts, lists, text, bytes, numbers and numeric numpy arrays; `source` is for messages.

    >>> read_pickle(pickle.dumps({"data": np.arange(3), "labels": [1, 2]}), Path("batch"))
    {'data': array([0, 1, 2]), 'labels': [1, 2]}
    >>> read_pickle(pickle.dumps({"data": print}), Path("batch"))
    Traceback (most recent call last):
    leanbayes.errors.DataError: batch: expected a pickle of plain values and numpy arrays, received one that asks for
    builtins.print, which is not allowed; ...
    """
    try:
        # latin1, because the official batches are pickles of Python 2, whose strings are bytes.
        value = _Unpickler(io.BytesIO(content), encoding="latin1").load()
    except _Refused as error:
        raise DataError(
            f"{source}: expected a pickle of plain values and numpy arrays, received one that {error}; "
            f"do not trust this file, delete it and fetch the official one"
        ) from error
    except Exception as error:  # the pickle module documents that damaged input may raise anything
        raise DataError(
            f"{source}: expected a whole pickle, received a damaged one ({type(error).__name__}: {error}); "
            f"delete it and fetch it again"
        ) from error
    if not isinstance(value, dict):
        raise DataError(f"{source}: expected a pickled dict, received {type(value).__name__}; fetch the file again")
    # Only the top level is unwrapped: a list that holds itself, or two copies of two copies of ..., is never walked.
    return {_text(key): item.value if isinstance(item, _Array) else item for key, item in value.items()}


class _Refused(pickle.UnpicklingError):
    pass


class _Array:
    """Stands in for numpy.ndarray while a pickle is read."""

    __slots__ = ("value",)
    value: np.ndarray

    def __init__(self) -> None:
        self.value = np.empty(0)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        self.value = _rebuild(raw, dtype, shape, "F" if fortran else "C")


class _DType:
    """Stands in for numpy.dtype while a pickle is read: numbers of fixed size only."""

    __slots__ = ("value",)

    def __init__(self, code: Any, *_: Any) -> None:
        if not (isinstance(code, str) and code.lstrip("<>|=") in _NUMBERS):
            raise _Refused(f"holds an array of type {str(code)[:30]!r}")
        self.value = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        if state[1] in ("<", ">"):
            self.value = self.value.newbyteorder(state[1])


_NUMBERS = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}


def _rebuild(raw: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
    data = raw.encode("latin1") if isinstance(raw, str) else bytes(raw) if isinstance(raw, (bytes, bytearray)) else None
    sane = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape) and order in ("C", "F")
    if data is None or not sane or not isinstance(dtype, _DType):
        raise _Refused("holds an array that is not made of plain numbers")
    expected = math.prod(shape) * dtype.value.itemsize
    if len(data) != expected:
        raise ValueError(f"an array of shape {shape} needs {expected} bytes, the file holds {len(data)}")
    return np.frombuffer(data, dtype.value).reshape(shape, order=order)


def _from_buffer(raw: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    array = _Array()
    array.value = _rebuild(raw, dtype, shape, order)
    return array


def _encode(text: Any, codec: Any) -> bytes:
    if not isinstance(text, str) or codec not in ("latin1", "latin-1"):
        raise _Refused("asks for a codec other than latin1")
    return text.encode("latin1")


class _Allowed:
    """A function a pickle may call and nothing else: it cannot be given new attributes, as a function object could."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise _Refused("tries to change a function")


# numpy 2 moved numpy.core to numpy._core; files of both are about. _codecs.encode and (for none at all) bytes are how
# Python 3 writes bytes into the old protocols; _frombuffer is numpy's way in the newest.
_GLOBALS = {
    ("__builtin__", "bytes"): _Allowed(lambda: b""),
    ("_codecs", "encode"): _Allowed(_encode),
    ("numpy", "dtype"): _Allowed(_DType),
    ("numpy", "ndarray"): _Allowed(lambda *_: _Array()),
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Allowed(lambda *_: _Array()) for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _Allowed(_from_buffer) for core in ("core", "_core")},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _GLOBALS:
            raise _Refused(f"asks for {module}.{name}, which is not allowed")
        return _GLOBALS[module, name]


def _text(key: Any) -> str:
    return key.decode("latin1") if isinstance(key, bytes) else str(key)
