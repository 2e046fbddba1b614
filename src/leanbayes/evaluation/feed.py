"""Labelled batches of whatever holds data: the first of them, slices, what tells one set from another."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .. import batches
from ..batches import ROWS, length, stream
from ..errors import EvaluationError

__all__ = ["ROWS", "fingerprint", "labelled", "length", "peek", "repeatable", "slices", "start", "stream"]
LOOKED_AT = 32
"""Data at the start of a set that its fingerprint is made of."""


def labelled(data: Any) -> Iterator[tuple[Any, Any]]:
    """Inputs and targets of every batch that is not empty; batches without targets are refused.

    >>> [targets.tolist() for inputs, targets in labelled([(torch.zeros(2, 3), torch.tensor([0, 1]))])]
    [[0, 1]]
    """
    for batch in stream(data):
        inputs, targets = batches.split(batch)
        if targets is None:
            raise EvaluationError(
                f"expected batches of (inputs, targets), received {type(batch).__name__} without targets; "
                f"evaluate takes data without labels as ood={{name: loader}}"
            )
        if batches.size(inputs):
            yield inputs, targets


def peek(data: Any) -> tuple[tuple[Any, Any], Any]:
    """The inputs and targets of the first batch, and data that still have it (a generator would have lost it).

    >>> (inputs, targets), data = peek(iter([(torch.zeros(2, 3), torch.tensor([0, 1]))]))
    >>> len(inputs), len(list(data))
    (2, 1)
    """
    batch_by_batch = iter(data) if (once := isinstance(data, Iterator)) else stream(data)
    gone = []
    for batch in batch_by_batch:
        gone.append(batch)
        for found in labelled([batch]):
            return found, itertools.chain(gone, batch_by_batch) if once else data
    raise EvaluationError("loader: expected at least one datum, received none")


def slices(data: Any, size: int, limit: int | None = None) -> Iterator[tuple[int, Any, Any]]:
    """(index of the first datum, inputs, targets) of pieces of at most ``size`` data, up to ``limit`` data in all.

    >>> pair = torch.zeros(10, 2), torch.arange(10)
    >>> [(start, targets.tolist()) for start, _, targets in slices(pair, 4, limit=6)]
    [(0, [0, 1, 2, 3]), (4, [4, 5])]
    """
    seen = 0
    for inputs, targets in labelled(data):
        count = batches.size(inputs)
        count = count if limit is None else min(count, limit - seen)
        for at in range(0, count, size):
            stop = min(at + size, count)
            yield seen + at, batches.rows(inputs, at, stop), batches.rows(targets, at, stop)
        seen += count
        if limit is not None and seen >= limit:
            return


def repeatable(data: Any, what: str, why: str) -> None:
    """Refuse a generator, which can be gone through only once.

    >>> repeatable(iter([]), "loader", "corruptions=")
    Traceback (most recent call last):
    leanbayes.errors.EvaluationError: loader: expected data that can be gone through again, as corruptions= needs, ...
    """
    if isinstance(data, Iterator):
        raise EvaluationError(
            f"{what}: expected data that can be gone through again, as {why} needs, received a "
            f"{type(data).__name__}; give a DataLoader, or list(...) of it"
        )


def fingerprint(batch: Any) -> str:
    """What tells a data set by its beginning: a digest of the first 32 inputs and targets of its first batch.

    >>> fingerprint((torch.zeros(2, 3), torch.tensor([0, 1])))
    '64fade6733611d4b'
    """
    digest = hashlib.blake2b(digest_size=8)
    _digest(digest, batches.rows(batch, 0, LOOKED_AT))
    return digest.hexdigest()


def start(data: Any) -> str | None:
    """The fingerprint of data that have not been gone through; None where there are none."""
    first = next(stream(data), None)
    return None if first is None else fingerprint(first)


def add_tensor(digest: Any, tensor: Tensor) -> None:
    """Add kind, shape and values of a tensor to a digest."""
    tensor = tensor.detach().cpu().contiguous()
    digest.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
    digest.update(tensor.flatten().view(torch.uint8).numpy().data if tensor.numel() else b"")


def _digest(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        add_tensor(digest, value)
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            digest.update(f"{key}:".encode())
            _digest(digest, value[key])
    elif isinstance(value, (tuple, list)):
        for item in value:
            _digest(digest, item)
    else:
        digest.update(repr(value).encode())
