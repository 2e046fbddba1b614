"""What tells data from other data: digests of every value, made as the data go by."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import batches, feed
from ..errors import ArtifactError

LOOKED_AT = 32
"""Data at the start of a set by which another set is told at once."""


class Fingerprint:
    """A digest of all data of a set, whatever the sizes of the batches they come in.

    >>> x, one, two = torch.arange(6.0).view(3, 2), Fingerprint(), Fingerprint()
    >>> one.add(x)
    >>> two.add(x[:1])
    >>> two.add(x[1:])
    >>> str(one) == str(two), str(one)[:2]
    (True, '3:')
    """

    def __init__(self) -> None:
        self.count = 0
        self._parts: dict[str, tuple[Any, str]] = {}  # digest and form of the values under each name

    def add(self, inputs: Any, targets: Any = None) -> None:
        """Add a batch."""
        self.count += batches.size(inputs)
        for name, value in _leaves((inputs,) if targets is None else (inputs, targets), ""):
            digest, form = self._parts.get(name, (hashlib.blake2b(digest_size=16), ""))
            now = f"{value.dtype} {tuple(value.shape[1:])};" if isinstance(value, Tensor) else "other;"
            if now != form:  # once, unless rows of another length follow
                digest.update(now.encode())
            _update(digest, value)
            self._parts[name] = digest, now

    def __str__(self) -> str:
        whole = hashlib.blake2b(digest_size=8)
        for name in sorted(self._parts):
            whole.update(f"{name}:{self._parts[name][0].hexdigest()};".encode())
        return f"{self.count}:{whole.hexdigest()}"


class Watched(batches.Watching):
    """Data that are the same every time they are gone through, to the last value and batch, or an ArtifactError.

    name: for the message. Its ``digest`` is None until they have been gone through once.

    >>> data = Watched([torch.zeros(2), torch.ones(1)], "test data")
    >>> len(list(data)), data.digest is None
    (2, False)
    >>> data.watched[1][0] = 3
    >>> list(data)
    Traceback (most recent call last):
    leanbayes.errors.ArtifactError: resume: test data: expected the same data every time ...
    """

    def __init__(self, watched: Any, name: str) -> None:
        self.watched, self.name = watched, name
        self._marks: list[str] = []  # digests up to each batch
        self._whole = False

    def __iter__(self) -> Iterator[Any]:
        digest, count = hashlib.blake2b(digest_size=16), 0
        for batch in feed.stream(self.watched):
            for name, value in _leaves(batch, ""):
                shape = tuple(value.shape) if isinstance(value, Tensor) else ()
                digest.update(f"{name} {getattr(value, 'dtype', '')} {shape};".encode())
                _update(digest, value)
            mark = digest.hexdigest()
            if count < len(self._marks) or self._whole:
                if self._marks[count : count + 1] != [mark]:
                    raise self._changed(count)
            else:
                self._marks.append(mark)
            count += 1
            yield batch
        if count < len(self._marks):
            raise self._changed(count)
        self._whole = True

    @property
    def digest(self) -> list[Any] | None:
        """How many batches there are, and a digest of them all."""
        return [len(self._marks), self._marks[-1] if self._marks else ""] if self._whole else None

    def verify(self, digest: Any, path: Any) -> None:
        """Go through the data and refuse them where a file is about others."""
        for _ in self:
            pass
        if self.digest != digest:
            raise ArtifactError(
                f"resume: {path} belongs to another evaluation, its {self.name} differ somewhere behind the first "
                f"{LOOKED_AT}, or come in other batches; delete the file to start anew, or choose another path"
            )

    def _changed(self, batch: int) -> ArtifactError:
        return ArtifactError(
            f"resume: {self.name}: expected the same data every time they are gone through, received others in batch "
            f"{batch} (from 0); take out shuffle=True and random transformations, or evaluate without resume="
        )


def start(data: Any) -> str | None:
    """A digest of the first data of a set, of which no more is gone through; None where there are none.

    >>> start((torch.zeros(2, 3), torch.tensor([0, 1])))
    '64fade6733611d4b'
    """
    first = next(iter(feed.stream(data)), None)
    if first is None:
        return None
    digest = hashlib.blake2b(digest_size=8)
    for name, value in _leaves(batches.rows(first, 0, LOOKED_AT), "", keys_only=True):
        digest.update(name.encode())
        if isinstance(value, Tensor):
            add_tensor(digest, value)
        else:
            _update(digest, value)
    return digest.hexdigest()


def add_tensor(digest: Any, tensor: Tensor) -> None:
    """Add kind, shape and values of a tensor to a digest."""
    digest.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
    _update(digest, tensor)


def _update(digest: Any, value: Any) -> None:
    """Add values alone."""
    if not isinstance(value, Tensor):
        digest.update(f"{value!r};".encode())
    elif value.is_meta:
        digest.update(b"no values;")
    elif value.numel():
        dense = value.detach().to_dense() if value.layout != torch.strided else value.detach()
        dense = dense.dequantize() if dense.is_quantized else dense
        digest.update(dense.cpu().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8).numpy().data)


def _leaves(value: Any, name: str, keys_only: bool = False) -> Iterator[tuple[str, Any]]:
    """The tensors and other values of a batch, each with where it stands; keys_only: places in tuples have no name."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _leaves(value[key], f"{key}:" if keys_only else f"{name}.{key}", keys_only)
    elif isinstance(value, (tuple, list)):
        for place, item in enumerate(value):
            yield from _leaves(item, "" if keys_only else f"{name}.{place}", keys_only)
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        yield name, torch.from_numpy(np.ascontiguousarray(value))
    else:
        yield name, value
