"""A reader of pickles of numbers and text that cannot run code.

A pickle is a program: `pickle.load` calls any function that the file names. CIFAR is published as pickles, so this
module carries out the few instructions that plain values need, and refuses all others. That also limits time and
memory, which a name, a key or a place in the memo can otherwise exhaust in a few bytes.
"""

from __future__ import annotations

import codecs
import math
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from .arrays import damaged

_MOST_STEPS = 1_000_000  # the largest published batch takes 250,000; each may make a list or a dict of 60 bytes
_LONG = 2**16  # longer strings, such as the pixels of a batch, are not copied
_MOST_DIMENSIONS = 8


def read_pickle(content: bytes, source: Path, steps: int = _MOST_STEPS) -> dict[str, Any]:
    """The dict in a pickle of dicts, lists, text, bytes, numbers and numeric numpy arrays.

    source: the file, for messages. steps: the most instructions it may have.

    >>> read_pickle(pickle.dumps({"data": np.arange(3), "labels": [1, 2]}), Path("batch"))
    {'data': array([0, 1, 2]), 'labels': [1, 2]}
    >>> read_pickle(pickle.dumps({"data": print}), Path("batch"))
    Traceback (most recent call last):
    leanbayes.errors.DataError: batch: expected a pickle of plain values and numpy arrays, received one that asks for
    builtins.print, which is not allowed; ...
    """
    try:
        value = _Machine(content).run(steps)
    except _Refused as error:
        raise DataError(
            f"{source}: expected a pickle of plain values and numpy arrays, received one that {error}; "
            f"do not trust this file, delete it and fetch the official one"
        ) from error
    except Exception as error:  # a damaged program may raise anything
        raise damaged(source, "a whole pickle, received a damaged one", error) from error
    if not isinstance(value, dict):
        raise DataError(f"{source}: expected a pickled dict, received {type(value).__name__}; fetch the file again")
    # Only the top level is unwrapped, since nested lists may hold themselves.
    return {_text(key): unwrapped(item) for key, item in value.items()}


def unwrapped(item: Any) -> Any:
    """A nested value of `read_pickle` with a numpy array in place of our wrapper."""
    return item.value if isinstance(item, _Array) else item


class _Refused(pickle.UnpicklingError):
    pass


class _Array:
    """A numpy array while a pickle is read, made after its size has been checked."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = np.empty(0)


class _DType:
    """A numpy dtype while a pickle is read: numbers of fixed size only."""

    __slots__ = ("value",)

    def __init__(self, code: Any, *_: Any) -> None:
        if not (type(code) is str and code.lstrip("<>|=") in _NUMBERS):
            raise _Refused(f"holds an array of type {repr(code[:30]) if type(code) is str else type(code).__name__}")
        self.value = np.dtype(code)


_NUMBERS = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}


class _Machine:
    """The stack and the memo of a pickle, and its instructions."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.copies = 2 * len(content)  # bytes that functions may still copy

    def run(self, steps: int) -> Any:
        """The value that the program leaves."""
        for _ in range(steps):
            code = self.take(1)
            if code == b".":
                return self.stack.pop()
            if (step := _STEPS.get(code)) is None:
                raise _Refused(f"uses the instruction {code!r}, which plain values do not need")
            step(self)
        raise _Refused(f"takes more than {steps:,} instructions")

    def take(self, count: int) -> bytes:
        """The next bytes of the file."""
        start, self.at = self.at, self.at + count
        if self.at > len(self.content):
            raise EOFError("the file ends in the middle")
        return self.content[start : self.at]

    def number(self, size: int) -> int:
        """The next number without a sign."""
        return int.from_bytes(self.take(size), "little")

    def line(self) -> bytes:
        """The rest of the line."""
        end = self.content.index(b"\n", self.at)
        return self.take(end - self.at + 1)[:-1]

    def since_mark(self) -> list[Any]:
        """The values above the last mark of the stack, removed from it."""
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def string(self, size: int, decode: Callable[[bytes], Any]) -> None:
        """Push a string that follows its length."""
        count = self.number(size)
        if count <= _LONG or decode is _utf8:
            self.stack.append(decode(self.take(count)))
            return
        start, self.at = self.at, self.at + count
        if self.at > len(self.content):
            raise EOFError("the file ends in the middle")
        self.stack.append(memoryview(self.content)[start : self.at])

    def fill(self, pairs: list[Any]) -> None:
        """Put alternating keys and values into the dict on the stack."""
        target = self.stack[-1]
        # hashing a nested tuple that holds itself could take years
        if type(target) is not dict or not all(type(key) in (str, bytes, int) for key in pairs[::2]):
            raise _Refused("has other keys than text and numbers")
        target.update(zip(pairs[::2], pairs[1::2], strict=True))

    def append(self, items: list[Any]) -> None:
        """Append to the list on the stack."""
        if type(target := self.stack[-1]) is not list:
            raise ValueError(f"expected a list to append to, received {type(target).__name__}")
        target.extend(items)

    def name(self, module: Any, name: Any) -> None:
        """Push a function by its name."""
        if type(module) is not str or type(name) is not str or (module, name) not in _FUNCTIONS:
            shown = f"{module[:60]}.{name[:60]}" if type(module) is type(name) is str else "something unnamed"
            raise _Refused(f"asks for {shown}, which is not allowed")
        self.stack.append(_FUNCTIONS[module, name])

    def call(self) -> None:
        """Replace the function and its arguments on the stack by its result."""
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, _Function) or type(arguments) is not tuple or len(arguments) > 8:
            raise _Refused("calls what is no function")
        self.stack.append(function.of(self, *arguments))

    def build(self) -> None:
        """Set the state of the array or dtype below it on the stack."""
        state, value = self.stack.pop(), self.stack[-1]
        if isinstance(value, _Array):
            _, shape, dtype, fortran, raw = state
            value.value = self.array(raw, dtype, shape, "F" if fortran is True else "C")
        elif isinstance(value, _DType) and type(state) is tuple:
            if state[1] in ("<", ">"):
                value.value = value.value.newbyteorder(state[1])
        else:
            raise _Refused("tries to change a function" if isinstance(value, _Function) else "holds other objects")

    def array(self, raw: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
        """An array over the bytes of the file."""
        data = self.encode(raw, "latin1") if type(raw) is str else raw
        sane = type(shape) is tuple and len(shape) <= _MOST_DIMENSIONS and order in ("C", "F")
        sane = sane and all(type(n) is int and 0 <= n < 2**40 for n in shape)
        if not isinstance(data, (bytes, memoryview)) or not sane or not isinstance(dtype, _DType):
            raise _Refused("holds an array that is not made of plain numbers")
        expected = math.prod(shape) * dtype.value.itemsize
        if len(data) != expected:
            raise ValueError(f"an array of shape {shape} needs {expected} bytes, the file holds {len(data)}")
        return np.frombuffer(data, dtype.value).reshape(shape, order=order)

    def encode(self, text: Any, codec: Any) -> bytes:
        """Bytes that were written as text."""
        if isinstance(text, memoryview):  # a long string of Python 2, which is bytes already
            return text  # type: ignore[return-value]
        if type(text) is not str or codec not in ("latin1", "latin-1"):
            raise _Refused("asks for a codec other than latin1")
        self.copies -= len(text)
        if self.copies < 0:
            raise _Refused("makes more bytes than it has")
        return text.encode("latin1")

    def wrapped(self, raw: Any, dtype: Any, shape: Any, order: Any) -> _Array:
        """An array as numpy's newest format has it."""
        made = _Array()
        made.value = self.array(raw, dtype, shape, order)
        return made


class _Function:
    """A function that a pickle may call."""

    __slots__ = ("of",)

    def __init__(self, of: Callable[..., Any]) -> None:
        self.of = of


# numpy 2 renamed numpy.core to numpy._core. Python 3 writes bytes into old protocols as _codecs.encode and (if empty)
# as bytes(); _frombuffer is numpy's newest format.
_FUNCTIONS = {
    ("__builtin__", "bytes"): _Function(lambda machine: b""),
    ("_codecs", "encode"): _Function(_Machine.encode),
    ("numpy", "dtype"): _Function(lambda machine, *arguments: _DType(*arguments)),
    ("numpy", "ndarray"): _Function(lambda machine, *_: _Array()),
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Function(lambda m, *_: _Array()) for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _Function(_Machine.wrapped) for core in ("core", "_core")},
}


def _utf8(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _latin1(data: bytes) -> str:
    return data.decode("latin1")  # the official batches are of Python 2, whose strings are bytes


def _text(key: Any) -> str:
    return _latin1(key) if isinstance(key, bytes) else str(key)


def _quoted(line: bytes) -> str:
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise ValueError("a string without quotes")
    return _latin1(codecs.escape_decode(line[1:-1])[0])  # type: ignore[attr-defined]


def _whole(line: bytes) -> int | bool:
    return {b"00": False, b"01": True}[line] if line in (b"00", b"01") else int(line.rstrip(b"L"))


def _push(make: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(make(m))


def _remember(where: Callable[[_Machine], int]) -> Callable[[_Machine], None]:
    def step(m: _Machine) -> None:
        m.memo[where(m)] = m.stack[-1]

    return step


def _last(count: int) -> Callable[[_Machine], None]:
    def step(m: _Machine) -> None:
        if len(m.stack) < count:
            raise ValueError("the stack is too short")
        m.stack[-count:] = [tuple(m.stack[-count:])]

    return step


def _new_dict(m: _Machine) -> None:
    pairs = m.since_mark()
    m.stack.append({})
    m.fill(pairs)


def _set_item(m: _Machine) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    m.fill([key, value])


_STEPS: dict[bytes, Callable[[_Machine], Any]] = {
    b"\x80": lambda m: m.take(1),  # the protocol
    b"\x95": lambda m: m.take(8),  # the length of a frame
    b"(": lambda m: m.marks.append(len(m.stack)),
    b"0": lambda m: m.stack.pop(),
    b"1": lambda m: m.since_mark(),
    **{code: _push(lambda m, value=value: value) for code, value in ((b"N", None), (b"\x88", True), (b"\x89", False))},  # type: ignore[misc]
    b"I": _push(lambda m: _whole(m.line())),
    b"L": _push(lambda m: _whole(m.line())),
    b"F": _push(lambda m: float(m.line())),
    b"K": _push(lambda m: m.number(1)),
    b"M": _push(lambda m: m.number(2)),
    b"J": _push(lambda m: struct.unpack("<i", m.take(4))[0]),
    b"G": _push(lambda m: struct.unpack(">d", m.take(8))[0]),
    b"\x8a": _push(lambda m: int.from_bytes(m.take(m.number(1)), "little", signed=True)),
    b"S": _push(lambda m: _quoted(m.line())),
    b"V": _push(lambda m: m.line().decode("raw-unicode-escape")),
    b"U": lambda m: m.string(1, _latin1),
    b"T": lambda m: m.string(4, _latin1),
    b"X": lambda m: m.string(4, _utf8),
    b"\x8c": lambda m: m.string(1, _utf8),
    b"\x8d": lambda m: m.string(8, _utf8),
    b"C": lambda m: m.string(1, bytes),
    b"B": lambda m: m.string(4, bytes),
    b"\x8e": lambda m: m.string(8, bytes),
    b"\x96": lambda m: m.string(8, bytes),
    b"}": _push(lambda m: {}),
    b"]": _push(lambda m: []),
    b")": _push(lambda m: ()),
    b"d": _new_dict,
    b"l": _push(lambda m: m.since_mark()),
    b"t": _push(lambda m: tuple(m.since_mark())),
    b"\x85": _last(1),
    b"\x86": _last(2),
    b"\x87": _last(3),
    b"a": lambda m: m.append([m.stack.pop()]),
    b"e": lambda m: m.append(m.since_mark()),
    b"s": _set_item,
    b"u": lambda m: m.fill(m.since_mark()),
    b"p": _remember(lambda m: int(m.line())),
    b"q": _remember(lambda m: m.number(1)),
    b"r": _remember(lambda m: m.number(4)),
    b"\x94": _remember(lambda m: len(m.memo)),
    b"g": _push(lambda m: m.memo[int(m.line())]),
    b"h": _push(lambda m: m.memo[m.number(1)]),
    b"j": _push(lambda m: m.memo[m.number(4)]),
    b"c": lambda m: m.name(_latin1(m.line()), _latin1(m.line())),
    b"\x93": lambda m: m.name(*(lambda name, module: (module, name))(m.stack.pop(), m.stack.pop())),
    b"R": lambda m: m.call(),
    b"b": lambda m: m.build(),
}
