"""Checkpoint files: whole or absent, verified before use, and never a pickle of anything but tensors and plain values.

A file is a line that names the format, the BLAKE2 digest of what follows, and a ``torch.save`` of a dictionary (whose
own zip checksums torch does not verify). Reading goes through ``weights_only=True``.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ArtifactError, TrainingError
from ..files import write_bytes

MAGIC = b"leanbayes checkpoint 1\n"
_DIGEST = 32


def write(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Replace the checkpoint at `path`; a crash at any moment leaves the old one or the new one."""
    write_bytes(path, dumps(content))


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a checkpoint; a damaged or foreign file is refused.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(folder + "/a.ckpt", {"step": 3, "weight": torch.ones(2)})
    ...     read(folder + "/a.ckpt")
    {'step': 3, 'weight': tensor([1., 1.])}
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path}: expected a readable checkpoint ({error.strerror})") from error
    return loads(data, str(path))


def dumps(content: dict[str, Any]) -> bytes:
    """The bytes of a checkpoint."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    payload = buffer.getbuffer()
    return b"".join((MAGIC, hashlib.blake2b(payload, digest_size=_DIGEST).digest(), payload))


def loads(data: bytes, name: str = "checkpoint") -> dict[str, Any]:
    """The content of the bytes of a checkpoint."""
    if not data.startswith(MAGIC):
        version = data[: len(MAGIC)].startswith(MAGIC[: MAGIC.rindex(b" ")])
        what = "one of another version of leanbayes" if version else "something else, or a damaged file"
        raise ArtifactError(
            f"{name}: expected a checkpoint written by leanbayes.fit, received {what}; delete it or move it"
        )
    start = len(MAGIC) + _DIGEST
    payload = memoryview(data)[start:]
    if hashlib.blake2b(payload, digest_size=_DIGEST).digest() != data[len(MAGIC) : start]:
        raise ArtifactError(f"{name}: expected a whole checkpoint, received a damaged or truncated one; delete it")
    try:
        content = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds; whichever it is, the file is not one of ours
        raise ArtifactError(
            f"{name}: expected tensors and plain values only, and could not read it: {error}"
        ) from error
    if not isinstance(content, dict):
        raise ArtifactError(f"{name}: expected a dictionary, received {type(content).__name__}")
    return content


def check_plain(content: dict[str, Any]) -> None:
    """Refuse, at the start and not after hours, whatever could be written but not read back."""
    for part, value in content.items():
        try:
            loads(dumps({part: value}))
        except Exception as error:
            raise TrainingError(
                f"checkpoint: expected the state of the {part} to be tensors and plain values, received something else "
                f"({str(error).splitlines()[0]}); give it a plain state_dict, or train without checkpoint="
            ) from error


def check_tensors(path: Any, part: str, stored: dict[str, Any], present: dict[str, Any]) -> None:
    """Refuse a stored state_dict that does not fit the one it would replace."""
    missing, unknown = sorted(present.keys() - stored.keys()), sorted(stored.keys() - present.keys())
    if missing or unknown:
        what = f"lacks {missing[0]!r}" if missing else f"has {unknown[0]!r} besides"
        raise ArtifactError(
            f"{path}: expected the {part} of this run, but the checkpoint {what}; was the model changed?"
        )
    for name, value in present.items():
        found = tuple(stored[name].shape) if isinstance(stored[name], Tensor) else None
        if isinstance(value, Tensor) and found != tuple(value.shape):
            raise ArtifactError(
                f"{path}: {part} {name!r}: expected shape {tuple(value.shape)}, "
                f"received {found or ()}; was the model changed?"
            )


def check_equal(path: Any, stored: dict[str, Any], present: dict[str, Any]) -> None:
    """Refuse to continue a run whose settings differ, since it would be neither this run nor that one."""
    for name, value in present.items():
        if stored.get(name) != value:
            raise ArtifactError(
                f"{path}: written with {name}={stored.get(name)!r}, this run has {name}={value!r}; "
                "use the same settings, or another checkpoint path"
            )
