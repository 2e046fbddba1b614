"""The file behind `save`: safetensors, with one JSON document in its header and a digest of the whole file in that.

Nothing here knows models. Whatever a file holds, reading it gives tensors and JSON or an ArtifactError; no code is run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from .errors import ArtifactError

FORMAT, VERSION = "leanbayes", 1
_KEY = "leanbayes"  # of the one entry in the metadata of the safetensors header
_BLANK = "0" * 64  # stands for the digest while it is computed
_MOST = 100_000_000  # bytes of header, the limit of safetensors itself


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
    at = data.index(_BLANK.encode())
    data[at : at + len(_BLANK)] = hashlib.blake2b(data, digest_size=32).hexdigest().encode()
    return bytes(data)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the document of a file, proved whole."""
    from safetensors.torch import load

    where = name_of(path)
    with _readable(where):
        data = Path(path).read_bytes()
    size = _header_size(data[:8], len(data), where)
    document = _document(_entries(data[8 : 8 + size], where), where)
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
        size = _header_size(file.read(8), os.fstat(file.fileno()).st_size, where)
        header = file.read(size)
    entries = _entries(header, where)
    document = _document(entries, where)
    tensors = {k: {"dtype": v.get("dtype"), "shape": v.get("shape")} for k, v in entries.items() if k != "__metadata__"}
    return document, tensors


def name_of(path: Any) -> str:
    """A path as text for messages."""
    try:
        text = os.fsdecode(path)
    except TypeError as error:
        raise ArtifactError(f"expected the path of a file, received {type(path).__name__}") from error
    if not text or "\0" in text:
        raise ArtifactError(f"expected the path of a file, received {text!r}")
    return text


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


def _entries(header: bytes, where: str) -> dict[str, Any]:
    message = f"{where}: expected a safetensors file, but its header is damaged"
    entries = _json(header, message)
    if not isinstance(entries, dict) or not all(isinstance(v, dict) for v in entries.values()):
        raise ArtifactError(message)
    return entries


def _document(entries: dict[str, Any], where: str) -> dict[str, Any]:
    """The JSON that `pack` put into the header; refused where it is not ours or newer than this code."""
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
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # nested too deep to be ours
        raise ArtifactError(f"{message} ({type(error).__name__})") from error


@contextlib.contextmanager
def _readable(where: str) -> Iterator[None]:
    try:
        if not os.path.isfile(where):
            raise FileNotFoundError("it is a directory" if os.path.isdir(where) else "there is none")
        yield
    except OSError as error:
        raise ArtifactError(f"{where}: expected a readable file ({error})") from error
