"""Checkpoint files: whole or absent, verified before use, no pickle.

A file is a `leanbayes.container`: tensors in safetensors, the rest as JSON in its header, and a digest of the whole.
Version 0.1 wrote a line, a digest and a ``torch.save``: such a file is still read, with ``weights_only=True``.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import _version, container
from ..errors import ArtifactError, TrainingError
from ..files import previous, write_bytes
from . import plain

_OLD = b"leanbayes checkpoint 1\n"
_DIGEST = 32


class ResumeError(TrainingError, ArtifactError):
    """The checkpoint is from another run than the one that resumes; nothing has been changed."""


def write(path: str | os.PathLike[str], content: dict[str, Any], *, keep_previous: bool = False) -> None:
    """Replace the checkpoint at `path`; see `leanbayes.files.write_bytes`."""
    write_bytes(path, dumps(content), keep_previous=keep_previous)


def dumps(content: dict[str, Any]) -> bytes:
    """The bytes of a checkpoint."""
    tensors, document = plain.encode(content)
    return container.pack(tensors, {"leanbayes": _version.__version__, "checkpoint": document})


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a checkpoint; a damaged or foreign file is refused.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(folder + "/a.ckpt", {"step": 3, "weight": torch.ones(2)})
    ...     read(folder + "/a.ckpt")
    {'step': 3, 'weight': tensor([1., 1.])}
    """
    try:
        content = _read_old(path) if is_old(path) else _read(path)
    except ArtifactError as error:
        kept = previous(path)
        hint = f"; {str(kept)!r} holds the one before it: rename it to go on from there" if kept.is_file() else ""
        raise ArtifactError(f"{error}{hint}") from error
    if not isinstance(content, dict):
        raise ArtifactError(f"{path}: expected a dictionary, received {type(content).__name__}")
    return content


def is_old(path: str | os.PathLike[str]) -> bool:
    """Whether the file was written by version 0.1."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_OLD)) == _OLD
    except OSError as error:
        raise ArtifactError(f"{path}: expected a readable checkpoint ({error.strerror})") from error


def remove(path: str | os.PathLike[str]) -> None:
    """Remove a checkpoint and the one before it, if they are there."""
    for file in (Path(path), previous(path)):
        file.unlink(missing_ok=True)


def check_plain(content: dict[str, Any]) -> None:
    """Refuse a state that cannot be written, before training starts."""
    for part, value in content.items():
        try:
            dumps({part: value})
        except Exception as error:
            raise TrainingError(
                f"checkpoint: expected the state of the {part} to be tensors and plain values, received something else "
                f"({str(error).splitlines()[0]}); give it a plain state_dict, or train without checkpoint="
            ) from error


def check_tensors(path: Any, part: str, stored: Any, present: dict[str, Any]) -> None:
    """Refuse a stored state_dict whose names, shapes or dtypes differ from the present one."""
    if not isinstance(stored, dict):
        raise ArtifactError(f"{path}: {part}: expected a state_dict, received {type(stored).__name__}")
    missing, unknown = sorted(present.keys() - stored.keys()), sorted(stored.keys() - present.keys(), key=str)
    if missing or unknown:
        what = f"lacks {missing[0]!r}" if missing else f"has {unknown[0]!r} besides"
        raise ResumeError(f"{path}: expected the {part} of this run, but the checkpoint {what}; was the model changed?")
    for name, value in present.items():
        for old, new in zip(_shape_and_dtype(stored[name]), _shape_and_dtype(value), strict=True):
            if old != new:
                raise ResumeError(f"{path}: {part} {name!r}: expected {new}, received {old}; was the model changed?")


def check_equal(path: Any, stored: dict[str, Any], present: dict[str, Any]) -> None:
    """Refuse to resume with other settings. Settings that an older version did not write are not compared."""
    for name, value in present.items():
        if name in stored and (found := difference(name, stored[name], value)) is not None:
            what, old, new = found
            raise ResumeError(
                f"{path}: written with {what}={old!r}, this run has {what}={new!r}; "
                "use the same settings, or another checkpoint path"
            )


def difference(name: str, old: Any, new: Any) -> tuple[str, Any, Any] | None:
    """The name of the first difference between two nested values, and both values; None if they are equal.

    >>> difference("prior", {"kind": "Normal", "std": 1.0}, {"kind": "Normal", "std": 2.0})
    ('prior.std', 1.0, 2.0)
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *(k for k in old if k not in new)]:
            if (found := difference(f"{name}.{key}", old.get(key), new.get(key))) is not None:
                return found
        return None
    return None if old == new else (name, old, new)


def _shape_and_dtype(value: Any) -> tuple[str, str]:
    is_tensor = isinstance(value, Tensor)
    return (f"shape {tuple(value.shape)}", str(value.dtype)) if is_tensor else (type(value).__name__, "")


def _read(path: str | os.PathLike[str]) -> Any:
    tensors, document = container.read(path)
    if "checkpoint" not in document:
        raise ArtifactError(
            f"{path}: expected a checkpoint written by leanbayes.fit, received another file of leanbayes; choose "
            "another path"
        )
    try:
        return plain.decode(tensors, document["checkpoint"])
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}") from error


def _read_old(path: str | os.PathLike[str]) -> Any:
    data = Path(path).read_bytes()
    start = len(_OLD) + _DIGEST
    payload = memoryview(data)[start:]
    if hashlib.blake2b(payload, digest_size=_DIGEST).digest() != data[len(_OLD) : start]:
        raise ArtifactError(f"{path}: expected a whole checkpoint, received a damaged or truncated one; delete it")
    try:
        return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises errors of many classes
        raise ArtifactError(
            f"{path}: expected tensors and plain values only, and could not read it: {error}"
        ) from error
