"""Structured Bayesian pruning (Neklyudov et al., 2017): noise on channels, which shows those that can be removed.

A baseline of sparse subspace VI (SBP in its table 2). Start, interval and threshold are those of the authors' code,
which puts the noise of a convolution on its outputs, under a frozen BatchNorm, and draws it once a batch. Here it is on
the inputs of every layer, since a BatchNorm in training would undo a scale, and each datum has its own draw, which
makes gradients less noisy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...config import check_between
from ...method import Method
from ...registry import register


@register
@dataclass(frozen=True)
class StructuredPruning(Method):
    """Log-normal noise on the channels (features) that enter a layer, under a log-uniform prior that prunes.

    theta = e^z, z ~ N(mu, sigma^2) cut to [low, 0]; weights stay ordinary parameters. A channel whose theta has a
    signal-to-noise ratio below 1 carries nothing: `prune_channels_` removes it.

    Args:
        log_std: where log sigma starts; mu starts at 0.
        low: the logarithm of the least scale.

    On its own it takes every Linear and convolution but the first, whose inputs are the data.

    >>> from torch import nn
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> plan = lb.bayesianize_(model, StructuredPruning())
    >>> plan.converted, plan.parameters_after - plan.parameters_before
    (['2'], 16)
    """

    summary: ClassVar[str] = "noise on whole channels; prunes those that it drowns"

    log_std: float = -5.0
    low: float = -20.0

    def __post_init__(self) -> None:
        check_between(self, "log_std", -20.0, 5.0)
        check_between(self, "low", -50.0, -1.0)
