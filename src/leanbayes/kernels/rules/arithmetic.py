"""Elementwise operations and their gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..blocked import RULES, Blocked, blocks_of
from .common import Rule, alike, aten, by_channel, gradient_of, is_active, like


def elementwise(operation: Any) -> Rule:
    def rule(*args: Any, **kwargs: Any) -> Any:
        first = next((a for a in args if isinstance(a, Blocked)), None)
        if first is None or not is_active(first) or any(isinstance(a, Tensor) for a in kwargs.values()):
            return NotImplemented
        values = [a if not isinstance(a, Tensor) or _number(a) else joined(first, a) for a in args]
        if any(v is None for v in values):
            return NotImplemented
        made = operation(*values, **kwargs)
        return like(first, made, clean=False) if made.dtype == torch.float32 else NotImplemented

    return rule


def joined(x: Blocked, other: Tensor) -> Tensor | None:
    """The blocks of a tensor that meets x element by element, or None where that is not simple."""
    if isinstance(other, Blocked):
        return other.cell.blocks if alike(x, other) else None
    simple = (
        type(other) in (Tensor, torch.nn.Parameter) and other.layout == torch.strided and other.device.type == "cpu"
    )
    if not simple or other.dtype != torch.float32 or other.shape != x.shape or not by_channel(x):
        return None
    return blocks_of(other, x.cell.positions, x.cell.channels)


def _number(x: Tensor) -> bool:
    return (
        type(x) is Tensor and x.dim() == 0 and x.device.type == "cpu" and not x.is_complex() and x.dtype != torch.bool
    )


def in_place(rule: Rule) -> Rule:
    def written(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_active(x):
            return NotImplemented
        done = rule(x, *args, **kwargs)
        if done is NotImplemented or done.dtype != x.dtype:
            return NotImplemented
        x.cell.put(done.cell.held, done.cell.clean)
        return x

    return written


def _backward(operation: Any) -> Rule:
    """The gradient of an elementwise operation from that of its output and one activation."""

    def rule(grad: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_active(x) or any(isinstance(a, Tensor) for a in (*args, *kwargs.values())):
            return NotImplemented
        return like(x, operation(gradient_of(grad, x).cell.blocks, x.cell.blocks, *args, **kwargs))

    return rule


_IN_PLACE = {
    aten.abs.default: aten.abs_.default,
    aten.neg.default: aten.neg_.default,
    aten.sigmoid.default: aten.sigmoid_.default,
    aten.tanh.default: aten.tanh_.default,
    aten.silu.default: aten.silu_.default,
    aten.elu.default: aten.elu_.default,
    aten.leaky_relu.default: aten.leaky_relu_.default,
    aten.hardtanh.default: aten.hardtanh_.default,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.mul.Scalar: aten.mul_.Scalar,
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.sub.Scalar: aten.sub_.Scalar,
    aten.add.Scalar: aten.add_.Scalar,
}
for _operation, _written in _IN_PLACE.items():
    RULES[_operation] = elementwise(_operation)
    RULES[_written] = in_place(RULES[_operation])
for _operation in (aten.sgn.default, aten.gelu.default, aten.softplus.default, aten.rsub.Scalar):
    RULES[_operation] = elementwise(_operation)
for _operation in (
    aten.sigmoid_backward.default, aten.tanh_backward.default, aten.gelu_backward.default, aten.silu_backward.default,
    aten.leaky_relu_backward.default, aten.hardtanh_backward.default, aten.softplus_backward.default,
):  # fmt: skip
    RULES[_operation] = _backward(_operation)


def _divide(operation: Any) -> Rule:
    """By numbers alone: beyond the batch, a quotient of activations would be 0 / 0."""
    divide = elementwise(operation)

    def rule(x: Any, other: Any, **kwargs: Any) -> Any:
        by_number = not isinstance(other, Tensor) or _number(other)
        return divide(x, other, **kwargs) if by_number and is_active(x) else NotImplemented

    return rule


for _operation, _written in ((aten.div.Tensor, aten.div_.Tensor), (aten.div.Scalar, aten.div_.Scalar)):
    RULES[_operation] = _divide(_operation)
    RULES[_written] = in_place(RULES[_operation])
