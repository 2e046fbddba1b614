"""Selecting rows of a prediction, and pooling predictions of the same data from different samples."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .predictive import Predictive, entropy


def rows(pred: Predictive, index: Tensor) -> Predictive:
    """The predictions of some data, by their positions.

    >>> pred = Predictive("classification", *torch.rand(5, 3).unbind(), "loop")
    >>> rows(pred, torch.tensor([2, 0])).counts.shape
    torch.Size([2])
    """
    by_sample = ("drawn", "noise")
    parts = {name: value for name, value in vars(pred).items() if isinstance(value, Tensor) and name != "weights"}
    return replace(pred, **{name: part[:, index] if name in by_sample else part[index] for name, part in parts.items()})  # type: ignore[arg-type]


def pooled(first: Predictive, second: Predictive) -> Predictive:
    """One classification from two predictions for the same data with different samples, weighted by their counts.

    >>> probabilities = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    >>> none = torch.zeros(1)
    >>> a, b = (Predictive("classification", p, 0 * p, none, none, none + 1, "loop") for p in probabilities)
    >>> pooled(a, b).mean, pooled(a, b).epistemic
    (tensor([[0.5000, 0.5000]]), tensor([0.6931]))
    """
    total = first.counts + second.counts

    def mean(a: Tensor, b: Tensor) -> Tensor:
        share = (first.counts / total).to(a).reshape(-1, *(1,) * (a.ndim - 1))
        return share * a + (1 - share) * b

    centre, inner = mean(first.mean, second.mean), mean(first.aleatoric, second.aleatoric)
    spread = mean(first.variance + (first.mean - centre).square(), second.variance + (second.mean - centre).square())
    return replace(
        first,
        mean=centre,
        variance=spread,
        aleatoric=inner,
        epistemic=(entropy(centre) - inner).clamp_min(0),
        counts=total,
        drawn=None if first.drawn is None or second.drawn is None else torch.cat([first.drawn, second.drawn]),
        energies=None if first.energies is None or second.energies is None else mean(first.energies, second.energies),
    )
