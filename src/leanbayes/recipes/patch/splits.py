"""The data of `patch-regression`: the published splits of the UCI sets."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...data import load


@dataclass(frozen=True)
class Task:
    """A data set: how many of its splits, and how long, and how wide."""

    data: str
    splits: int = 20
    epochs: int = 4000
    hidden: int = 50


@dataclass(frozen=True)
class Split:
    """The parts of one split, inputs (rows, features) and targets (rows, 1) standardised by the training part.

    scale: the standard deviation of the training targets, in their own unit.
    """

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    scale: float


def splits_of(task: Task) -> list[Split]:
    """All splits of a set."""
    if task.data == "digits":
        return _ink(task.splits)
    found = [load(task.data, split=number, val_fraction=0) for number in range(task.splits)]
    parts = [(one.train.tensors, one.test.tensors, one.y_std) for one in found]
    return [Split(train[0], train[1], test[0], test[1], scale) for train, test, scale in parts]


def _ink(splits: int) -> list[Split]:
    """A regression that needs no download: from the left halves of the digits to the ink in the right ones."""
    data = load("digits", parts="test", normalise=False).test.tensors[0][:, 0]
    x, y = data[:, :, :4].sum(2), data[:, :, 4:].sum((1, 2)).unsqueeze(1)
    found = []
    for number in range(splits):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(number))
        train_rows, test_rows = order[30:], order[:30]
        a, b = ((t - t[train_rows].mean(0)) / (t[train_rows].std(0, correction=0) + 1e-8) for t in (x, y))
        scale = float(y[train_rows].std(correction=0))
        found.append(Split(a[train_rows], b[train_rows], a[test_rows], b[test_rows], scale))
    return found
