"""Batch normalisation of blocked activations, with the rectifier behind it in the same pass if wanted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .library import call


class Normalise(torch.autograd.Function):
    """gamma (x - mean) / sqrt(var + eps) + beta over batch and positions; mean and biased variance come back too.

    x: (blocks, positions, channels, lanes) of which the first ``batch`` data count.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: Tensor | None, beta: Tensor | None, batch: int, eps: float, rectify: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = x.contiguous()
        y, mean = torch.empty_like(x), x.new_empty(x.shape[2])
        variance = torch.empty_like(mean)
        sizes = torch.tensor([*x.shape, batch])
        call("leanbayes_norm", sizes, x, gamma, beta, float(eps), y, mean, variance, int(rectify))
        ctx.save_for_backward(x, gamma, mean, variance, *([y] if rectify else []))
        ctx.sizes, ctx.eps, ctx.has_beta = sizes, float(eps), beta is not None
        ctx.mark_non_differentiable(mean, variance)
        return y, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
        x, gamma, mean, variance, *rectified = ctx.saved_tensors
        dx, dgamma, dbeta = torch.empty_like(x), torch.empty_like(mean), torch.empty_like(mean)
        y = rectified[0] if rectified else None
        statistics = (mean, variance, gamma)
        call("leanbayes_norm_backward", ctx.sizes, x, grad.contiguous(), y, *statistics, ctx.eps, dx, dgamma, dbeta)
        return dx, dgamma if gamma is not None else None, dbeta if ctx.has_beta else None, None, None, None
