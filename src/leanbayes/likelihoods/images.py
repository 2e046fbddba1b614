"""Images as targets: a Bernoulli variable a pixel, or a logistic distribution over its 256 grey values.

Gaussian pixels are `leanbayes.Regression`: its log-likelihood sums over whatever a datum has, pixels included.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..checks import number, whole_number
from ..errors import DataError
from .base import Likelihood, check_tensor, full, shape_of


class ImageLikelihood(Likelihood):
    """The base of image likelihoods: targets in [0, 1], in the shape of the outputs."""

    def align(self, outputs: Tensor, targets: Tensor) -> Tensor:
        check_tensor(targets, self.task)
        if targets.shape != outputs.shape:
            raise DataError(
                f"{self.task}: expected images of the shape of the outputs, {shape_of(outputs)}, received "
                f"{shape_of(targets)}"
            )
        targets = targets.to(full(outputs).dtype)
        if not bool(((targets >= 0) & (targets <= 1)).all()):
            low, high = float(targets.min()), float(targets.max())
            raise DataError(
                f"{self.task}: expected pixels in [0, 1], received values from {low:.4g} to {high:.4g}; divide bytes "
                "by 255, and load data with normalise=False"
            )
        return targets


class Bernoulli(ImageLikelihood):
    """A Bernoulli variable in every pixel: p(x | f) = prod sigmoid(f)^x (1 - sigmoid(f))^(1 - x).

    Grey values between 0 and 1 are taken as probabilities, as is usual for MNIST: the bound is then the average over
    binarised images, up to a constant.

    outputs (batch, ...) of logits, targets in [0, 1] of the same shape.

    >>> Bernoulli().log_prob(torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2))  # -4 log 2
    tensor([-2.7726])
    """

    task = "bernoulli"

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        targets = self.align(outputs, targets)
        return -F.binary_cross_entropy_with_logits(full(outputs), targets, reduction="none").flatten(1).sum(1)

    def mean_and_noise(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean = full(outputs).sigmoid()
        return mean, mean * (1 - mean)

    def to_dict(self) -> dict[str, Any] | None:
        return {"kind": "Bernoulli", "version": 1}


class DiscretizedLogistic(ImageLikelihood):
    r"""Grey values, each with the mass that a logistic distribution puts on its bin (Kingma et al., 2016).

    P(x) = sigmoid((x + b/2 - m) / s) - sigmoid((x - b/2 - m) / s), b = 1 / (levels - 1); the first and the last value
    take what lies beyond. m = sigmoid(output); s is one number for all pixels, a parameter that starts at ``scale``.

    outputs (batch, ...), targets in [0, 1] of the same shape: grey values divided by levels - 1.

    >>> values = torch.linspace(0, 1, 4).reshape(4, 1)
    >>> DiscretizedLogistic(levels=4).log_prob(torch.zeros(4, 1), values).exp().sum()
    tensor(1., grad_fn=<SumBackward0>)
    """

    task = "discretized-logistic"

    def __init__(self, levels: int = 256, scale: float = 0.1) -> None:
        super().__init__()
        self.levels = whole_number("DiscretizedLogistic.levels", levels, at_least=2, at_most=65536)
        scale = number("DiscretizedLogistic.scale", scale, above=0)
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)))

    @property
    def scale(self) -> float:
        """s."""
        return float(self.log_scale.detach().double().exp())

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        targets = self.align(outputs, targets)
        mean, scale = full(outputs).sigmoid(), self.log_scale.to(targets).exp()
        width = 1 / (self.levels - 1)
        value = (targets / width).round() * width  # a grey value, whatever rounding made of it
        above, below = (value + width / 2 - mean) / scale, (value - width / 2 - mean) / scale
        # log(sigmoid(a) - sigmoid(b)) = logsigmoid(a) + logsigmoid(-b) + log(1 - exp(b - a)), exact in both tails
        inside = F.logsigmoid(above) + F.logsigmoid(-below) + torch.log(-torch.expm1(-width / scale))
        first, last = targets < width / 2, targets > 1 - width / 2
        log_mass = torch.where(first, F.logsigmoid(above), torch.where(last, F.logsigmoid(-below), inside))
        return log_mass.flatten(1).sum(1)

    def mean_and_noise(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Of the logistic distribution, without its bins: variance s^2 pi^2 / 3."""
        mean = full(outputs).sigmoid()
        return mean, torch.full_like(mean, (self.scale * math.pi) ** 2 / 3)

    def to_dict(self) -> dict[str, Any] | None:
        return {"kind": "DiscretizedLogistic", "version": 1, "levels": self.levels, "scale": self.scale}
