"""The file behind `save`: safetensors, with one JSON document in its header and a digest of the whole file in that.

Nothing here knows models. Whatever a file holds, reading it gives tensors and JSON or an ArtifactError; no code is run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

from torch import Tensor

from .errors import ArtifactError
from .files import name_of

FORMAT, VERSION = "leanbayes", 1
_KEY = "leanbayes"  # of the one entry in the metadata of the safetensors header
_BLANK = "0" * 64  # stands for the digest while it is computed
# Of a header: as text, and as the values it becomes, which take up to 72 bytes each. The largest networks have some
# 10,000 tensors.
_MOST, _MOST_VALUES = 16_000_000, 2_000_000
_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 8),
}


def pack(tensors: dict[str, Tensor], document: dict[str, Any]) -> bytes:
    """The bytes of a file; the same tensors and document give the same bytes.

    The digest is BLAKE2b-256 of the whole file with zeros in its place: it finds damage, not forgery.

    >>> import torch
    >>> pack({"w": torch.ones(2)}, {"note": "x"}) == pack({"w": torch.ones(2)}, {"note": "x"})
    True
    """
    from safetensors.torch import save

    # the digest comes first, so that nothing else in the document can be mistaken for it
    document = {"digest": _BLANK, "format": FORMAT, "version": VERSION, **document}
    try:
        data = bytearray(save(tensors, {_KEY: json.dumps(document, allow_nan=False)}))
    except Exception as error:  # a dtype that the format does not have; a number that JSON does not have
        raise ArtifactError(f"expected tensors and values that safetensors and JSON can hold: {error}") from error
    if (size := int.from_bytes(data[:8], "little")) > _MOST:
        raise ArtifactError(f"expected a header of at most {_MOST:,} bytes, received {size:,}; shorten the metadata")
    if (values := _values(data[8 : 8 + size])) > _MOST_VALUES:
        raise ArtifactError(
            f"expected a header of at most {_MOST_VALUES:,} values, received {values:,}; shorten the metadata"
        )
    at = data.index(_BLANK.encode())
    data[at : at + len(_BLANK)] = hashlib.blake2b(data, digest_size=32).hexdigest().encode()
    return bytes(data)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the document of a file, proved whole."""
    from safetensors.torch import load

    where = name_of(path)
    with _readable(where), open(path, "rb") as file:
        entries, _ = _header(file, where)  # before the rest is read
        file.seek(0)
        data = file.read()
    document, size = _document(entries, where), int.from_bytes(data[:8], "little")
    at = data.find(document["digest"].encode(), 8, 8 + size)
    digest = hashlib.blake2b(digest_size=32)
    for part in (data[: max(at, 0)], _BLANK.encode(), memoryview(data)[at + len(_BLANK) :]):
        digest.update(part)
    if at < 0 or digest.hexdigest() != document["digest"]:
        raise ArtifactError(f"{where}: damaged: its content is not what was written; copy or download it again")
    try:
        return load(data), document
    except Exception as error:  # safetensors' own errors, and a dtype that this torch does not know
        raise ArtifactError(f"{where}: expected the tensors of a safetensors file, but {error}") from error


def read_header(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The document, and dtype and shape of the tensors by name, without reading the tensors or proving them whole."""
    where = name_of(path)
    with _readable(where), open(path, "rb") as file:
        entries, tensors = _header(file, where)
    return _document(entries, where), tensors


def _header_size(start: bytes, length: int, where: str) -> int:
    size = int.from_bytes(start, "little")
    if len(start) == 8 and 2 <= size <= min(length - 8, _MOST):
        return size
    if start[:4] == b"PK\x03\x04" or (start[:1] == b"\x80" and start[1:2] <= b"\x05"):
        raise ArtifactError(
            f"{where}: this is a pickle (torch.save), which can run any code when it is read, so it is refused; if you "
            "trust it: model.load_state_dict(torch.load(path, weights_only=True)), then leanbayes.save(model, ...)"
        )
    raise ArtifactError(f"{where}: expected a safetensors file, received something else or only a part of one")


def _header(file: BinaryIO, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entries of a header, and dtype and shape of the tensors by name, which fill the rest of the file exactly."""
    length = os.fstat(file.fileno()).st_size
    size = _header_size(file.read(8), length, where)
    header = file.read(size)
    message = f"{where}: expected a safetensors file, but its header is damaged"
    if (values := _values(header)) > _MOST_VALUES:
        raise ArtifactError(f"{message}: {values:,} values where at most {_MOST_VALUES:,} are read")
    entries = _json(header, message)
    if not isinstance(entries, dict) or not all(isinstance(v, dict) for v in entries.values()):
        raise ArtifactError(message)
    tensors = {name: entry for name, entry in entries.items() if name != "__metadata__"}
    spans = sorted(_span(entry, f"{message} at {name[:100]!r}") for name, entry in tensors.items())
    ends = [0, *(end for _, end in spans)]
    if any(start != end for (start, _), end in zip(spans, ends, strict=False)) or ends[-1] != length - 8 - size:
        raise ArtifactError(f"{message}: expected tensors side by side up to the end of the file, received others")
    return entries, {name: {"dtype": entry["dtype"], "shape": entry["shape"]} for name, entry in tensors.items()}


def _span(entry: dict[str, Any], message: str) -> tuple[int, int]:
    """The start and end of a tensor in the file, checked against its dtype and shape."""
    dtype, shape, span = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not (isinstance(dtype, str) and _whole(shape) and _whole(span) and len(span) == 2 and len(shape) <= 64):  # type: ignore[arg-type]
        raise ArtifactError(f"{message}: expected dtype, shape and data_offsets, received others")
    start, end = span  # type: ignore[misc]
    # a dtype that is not known here, safetensors and torch may know
    if start > end or (dtype in _BYTES and math.prod(shape) * _BYTES[dtype] != end - start):  # type: ignore[arg-type]
        raise ArtifactError(f"{message}: expected {dtype[:20]} of shape {shape}, received {end - start:,} bytes")
    return start, end


def _whole(values: Any) -> bool:
    return isinstance(values, list) and all(type(n) is int and 0 <= n < 2**62 for n in values)


def _values(header: bytes | bytearray) -> int:
    """An upper bound of the number of values in the JSON of a header, nested documents included."""
    return sum(header.count(mark) for mark in (b",", b"[", b"{"))


def _document(entries: dict[str, Any], where: str) -> dict[str, Any]:
    """The JSON that `pack` put into the header; refused if it is of another program or a newer version."""
    text = entries.get("__metadata__", {}).get(_KEY)
    if not isinstance(text, str):
        raise ArtifactError(
            f"{where}: a safetensors file, but not one that leanbayes.save wrote; for bare weights use "
            "model.load_state_dict(safetensors.torch.load_file(path))"
        )
    message = f"{where}: expected the header of leanbayes.save, received a damaged one; copy or download the file again"
    document = _json(text, message)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ArtifactError(message)
    version, digest = document.get("version"), document.get("digest")
    if type(version) is int and version > VERSION:  # before all else: a newer format may differ in everything else
        raise ArtifactError(
            f"{where}: written by a newer leanbayes ({str(document.get('leanbayes'))[:20]}, format {version}; this one "
            f"reads up to {VERSION}); pip install --upgrade leanbayes"
        )
    if type(version) is not int or version != VERSION or not isinstance(digest, str) or len(digest) != len(_BLANK):
        raise ArtifactError(message)
    if not digest.isascii():
        raise ArtifactError(message)
    return document


def _json(text: str | bytes, message: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:  # nested too deep to be ours
        raise ArtifactError(f"{message} ({type(error).__name__})") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping; duplicate keys are refused, since readers disagree on them."""
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key stands twice")
    return made


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


@contextlib.contextmanager
def _readable(where: str) -> Iterator[None]:
    try:
        if not os.path.isfile(where):
            raise FileNotFoundError("it is a directory" if os.path.isdir(where) else "there is none")
        yield
    except OSError as error:
        raise ArtifactError(f"{where}: expected a readable file ({error})") from error
