"""The body of a request as data: JSON, an array in numpy's format, an image. No pickles, and limited sizes."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import short
from ..data.npz import read_array
from ..data.tables import Table
from ..errors import DataError
from ..optional import require

JSON, NPY = "application/json", "application/x-npy"
IMAGES = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP", "image/bmp": "BMP", "image/gif": "GIF"}
TYPES = (JSON, NPY, *IMAGES)


@dataclass(frozen=True)
class Body:
    """inputs: an array (data, ...), or a table of texts. options: those of the JSON document. size: (width, height)."""

    inputs: np.ndarray | Table
    options: dict[str, Any]
    size: tuple[int, int] | None = None


def parse(
    kind: str, body: bytes, shape: Sequence[int], columns: Sequence[str] = (), *, max_pixels: int, max_rows: int
) -> Body:
    """What a request holds.

    kind: one of `TYPES`. shape: of one datum, as the network takes it; an image is brought to it. columns: of a model
        that was trained on a table: rows of JSON may name them.

    >>> parse("application/json", b'{"inputs": [[1, 2]], "samples": 8}', (2,), max_pixels=1, max_rows=1)
    Body(inputs=array([[1., 2.]]), options={'samples': 8}, size=None)
    """
    if kind == JSON:
        found = _json(body, columns)
    elif columns:
        raise DataError(f"body: expected rows by the names of columns as JSON, {_example(columns)}, received {kind}")
    elif kind == NPY:
        found = Body(_npy(body), {})
    else:
        found = _image(kind, body, shape, max_pixels)
    rows = len(found.inputs) if isinstance(found.inputs, Table) or found.inputs.ndim else 0
    if not 1 <= rows <= max_rows:
        received = f"{rows}; send several requests" if rows else "none"
        raise DataError(f"inputs: expected 1 to {max_rows} data, received {received}")
    if columns and not isinstance(found.inputs, Table):
        raise DataError(f"inputs: expected rows by the names of columns, {_example(columns)}, received others")
    return found


def _json(body: bytes, columns: Sequence[str]) -> Body:
    try:
        document = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DataError(f"body: expected a JSON document ({str(error)[:120]})") from None
    if not isinstance(document, dict) or "inputs" not in document:
        raise DataError(f'body: expected {{"inputs": [...]}} with a list of data, received {short(document)}')
    options = {name: value for name, value in document.items() if name != "inputs"}
    inputs = document["inputs"]
    if not isinstance(inputs, list):
        raise DataError(f"inputs: expected a list of data, received {short(inputs)}")
    if columns and inputs and all(isinstance(row, dict) for row in inputs):
        return Body(_table(inputs, columns), options)
    try:
        values = np.array(inputs)
    except (ValueError, OverflowError, RecursionError):  # lists of different lengths, or nested too deeply
        raise DataError("inputs: expected numbers, every datum of the same shape, received others") from None
    if values.dtype.kind not in "iuf":
        raise DataError(f"inputs: expected lists of numbers, received {short(inputs)}")
    return Body(values.astype(np.float64), options)


def _example(columns: Sequence[str]) -> str:
    """How a document with one row begins."""
    return f'{{"inputs": [{{{json.dumps(columns[0])}: ...}}]}}'


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _table(rows: list[dict[str, Any]], columns: Sequence[str]) -> Table:
    """Cells as texts, as in a file: numbers are printed so that nothing is lost, null is an empty cell."""
    for number, row in enumerate(rows, 1):
        if absent := [name for name in columns if name not in row]:
            raise DataError(f"inputs, row {number}: expected the column {absent[0]!r}, received none")
        if wrong := [v for v in row.values() if isinstance(v, (list, dict, bool))]:
            raise DataError(f"inputs, row {number}: expected numbers and texts, received {short(wrong[0])}")
    cells = {name: [row[name] for row in rows] for name in columns}
    texts = {name: ["" if v is None else v if isinstance(v, str) else repr(v) for v in cells[name]] for name in columns}
    columns_of_text = {name: np.array(values, dtype=object) for name, values in texts.items()}
    return Table(Path("inputs"), columns_of_text, np.arange(1, len(rows) + 1))


def _npy(body: bytes) -> np.ndarray:
    try:
        return read_array(io.BytesIO(body), len(body))
    except Exception as error:  # struct, numpy and Python's own parser each have their own word for a damaged file
        raise DataError(f"body: expected an array of numbers as numpy.save writes it ({str(error)[:120]})") from None


def _image(kind: str, body: bytes, shape: Sequence[int], max_pixels: int) -> Body:
    """An image (1, channels, height, width) of whole numbers from 0 to 255, in the size and colours of the network."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(f"body: expected data of shape {tuple(shape)} as JSON or npy, received an image")
    require("PIL", "serve", "images")
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(body), formats=[IMAGES[kind]]) as opened:
            size = opened.size
            if size[0] * size[1] > max_pixels:  # known from the header, before anything is unpacked
                raise DataError(
                    f"body: expected an image of at most {max_pixels:,} pixels, received {size[0]}x{size[1]}"
                )
            picture = ImageOps.exif_transpose(opened).convert("L" if shape[0] == 1 else "RGB")
            if picture.size != (shape[2], shape[1]):
                picture = picture.resize((shape[2], shape[1]), Image.Resampling.BILINEAR)
            pixels = np.asarray(picture, dtype=np.uint8)
    except DataError:
        raise
    except Exception as error:  # a damaged image may be anything, a decompression bomb among them
        raise DataError(f"body: expected a readable image of type {kind} ({type(error).__name__})") from None
    return Body(pixels[None, None] if shape[0] == 1 else pixels.transpose(2, 0, 1)[None].copy(), {}, size)
