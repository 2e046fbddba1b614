"""Sums, rectifiers and batch norm, whose passes over memory wait until somebody needs the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..blocked import RULES, Blocked, Cell
from ..buffers import empty
from ..deferred import Pass, Upstream
from ..norm import Norm, gradients, moments
from .arithmetic import elementwise, in_place, joined
from .common import aten, by_channel, gradient_of, is_active, like, pass_of, rule


@rule(aten.add.Tensor)
def _add(x: Any, other: Any, *, alpha: float = 1) -> Any:
    pair = (x, other) if is_active(x) else (other, x)
    if alpha != 1 or not isinstance(other, Tensor) or not isinstance(x, Tensor) or not is_active(pair[0]):
        return _plus(x, other, alpha=alpha)
    for one, another in (pair, pair[::-1]):
        if is_active(one) and isinstance(one.cell.held, Pass) and not (is_active(another) and one.cell is another.cell):
            term = joined(one, another)
            if term is not None and (sum := one.cell.held.plus(term)) is not None:
                return like(one, sum)
    first = pair[0]
    if (term := joined(*pair)) is None:
        return _plus(x, other)
    return like(first, Pass(first.cell.blocks, first.cell.batch, other=term))


_plus = elementwise(aten.add.Tensor)
RULES[aten.add_.Tensor] = in_place(_add)


@rule(aten.relu.default)
def _relu(x: Any) -> Any:
    return like(x, pass_of(x).rectify()) if is_active(x) else NotImplemented


RULES[aten.relu_.default] = in_place(_relu)


@rule(aten.threshold_backward.default)
def _threshold_backward(grad: Any, x: Any, threshold: float) -> Any:
    """x: the output of the rectifier."""
    if threshold != 0 or not is_active(x):
        return NotImplemented
    grad = gradient_of(grad, x)
    if grad.cell.rectified_by is x.cell:
        return Blocked(grad.cell, x.shape)
    return like(x, Upstream(grad.cell.blocks, x.cell.batch, mask=x.cell))


@rule(aten.native_batch_norm.default)
def _batch_norm(
    x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: float, eps: float
) -> Any:
    """The output, and mean and 1 / sqrt(variance + eps) of the batch, as torch gives them."""
    tensors = (weight, bias, running_mean, running_var)
    if not is_active(x) or not by_channel(x) or not all(_per_channel(t, x.cell.channels) for t in tensors):
        return NotImplemented
    batch = x.cell.batch
    count = batch * x.cell.positions
    if (training and count < 2) or (not training and running_mean is None):
        return NotImplemented
    held = x.cell.held
    known = held if isinstance(held, Pass) and held.untouched else Pass(x.cell.blocks, batch)
    gamma, beta = (None if t is None else t.detach().clone() for t in (weight, bias))
    if not training:
        norm = Norm(gamma, beta, running_mean.detach().clone(), running_var.detach().clone(), float(eps), own=False)
        return like(x, known.normed(norm)), x.cell.blocks.new_empty(0), x.cell.blocks.new_empty(0)
    norm = Norm(gamma, beta, *moments(known.y, batch), float(eps), own=True)
    if running_mean is not None:
        running_mean.lerp_(norm.mean, momentum)
        running_var.lerp_(norm.variance * (count / (count - 1)), momentum)
    return like(x, known.normed(norm)), norm.mean, (norm.variance + eps).rsqrt()


def _per_channel(t: Any, channels: int) -> bool:
    return t is None or (
        isinstance(t, Tensor)
        and not isinstance(t, Blocked)
        and t.shape == (channels,)
        and t.dtype == torch.float32
        and t.device.type == "cpu"
    )


@rule(aten.native_batch_norm_backward.default)
def _batch_norm_backward(
    grad: Any, x: Any, weight: Any, running_mean: Any, running_var: Any, save_mean: Any, save_invstd: Any,
    train: bool, eps: float, output_mask: Sequence[bool],
) -> Any:  # fmt: skip
    if not is_active(x) or not by_channel(x):
        return NotImplemented
    batch, y = x.cell.batch, x.cell.blocks
    grad = gradient_of(grad, x)
    if train:  # exactly save_invstd comes out again
        norm = Norm(weight, None, save_mean, save_invstd.reciprocal().square(), 0.0, own=True)
    else:
        norm = Norm(weight, None, running_mean, running_var, float(eps), own=False)
    waiting = grad.cell.held
    out, from_y, masked = None, False, None
    given = grad.cell
    if isinstance(waiting, Upstream) and waiting.line is None and waiting.mask is not None:
        recipe = waiting.mask.recipe
        given = Cell(waiting.grad, batch)
        if recipe is not None and recipe.sign_from_y and recipe.y is y:
            assert recipe.norm is not None
            norm, from_y = recipe.norm, True
        else:
            # behind a sum the same gradient goes both ways: it is written once, for both
            out, masked = waiting.mask.blocks, empty(y.shape)
    line, dgamma, dbeta = gradients(y, batch, given.blocks, out, from_y or out is not None, norm, masked)
    if masked is not None:
        grad.cell.put(masked)
        upstream = Upstream(masked, batch, y=y, line=line)
    else:
        upstream = Upstream(given.blocks, batch, y=y, line=line, from_y=from_y)
    return tuple(g if want else None for g, want in zip((like(x, upstream), dgamma, dbeta), output_mask, strict=True))
