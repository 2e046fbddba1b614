"""Labelled batches of any kind of data: all of them, the first, or slices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from . import batches
from .batches import ROWS, length, stream
from .errors import EvaluationError

__all__ = ["ROWS", "labelled", "length", "peek", "repeatable", "slices", "stream"]


def labelled(data: Any) -> Iterator[tuple[Any, Any]]:
    """Inputs and targets of every batch that is not empty; batches without targets are refused.

    >>> import torch
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
    """The inputs and targets of the first batch, and the data with that batch still in them.

    >>> import torch
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

    >>> import torch
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
