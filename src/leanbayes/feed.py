"""Batches of whatever holds data: how many data there are, and the first of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from . import batches
from .errors import EvaluationError

ROWS = 256
"""Rows a batch of tensors that came without a loader."""


class Wrapper:
    """Data that go through something on their way; ``watched`` are the data themselves."""

    watched: Any


def stream(data: Any) -> Iterator[Any]:
    """Batches of whatever holds data: a loader, a list of batches, a Dataset, a tensor, or a tuple of tensors.

    >>> import torch
    >>> [len(x) for x, y in stream((torch.zeros(600, 2), torch.zeros(600)))]
    [256, 256, 88]
    """
    if _tensors(data):
        parts = data if isinstance(data, tuple) else (data,)
        if len({len(part) for part in parts}) > 1:
            raise EvaluationError(
                f"expected as many targets as inputs, received {' and '.join(str(len(part)) for part in parts)} rows"
            )
        return (batches.rows(data, at, at + ROWS) for at in range(0, len(parts[0]), ROWS))
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return iter(DataLoader(data, batch_size=ROWS))
    try:
        return iter(data)
    except TypeError:
        raise EvaluationError(
            f"expected a loader, a Dataset or a tuple of tensors, received {type(data).__name__}; "
            f"try torch.utils.data.DataLoader(dataset, batch_size=256)"
        ) from None


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
    """The inputs and targets of the first batch, and data that still have it (a generator would have lost it).

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


def length(data: Any) -> int | None:
    """How many data there are, where that can be known without going through them.

    >>> import torch
    >>> length((torch.zeros(600, 2), torch.zeros(600))), length(iter([]))
    (600, None)
    """
    if isinstance(data, Wrapper):
        data = data.watched
    try:
        if isinstance(data, DataLoader):
            if data.batch_size is not None and data.drop_last:
                return len(data) * data.batch_size
            return len(data.sampler) if data.batch_size is not None else None  # type: ignore[arg-type]
        if _tensors(data):
            return len(data[0] if isinstance(data, tuple) else data)
        if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
            return len(data)  # type: ignore[arg-type]
        if isinstance(data, (list, tuple)):
            return sum(batches.size(batches.split(batch)[0]) for batch in data)
    except Exception:  # a sampler or a batch of the user's own may refuse; the loop over it will say why
        return None
    return None


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


def _tensors(data: Any) -> bool:
    return isinstance(data, Tensor) or (
        isinstance(data, tuple) and bool(data) and all(isinstance(part, Tensor) for part in data)
    )
