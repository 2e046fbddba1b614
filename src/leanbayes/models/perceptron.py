"""Fully connected networks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import nn

from ..checks import one_of
from .options import check_sizes

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU}


def mlp(
    in_features: int,
    hidden: int | Sequence[int],
    out_features: int,
    *,
    activation: str = "relu",
    batch_norm: bool = False,
    dropout: float = 0.0,
    bias: bool = True,
) -> nn.Sequential:
    """A perceptron: flatten, then Linear - [BatchNorm] - activation - [Dropout] for each hidden width, then Linear.

    Shapes: (batch, ...) whose trailing sizes multiply to ``in_features`` -> (batch, out_features).

    >>> sum(p.numel() for p in mlp(784, (300, 100), 10).parameters())
    266610
    """
    widths = (in_features, *([hidden] if isinstance(hidden, int) else hidden))
    check_sizes("mlp", in_features=in_features, out_features=out_features)
    for width in widths[1:]:
        check_sizes("mlp", hidden=width)
    one_of("mlp.activation", activation, ACTIVATIONS)
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise(widths):
        layers.append(nn.Linear(before, after, bias=bias))
        if batch_norm:
            layers.append(nn.BatchNorm1d(after))
        layers.append(ACTIVATIONS[activation]())
        if dropout:
            layers.append(nn.Dropout(dropout))
    layers.append(nn.Linear(widths[-1], out_features, bias=bias))
    return nn.Sequential(*layers)
