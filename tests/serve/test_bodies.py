"""Bodies are data or a clear error, whatever bytes they are."""

import io
import json
import pickle
import struct
import zlib

import numpy as np
import pytest

from leanbayes.data.tables import Table
from leanbayes.errors import DataError
from leanbayes.serve import bodies
from tests.serve.mutations import mutants

LIMITS = {"max_pixels": 10_000, "max_rows": 4}


def parse(kind, body, shape=(2,), columns=()):
    return bodies.parse(kind, body, shape, columns, **LIMITS)


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def image(size=(8, 6), mode="RGB", kind="PNG", colour=(200, 100, 50), **options):
    made = pytest.importorskip("PIL.Image").new(mode, size, colour)
    file = io.BytesIO()
    made.save(file, kind, **options)
    return file.getvalue()


def test_json_has_inputs_and_options():
    found = parse(bodies.JSON, b'{"inputs": [[1, 2.5], [3, 4]], "samples": 8}')
    assert found.inputs.tolist() == [[1, 2.5], [3, 4]]
    assert found.options == {"samples": 8}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "expected a JSON document"),
        (b"\xff\xfe\x00", "expected a JSON document"),
        (b"[" * 200_000, "expected a JSON document"),
        (b'{"inputs": [[NaN, 1]]}', "NaN is no number"),
        (b'{"inputs": ' + b"9" * 5000 + b"}", "expected a JSON document"),
        (b"[1, 2]", 'expected {"inputs": '),
        (b'{"input": [[1, 2]]}', 'expected {"inputs": '),
        (b'{"inputs": {"a": 1}}', "expected a list of data"),
        (b'{"inputs": "abc"}', "expected a list of data"),
        (b'{"inputs": [[1, 2], [3]]}', "every datum of the same shape"),
        (b'{"inputs": [[1, "2"]]}', "expected lists of numbers"),
        (b'{"inputs": [[1, null]]}', "expected lists of numbers"),
        (b'{"inputs": [[true, false]]}', "expected lists of numbers"),
        (b'{"inputs": [[' + b"9" * 400 + b", 1]]}", "expected lists of numbers"),
        (b'{"inputs": ' + b"[" * 90 + b"1" + b"]" * 90 + b"}", "same shape"),
        (b'{"inputs": []}', "expected 1 to 4 data, received none$"),
        (b'{"inputs": [[1, 2], [1, 2], [1, 2], [1, 2], [1, 2]]}', "expected 1 to 4 data, received 5; send several"),
    ],
)
def test_json_that_is_none_is_refused(body, said):
    with pytest.raises(DataError, match=said.replace("{", r"\{")):
        parse(bodies.JSON, body)


def test_rows_of_a_table_are_cells_as_in_a_file():
    body = json.dumps(
        {"inputs": [{"size": 0.1, "colour": "red", "more": 3}, {"size": None, "colour": "blue"}]}
    ).encode()
    found = parse(bodies.JSON, body, (3,), ("size", "colour")).inputs
    assert isinstance(found, Table)
    assert {name: cells.tolist() for name, cells in found.columns.items()} == {
        "size": ["0.1", ""],
        "colour": ["red", "blue"],
    }
    with pytest.raises(DataError, match="row 2: expected the column 'colour'"):
        parse(bodies.JSON, b'{"inputs": [{"size": 1, "colour": "a"}, {"size": 1}]}', (3,), ("size", "colour"))
    with pytest.raises(DataError, match="row 1: expected numbers and texts"):
        parse(bodies.JSON, b'{"inputs": [{"size": [1], "colour": "a"}]}', (3,), ("size", "colour"))
    with pytest.raises(DataError, match="expected rows by the names of columns"):
        parse(bodies.JSON, b'{"inputs": [[1, 2, 3]]}', (3,), ("size", "colour"))
    for kind, other in ((bodies.NPY, npy(np.zeros((1, 3)))), ("image/png", b"")):
        with pytest.raises(DataError, match=rf'as JSON, \{{"inputs": \[\{{"size": .*, received {kind}'):
            parse(kind, other, (3,), ("size", "colour"))


def test_arrays_of_numpy_are_read_without_pickles():
    array = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert parse(bodies.NPY, npy(array)).inputs.tolist() == array.tolist()
    assert parse(bodies.NPY, npy(np.asfortranarray(array))).inputs.tolist() == array.tolist()


class Explodes:
    """What a pickle could do."""

    def __reduce__(self):
        return pytest.fail, ("a pickle was loaded",)


def header(text):
    body = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(body)) + body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x93NUMPY",
        npy(np.array([Explodes()], dtype=object), allow_pickle=True),
        pickle.dumps(Explodes()),
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 8)}"),
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 2)}") + b"\0" * 16,
        header("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}") + pickle.dumps(Explodes()),
        header("{'descr': '<U4', 'fortran_order': False, 'shape': (1, 1)}") + b"\0" * 16,
        header("__import__('os').abort()"),
        npy(np.zeros((2, 2)))[:-1],
        npy(np.zeros((2, 2))) + b"\0",
    ],
)
def test_other_arrays_are_refused(body):
    with pytest.raises(DataError, match=r"expected an array of numbers as numpy\.save writes it"):
        parse(bodies.NPY, body)


def test_a_single_number_is_no_batch():
    with pytest.raises(DataError, match="received none"):
        parse(bodies.NPY, npy(np.float32(3)))


@pytest.mark.parametrize(("kind", "name"), [("PNG", "image/png"), ("BMP", "image/bmp"), ("GIF", "image/gif")])
def test_images_come_in_the_size_and_colours_of_the_network(kind, name):
    found = parse(name, image(kind=kind), (3, 4, 5))
    assert found.inputs.shape == (1, 3, 4, 5)
    assert found.inputs.dtype == np.uint8
    assert found.size == (8, 6)
    assert found.inputs[0, :, 2, 2].tolist() == [200, 100, 50]
    assert parse(name, image(kind=kind), (1, 4, 5)).inputs.shape == (1, 1, 4, 5)


def bomb():
    """A PNG of 30,000 x 30,000 pixels in a few bytes of header."""
    part = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + part
    return (
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(part)) + chunk + struct.pack(">I", zlib.crc32(chunk)) + b"\0" * 40
    )


@pytest.mark.parametrize("body", [b"", b"not an image", b"\x89PNG\r\n\x1a\n", bomb()])
def test_other_images_are_refused(body):
    pytest.importorskip("PIL")
    with pytest.raises(DataError, match=r"expected (a readable image|an image of at most)"):
        parse("image/png", body, (3, 4, 4))


def test_a_large_image_is_refused_before_it_is_unpacked():
    with pytest.raises(DataError, match="at most 10,000 pixels, received 200x200"):
        parse("image/png", image((200, 200)), (3, 4, 4))


def test_an_image_of_another_type_than_said_is_refused():
    with pytest.raises(DataError, match="readable image of type image/jpeg"):
        parse("image/jpeg", image(), (3, 4, 4))


def test_a_model_of_numbers_takes_no_images():
    with pytest.raises(DataError, match="as JSON or npy, received an image"):
        parse("image/png", image(), (7,))


def test_whatever_the_bytes_are_there_is_data_or_a_clear_error():
    pytest.importorskip("PIL")
    seeds = {
        bodies.JSON: b'{"inputs": [[1, 2.5], [-3e1, 4]], "samples": 8, "draws": true}',
        bodies.NPY: npy(np.arange(4.0).reshape(2, 2)),
        "image/png": image(),
        "image/jpeg": image(kind="JPEG"),
        "image/gif": image(kind="GIF"),
        "image/bmp": image(kind="BMP"),
        "image/webp": image(kind="WEBP"),
    }
    refused = []
    for kind, seed in seeds.items():
        shape = (3, 4, 4) if kind in bodies.IMAGES else (2,)
        for body in mutants(seed, 150):
            try:
                found = parse(kind, body, shape)
            except DataError as error:
                refused.append(str(error))
            else:
                assert 1 <= len(found.inputs) <= 4
    assert len(refused) > 300
    assert max(map(len, refused)) < 500
