"""Max pooling of blocked activations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .buffers import empty
from .geometry import LANES, Geometry
from .library import call


class MaxPool(torch.autograd.Function):
    """The largest of every window, rectified if wanted; channels of the geometry are those of x, which is blocks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, geometry: Geometry, rectify: bool) -> Tensor:
        height, width = geometry.out_size
        y = empty([x.shape[0], height * width, *x.shape[2:]])
        won = torch.empty(y.shape, dtype=torch.int8) if ctx.needs_input_grad[0] else None
        ctx.numbers, ctx.shape = geometry.numbers(x.shape[0] * LANES), x.shape
        call("leanbayes_pool", ctx.numbers, x.contiguous(), y, won, int(rectify))
        ctx.save_for_backward(won)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (won,) = ctx.saved_tensors
        dx = empty(ctx.shape)
        call("leanbayes_pool_backward", ctx.numbers, grad.contiguous(), won, dx)
        return dx, None, None
