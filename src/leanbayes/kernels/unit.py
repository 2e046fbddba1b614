"""A sparse operation and what a network does with its output before anyone looks at it, as one node of the graph.

The numbers of the operation are there at once. What waits is the pass over them that a norm, a sum or a rectifier would
make (one pass does all three), and the node: its backward pass undoes them while it reads the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .buffers import empty
from .norm import Norm, finish, gradients as norm_gradients
from .plan import Plan
from .sparse import both, gradients


@dataclass(frozen=True)
class Unit:
    """rectify(norm(operation(x)) + other), without what is None or False.

    x, mu, sigma, bias: as `sparse.local` takes them. y, slope: as the operation returned them. graph: whether autograd
    was on when it ran.
    """

    x: Tensor
    mu: Tensor
    sigma: Tensor | None
    bias: Tensor | None
    plan: Plan
    batch: int
    y: Tensor
    slope: Tensor
    graph: bool
    norm: Norm | None = None
    other: Tensor | None = None
    rectified: bool = False

    @classmethod
    def of(
        cls, x: Tensor, mu: Tensor, sigma: Tensor | None, bias: Tensor | None, plan: Plan, batch: int, noise: int
    ) -> Unit:
        """Run the operation."""
        with torch.no_grad():
            y, slope = both(x, mu, sigma, bias, plan, noise, batch)
        return cls(x, mu, sigma, bias, plan, batch, y, slope, torch.is_grad_enabled())

    def normed(self, norm: Norm) -> Unit | None:
        """With a norm behind it, where nothing else stands there yet."""
        return replace(self, norm=norm) if self.plain else None

    def plus(self, other: Tensor) -> Unit | None:
        """With a sum behind it, where there is none yet."""
        return replace(self, other=other) if self.other is None and not self.rectified else None

    def rectify(self) -> Unit:
        """With a rectifier behind it; a second one changes nothing."""
        return replace(self, rectified=True)

    def before_rectifier(self) -> Unit | None:
        """The operation alone, where a rectifier alone stands behind it."""
        before = replace(self, rectified=False)
        return before if self.rectified and before.plain else None

    @property
    def plain(self) -> bool:
        """Whether nothing stands behind the operation."""
        return self.norm is None and self.other is None and not self.rectified

    def value(self) -> Tensor:
        """The blocks that come out, with their history."""
        gamma, beta = (None, None) if self.norm is None else (self.norm.gamma, self.norm.beta)
        with torch.set_grad_enabled(self.graph):
            out: Tensor = _Node.apply(self.x, self.mu, self.sigma, self.bias, gamma, beta, self.other, self)
        return out


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        unit: Unit = inputs[-1]
        norm, other, rectified = unit.norm, unit.other, unit.rectified
        # a tensor of its own: the graph is written on what comes out
        out = unit.y.detach() if unit.plain else finish(unit.y, unit.batch, norm, other, rectified)
        by_out = rectified and (norm is None or other is not None)  # else its sign follows from y
        order = unit.plan.backward
        ctx.save_for_backward(
            unit.x, unit.mu, unit.sigma, unit.slope, order.rows, order.offsets, order.slots, out if by_out else None,
            *([] if norm is None else (unit.y, norm.gamma, norm.beta, norm.mean, norm.variance)),
        )  # fmt: skip
        ctx.geometry, ctx.batch, ctx.rectified = unit.plan.numbers(unit.batch), unit.batch, rectified
        ctx.norm = None if norm is None else (norm.eps, norm.own)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, mu, sigma, slope, *order, out = ctx.saved_tensors[:8]
        want_x, want_mu, want_sigma, want_bias, _, _, want_other = ctx.needs_input_grad[:7]
        grad, rectified, y, line, dgamma, dbeta = grad.contiguous(), ctx.rectified, None, None, None, None
        # behind the rectifier a sum has the same gradient on both sides: it is written once, for both
        masked = empty(grad.shape) if want_other and rectified else None
        if ctx.norm is not None:
            y, gamma, beta, mean, variance = ctx.saved_tensors[8:]
            norm = Norm(gamma, beta, mean, variance, *ctx.norm)
            line, dgamma, dbeta = norm_gradients(y, ctx.batch, grad, out, rectified, norm, masked)
            dgamma, dbeta = (None if t is None else g for t, g in ((gamma, dgamma), (beta, dbeta)))
        elif masked is not None:
            torch.mul(grad, out > 0, out=masked)
        if masked is not None:
            grad, out, rectified = masked, None, False
        wants = [want_x, want_mu or want_sigma, want_bias]
        found: tuple[Tensor | None, ...] = (None,) * 4
        if any(wants):
            found = gradients(grad, x, mu, sigma, slope, order, ctx.geometry, wants, out, y, line, rectified)
        asked = zip(found, ctx.needs_input_grad, strict=False)
        return (*(g if want else None for g, want in asked), dgamma, dbeta, grad if want_other else None, None)
