"""What is known of a random activation: its two moments, or draws of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .across import Node


@dataclass
class Moments:
    """Mean and variance of every element, (batch, ...); elements are taken for independent, but for what follows.

    share: the correlation of two positions of a channel (dimensions 2 and up), (2, batch, channels, 1, ...): on average
        over all pairs of positions, and over neighbours. The noise of a filter's weights is the same wherever it looks,
        so that positions vary together as far as what it sees is alike. None: 0.
    covariance: where the features (batch, features) are outputs of a linear layer, computes their covariance
        (batch, features, features): they have inputs in common.
    across: how channels vary together; see `across`.
    """

    mean: Tensor
    variance: Tensor
    share: Tensor | None = None
    covariance: Callable[[], Tensor] | None = None
    across: Node | None = None

    @classmethod
    def fixed(cls, value: Tensor) -> Moments:
        """A value that is certain."""
        return cls(value, torch.zeros_like(value))

    @property
    def std(self) -> Tensor:
        """Standard deviations; a fast convolution may round a variance of 0 below it."""
        return self.variance.clamp_min(0).sqrt_()

    @property
    def square(self) -> Tensor:
        """The second moment, E[x^2]."""
        return torch.addcmul(self.variance, self.mean, self.mean)

    def map(self, function: Callable[[Tensor], Any]) -> Moments:
        """The same change of layout for mean and variance; channels and positions may not be where they were."""
        return Moments(function(self.mean), function(self.variance))

    def drawn(self, noise: Tensor) -> Tensor:
        """Values with these moments, (draws, batch, ...), from standard normal numbers of that shape."""
        if self.share is not None:  # the first number of a channel is that of its common part
            common = noise.flatten(3)[..., :1].reshape(*noise.shape[:3], *(1,) * (noise.ndim - 3))
            noise = self.share[0].sqrt() * common + (1 - self.share[0]).sqrt() * noise
        return torch.addcmul(self.mean, self.std, noise)


@dataclass
class Draws:
    """Values in every one of S samples, (S, batch, ...)."""

    values: Tensor
