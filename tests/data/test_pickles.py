from __future__ import annotations

import os
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from leanbayes.data import pickles
from leanbayes.data.pickles import read_pickle
from leanbayes.errors import DataError

HERE = Path("batch")


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.uint8).reshape(3, 4),
        np.asfortranarray(np.arange(12, dtype=np.int64).reshape(3, 4)),
        np.arange(3, dtype=">f4"),
        np.zeros((0, 5), np.uint8),
    ],
)
def test_plain_values_and_arrays_of_every_protocol(protocol: int, array: np.ndarray) -> None:
    value = {"data": array, "labels": [1, 2], "text": "é", "raw": b"\x00\xff", "pair": (1, 2.5), "none": None}
    read = read_pickle(pickle.dumps(value, protocol=protocol), HERE)
    np.testing.assert_array_equal(read.pop("data"), array)
    assert read == {key: item for key, item in value.items() if key != "data"}


def test_the_files_of_python_2_as_cifar_is_published() -> None:
    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    raw = bytes(range(256)) * 12
    dtype = (
        b"cnumpy\ndtype\n"
        + text(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    state = b"(K\x01K\x01M\x00\x0c\x86" + dtype + b"\x89" + text(raw) + b"tb"
    read = read_pickle(b"\x80\x02}(" + text(b"data") + array + state + text(b"labels") + b"](K\x06eu.", HERE)
    assert read["labels"] == [6]
    assert read["data"].dtype == np.uint8
    assert read["data"].tobytes() == raw


class Shell:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ran",)


class Evaluate:
    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("open('ran', 'w')",)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("bomb", [Shell(), Evaluate(), {"data": Shell()}, [Evaluate()]])
def test_a_malicious_pickle_is_refused_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bomb: Any, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"asks for .*(system|eval), which is not allowed.*do not trust this file"):
        read_pickle(pickle.dumps(bomb, protocol=protocol), HERE)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content",
    [
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.testing._private.utils\nrunstring\n(S'open(\"ran\", \"w\")'\nS'{}'\ntR.",
        b"cbuiltins\ngetattr\n(cnumpy\nndarray\nS'__class__'\ntR.",
        b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__class__\x93.",
        b"c_codecs\nencode\n(S'x'\nS'zip'\ntR.",
        b"c_codecs\nencode\n}S'__doc__'\nS'changed'\nsb.",  # BUILD on an allowed function: no attribute may change
        b"cnumpy\ndtype\n(S'O'\ntR.",
        b"(icopy_reg\n_reconstructor\n.",
        b"Pid\n.",
    ],
)
def test_crafted_programs_are_refused(content: bytes) -> None:
    before = {key: item.of for key, item in pickles._FUNCTIONS.items()}
    with pytest.raises(DataError, match="batch: expected a"):
        read_pickle(content, HERE)
    assert {key: item.of for key, item in pickles._FUNCTIONS.items()} == before


def test_other_objects_are_refused() -> None:
    for value in (OrderedDict(a=1), np.array([{}]), np.float64(1.0), np.dtype("M8[s]"), {1, 2}, complex(1, 2)):
        try:
            read = read_pickle(pickle.dumps({"x": value}), HERE)
        except DataError:
            continue
        assert read == {"x": {1, 2}}  # a set is plain data that needs no import; nothing else passes


def test_an_array_whose_size_is_a_lie() -> None:
    honest = pickle.dumps({"data": np.zeros((2, 200), np.uint8)}, protocol=2)
    lie = honest.replace(b"K\x02K\xc8\x86", b"K\x03K\xc8\x86")
    assert lie != honest
    with pytest.raises(DataError, match=r"shape \(3, 200\) needs 600 bytes, the file holds 400"):
        read_pickle(lie, HERE)


def test_not_a_dict_and_bytes_as_keys() -> None:
    with pytest.raises(DataError, match="batch: expected a pickled dict, received list"):
        read_pickle(pickle.dumps([1]), HERE)
    assert read_pickle(pickle.dumps({b"labels": [1]}), HERE) == {"labels": [1]}


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_damage_never_escapes_as_another_error(data: st.DataObject) -> None:
    whole = bytearray(pickle.dumps({"data": np.zeros((2, 8), np.uint8), "labels": [1, 2]}, protocol=2))
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_pickle(bytes(whole[: data.draw(st.integers(0, len(whole)))]), HERE)
    except DataError as error:
        message = str(error)
    else:
        message = "batch: expected"
    assert message.startswith("batch: expected")
