"""Real targets: Gaussian noise around the output, of a fixed, learned or predicted level."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..checks import number, one_of
from ..errors import DataError
from .base import Likelihood, check_tensor, full, shape_of

Noise = Literal["fixed", "learned", "heteroscedastic"]


class Regression(Likelihood):
    r"""Gaussian noise around the output: y ~ N(mean, std^2), independently in every output dimension.

    noise: "learned" by default, "fixed" where a std alone is given. "fixed": std is the number given. "learned":
    std = softplus(raw), one number for all data, a parameter of the likelihood that starts at `std` (without one at 1,
    and `fit` starts it at the model's residuals; a loop of your own must hand ``elbo.parameters()`` to its optimiser).
    "heteroscedastic": the last dimension of the output is [mean, raw] in halves and std = MIN_STD + softplus(raw).

    outputs (batch, ...), targets the same shape; (batch,) and (batch, 1) are aligned, nothing else is.

    >>> Regression(std=2.0).log_prob(torch.zeros(1, 1), torch.tensor([2.0]))  # -1/2 - log 2 - log(2 pi) / 2
    tensor([-2.1121])
    >>> mean, noise = Regression("heteroscedastic").mean_and_noise(torch.zeros(5, 6))
    >>> mean.shape, noise.shape
    (torch.Size([5, 3]), torch.Size([5, 3]))
    """

    task = "regression"
    MIN_STD = 1e-4  # a datum fitted exactly must not have infinite density

    def __init__(self, noise: Noise | None = None, std: float | None = None) -> None:
        super().__init__()
        noise = noise or ("learned" if std is None else "fixed")
        one_of("Regression.noise", noise, ("fixed", "learned", "heteroscedastic"))
        self.starts_at_residuals = noise == "learned" and std is None
        std = number("Regression.std", 1.0 if std is None else std, above=0)
        self.noise, self.fixed_std = noise, std
        if noise == "learned":
            self.raw_std = nn.Parameter(torch.tensor(std + math.log(-math.expm1(-std))))  # softplus^-1, stable

    @property
    def std(self) -> float | None:
        """The noise standard deviation; None if it depends on the input."""
        if self.noise == "learned":
            return float(F.softplus(self.raw_std.detach().double()))
        return self.fixed_std if self.noise == "fixed" else None

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs = full(outputs)
        mean, std = self._mean_and_std(outputs)
        error = (self.align(outputs, targets) - mean) / std
        log_prob = -0.5 * error.square() - std.log() - 0.5 * math.log(2 * math.pi)
        return log_prob.flatten(1).sum(1) if log_prob.ndim > 1 else log_prob

    def align(self, outputs: Tensor, targets: Tensor) -> Tensor:
        mean, _ = self._mean_and_std(outputs)
        check_tensor(targets, "regression")
        if targets.is_complex() or targets.dtype == torch.bool:
            raise DataError(f"regression: expected real targets, received {targets.dtype}")
        if targets.shape != mean.shape:
            # (batch,) against (batch, 1) would broadcast to (batch, batch): the classic silent mistake.
            if targets.ndim == 0 or mean.ndim == 0 or _without_last_one(targets) != _without_last_one(mean):
                hint = "; [mean, raw] in halves, so twice as many outputs as targets" if self._halves else ""
                raise DataError(
                    f"regression: expected targets of shape {shape_of(mean)}, received {shape_of(targets)}{hint}"
                )
            targets = targets.reshape(mean.shape)
        if targets.is_floating_point() and not bool(torch.isfinite(targets).all()):
            where = (~torch.isfinite(targets)).nonzero()[0].tolist()
            raise DataError(
                f"regression: expected finite targets, received {targets[tuple(where)].item()} at {where} of the "
                "batch; drop or fill what is missing"
            )
        return targets.to(mean.dtype)

    def mean_and_noise(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = self._mean_and_std(full(outputs))
        return mean, std.square().expand_as(mean)

    def start_at(self, errors: Tensor) -> None:
        """Start a learned noise level at the root mean square of these errors."""
        std = float(errors.detach().double().square().mean().sqrt().clamp_min(self.MIN_STD))
        with torch.no_grad():
            self.raw_std.fill_(std + math.log(-math.expm1(-std)))

    @property
    def _halves(self) -> bool:
        return self.noise == "heteroscedastic"

    def _mean_and_std(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        if self._halves:
            if outputs.ndim < 2 or outputs.shape[-1] % 2:
                raise DataError(
                    "heteroscedastic regression: expected outputs whose last dimension is [mean, raw] in halves, "
                    f"received {shape_of(outputs)}; give the network twice as many outputs"
                )
            mean, raw = outputs.chunk(2, dim=-1)
            return mean, F.softplus(raw) + self.MIN_STD
        if outputs.ndim == 0:
            raise DataError("regression: expected outputs with a batch dimension, received a scalar")
        if self.noise == "learned":
            return outputs, F.softplus(self.raw_std).to(outputs.dtype)
        return outputs, outputs.new_tensor(self.fixed_std)

    def extra_repr(self) -> str:
        shown = "" if self.std is None else f", std={float(f'{self.std:.9g}')}"  # as many as float32 has
        return f"noise={self.noise!r}{shown}"

    def to_dict(self) -> dict[str, Any] | None:
        fields = {"noise": self.noise} if self._halves else {"noise": self.noise, "std": self.std}
        return {"kind": "Regression", "version": 1, **fields}


def _without_last_one(tensor: Tensor) -> torch.Size:
    return tensor.shape[:-1] if tensor.ndim > 1 and tensor.shape[-1] == 1 else tensor.shape
