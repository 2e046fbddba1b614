"""Pooling, and the mean over all positions."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..blocked import RULES, Blocked, Cell, blocks_of
from ..deferred import Pass
from ..geometry import LANES, MAX_STRIDE, Geometry
from ..pooling import Winners, max_pool, max_pool_gradient
from .common import Rule, aten, by_channel, gradient_of, is_active, like, rule


def _pair(value: Any, default: tuple[int, int]) -> tuple[int, int]:
    """One number for both sides, one for each, or none."""
    value = [value] if isinstance(value, int) else list(value)
    return default if not value else (int(value[0]), int(value[-1]))


@rule(aten.max_pool2d_with_indices.default)
def _max_pool(
    x: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    if not is_active(x) or x.dim() != 4 or ceil_mode or _pair(dilation, (1, 1)) != (1, 1):
        return NotImplemented
    kernel = _pair(kernel_size, (1, 1))
    step, pad = _pair(stride, kernel), _pair(padding, (0, 0))
    if (
        max(step) > MAX_STRIDE
        or kernel[0] * kernel[1] >= 128
        or any(2 * p > k for p, k in zip(pad, kernel, strict=True))
    ):
        return NotImplemented
    if min(*kernel, *step) < 1 or min(pad) < 0:
        return NotImplemented
    channels = x.cell.channels
    made = Geometry(channels, channels, 1, kernel, step, pad, (x.shape[2], x.shape[3]))
    if min(made.out_size) < 1:
        return NotImplemented
    # a rectifier in front is the same as one behind, where there is less to do
    held = x.cell.held
    fused = isinstance(held, Pass) and held.only_rectified
    y, won = max_pool(held.y if fused else x.cell.blocks, made, fused)
    shape = (x.shape[0], channels, *made.out_size)
    winners = Winners(won, made, x.cell.batch, x.cell if fused else None)
    return Blocked(Cell(y, x.cell.batch), shape), Blocked(Cell(winners, x.cell.batch), shape)


@rule(aten.max_pool2d_with_indices_backward.default)
def _max_pool_backward(grad: Any, x: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool,
                       indices: Any) -> Any:  # fmt: skip
    held = indices.cell.held if isinstance(indices, Blocked) else None
    if not is_active(x) or not isinstance(held, Winners):
        return NotImplemented
    found = gradient_of(grad, indices)
    dx = like(x, max_pool_gradient(found.cell.blocks, held.won, held.geometry))
    dx.cell.rectified_by = held.rectified
    return dx


def _images(x: Blocked) -> Tensor:
    """Blocks as images in channels-last order, with channels x lanes for channels: no copy."""
    blocks = x.cell.blocks
    return blocks.view(len(blocks), *x.shape[2:], -1).permute(0, 3, 1, 2)


def _from_images(x: Blocked, images: Tensor) -> Blocked:
    count, size = len(images), tuple(images.shape[2:])
    blocks = images.permute(0, 2, 3, 1).reshape(count, size[0] * size[1], x.cell.channels, LANES)
    return Blocked(Cell(blocks, x.cell.batch, x.cell.clean), (x.shape[0], x.cell.channels, *size))


def _pooled(operation: Any) -> Rule:
    def rule(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_active(x) or x.dim() != 4:
            return NotImplemented
        return _from_images(x, operation(_images(x), *args, **kwargs))

    return rule


def _pooled_backward(operation: Any) -> Rule:
    def rule(grad: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_active(x) or x.dim() != 4 or not isinstance(grad, Tensor) or grad.dim() != 4:
            return NotImplemented
        positions = grad.shape[2] * grad.shape[3]
        given = Blocked(Cell(blocks_of(grad, positions, x.cell.channels), x.cell.batch), grad.shape)
        return _from_images(x, operation(_images(given), _images(x), *args, **kwargs))

    return rule


RULES[aten.avg_pool2d.default] = _pooled(aten.avg_pool2d.default)
RULES[aten._adaptive_avg_pool2d.default] = _pooled(aten._adaptive_avg_pool2d.default)
RULES[aten.avg_pool2d_backward.default] = _pooled_backward(aten.avg_pool2d_backward.default)
RULES[aten._adaptive_avg_pool2d_backward.default] = _pooled_backward(aten._adaptive_avg_pool2d_backward.default)


@rule(aten.mean.dim)
def _mean(x: Any, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Over all positions, as global average pooling is."""
    if not is_active(x) or not by_channel(x) or dtype is not None or dim is None or x.dim() < 3:
        return NotImplemented
    if sorted(d % x.dim() for d in dim) != list(range(2, x.dim())):
        return NotImplemented
    shape = (*x.shape[:2], *([1] * (x.dim() - 2) if keepdim else []))
    return Blocked(Cell(x.cell.blocks.mean(1, keepdim=True), x.cell.batch, x.cell.clean), shape)
