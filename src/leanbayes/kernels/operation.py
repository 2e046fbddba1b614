"""A sparse weight applied to an activation, as autograd sees it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import rules as _rules  # noqa: F401  (registers what runs on blocks)
from .blocked import Blocked, Cell, blocks_of, finite_lanes
from .deferred import Pass, Upstream
from .once import first_derivatives
from .plan import Plan
from .sparse import both, gradients


class SparseOperation(torch.autograd.Function):
    """y = sum mu x + sqrt(sum sigma^2 x^2) eps at the nonzeros (Sparse Subspace VI, equations 3 to 5), blocked.

    x: (batch, channels, height, width) or (batch, features), blocked or not. mu, sigma: (n,) of the nonzeros; without a
    sigma, mu are the values. plan: for activations of x's size. noise: a seed, or blocks. shape: of y.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mu: Tensor, sigma: Tensor | None, bias: Tensor | None, plan: Plan, noise: int | Tensor,
        shape: tuple[int, ...],
    ) -> Blocked:  # fmt: skip
        made = plan.geometry
        cell = x.cell if isinstance(x, Blocked) else None
        layout = made.size[0] * made.size[1], made.inputs
        if cell is not None and cell.is_activation and (cell.positions, cell.channels) == layout:
            blocks = finite_lanes(cell)
        else:
            blocks = blocks_of(x, *layout)
        y, slope = both(blocks, mu, sigma, bias, plan, noise, x.shape[0])
        order = plan.backward
        ctx.save_for_backward(x, mu, sigma, slope, order.rows, order.offsets, order.slots)
        ctx.plan, ctx.layout, ctx.batch, ctx.shape = plan, layout, x.shape[0], x.shape
        ctx.blocked = isinstance(x, Blocked)
        return Blocked(Cell(Pass(y, x.shape[0]), x.shape[0]), shape)

    @staticmethod
    @first_derivatives("for second ones of sparse layers set the environment variable LEANBAYES_KERNELS=off")
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, mu, sigma, slope, *order = ctx.saved_tensors
        made = ctx.plan.geometry
        x = blocks_of(x, *ctx.layout)  # not kept from the forward pass: torch checks that x is still what it was
        outputs = made.out_size[0] * made.out_size[1], made.outputs
        held = grad.cell.held if isinstance(grad, Blocked) and grad.cell.is_activation else None
        if isinstance(held, Upstream) and tuple(held.grad.shape[1:3]) == outputs:
            given, out, y, line, rectified = held.arguments()
        else:
            given, out, y, line, rectified = blocks_of(grad, *outputs), None, None, None, False
        want_x, want_mu, want_sigma, want_bias = ctx.needs_input_grad[:4]
        wants = [want_x, want_mu or want_sigma, want_bias]
        numbers = ctx.plan.numbers(ctx.batch)
        found = gradients(given, x, mu, sigma, slope, order, numbers, wants, out, y, line, rectified)
        dx, *rest = (g if want else None for g, want in zip(found, ctx.needs_input_grad, strict=False))
        if dx is not None:
            cell = Cell(dx, ctx.batch)
            dx = Blocked(cell, ctx.shape) if ctx.blocked else cell.plain(ctx.shape)
        return (dx, *rest, None, None, None)


def apply(
    x: Tensor,
    mu: Tensor,
    sigma: Tensor | None,
    bias: Tensor | None,
    plan: Plan,
    noise: int | Tensor,
    shape: tuple[int, ...],
) -> Blocked:
    """See `SparseOperation`."""
    return SparseOperation.apply(x, mu, sigma, bias, plan, noise, shape)  # type: ignore[no-any-return]
