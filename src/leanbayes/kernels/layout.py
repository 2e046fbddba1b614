"""Activations in blocks of the batch: [blocks][positions][channels][lanes], and back to (batch, channels, *size)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .geometry import LANES
from .library import call


@torch.library.custom_op("leanbayes::block", mutates_args=())
def block(x: Tensor) -> Tensor:
    """(batch, channels, *size) to blocks; lanes beyond the batch are zero."""
    out = x.new_empty(_blocked_shape(x))
    call("leanbayes_block", x.contiguous(), out, x.shape[0], x.shape[1], out.shape[1])
    return out


@torch.library.custom_op("leanbayes::unblock", mutates_args=())
def unblock(y: Tensor, shape: list[int]) -> Tensor:
    """Blocks to a tensor of ``shape`` = (batch, channels, *size)."""
    out = y.new_empty(shape)
    call("leanbayes_unblock", y.contiguous(), out, shape[0], shape[1], y.shape[1])
    return out


def _blocked_shape(x: Tensor) -> list[int]:
    positions = x[0, 0].numel() if len(x) else 1
    return [-(-x.shape[0] // LANES), positions, x.shape[1], LANES]


@block.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(_blocked_shape(x))


@unblock.register_fake
def _(y: Tensor, shape: list[int]) -> Tensor:
    return y.new_empty(shape)


def _keep_shape(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.shape = list(inputs[0].shape)


block.register_autograd(lambda ctx, grad: unblock(grad, ctx.shape), setup_context=_keep_shape)
unblock.register_autograd(lambda ctx, grad: (block(grad), None), setup_context=_keep_shape)
