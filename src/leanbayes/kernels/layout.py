"""Activations in blocks of the batch: [blocks][positions][channels][lanes], and back to (batch, channels, *size)."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError
from .buffers import empty
from .checks import expect, side_by_side
from .geometry import LANES
from .library import call


@torch.library.custom_op("leanbayes::block", mutates_args=())
def block(x: Tensor) -> Tensor:
    """(batch, channels, *size) to blocks; lanes beyond the batch are zero."""
    if x.dim() < 2:
        raise DataError(f"expected activations (batch, channels, *size), received the shape {tuple(x.shape)}")
    out = empty(_blocked_shape(x))
    call("leanbayes_block", [x.shape[0], x.shape[1], out.shape[1]], side_by_side(x), out)
    return out


@torch.library.custom_op("leanbayes::unblock", mutates_args=())
def unblock(y: Tensor, shape: list[int]) -> Tensor:
    """Blocks to a tensor of ``shape`` = (batch, channels, *size)."""
    if len(shape) < 2 or min(shape) < 0:
        raise DataError(f"expected a shape (batch, channels, *size) to return to, received {tuple(shape)}")
    positions = prod(shape[2:])
    expect(y, (-(-shape[0] // LANES), positions, shape[1], LANES), f"blocks of a tensor of shape {tuple(shape)}")
    out = empty(shape)
    call("leanbayes_unblock", [shape[0], shape[1], positions], side_by_side(y), out)
    return out


def _blocked_shape(x: Tensor) -> list[int]:
    return [-(-x.shape[0] // LANES), prod(x.shape[2:]), x.shape[1], LANES]


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
