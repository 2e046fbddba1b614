"""Local reparameterisation at the nonzeros, as a torch operation: y = sum mu x + sqrt(sum sigma^2 x^2) eps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .geometry import LANES
from .library import call
from .plan import Plan

MEAN, MOMENTS, NOISE, GIVEN = range(4)


def local(x: Tensor, mu: Tensor, sigma: Tensor, bias: Tensor | None, plan: Plan, noise: Tensor | int) -> Tensor:
    """One pass under noise on the outputs (Sparse Subspace VI, equations 3 to 5), blocked as x is.

    x: blocks of activations. mu, sigma: (n,) of the nonzeros. noise: standard normals of the output's shape, or a seed:
    then they are drawn inside the kernel.
    """
    seed, given = (noise, None) if isinstance(noise, int) else (0, noise)
    return _sparse(x, mu, sigma, bias, given, *_tensors(plan), plan.geometry.numbers(x.shape[0]), seed)[0]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, plan: Plan) -> Tensor:
    """One pass with fixed values (n,) at the nonzeros: the means, or a draw."""
    return _sparse(x, weight, None, bias, None, *_tensors(plan), plan.geometry.numbers(x.shape[0]), 0)[0]


def _tensors(plan: Plan) -> tuple[Tensor, ...]:
    return tuple(t for order in (plan.forward, plan.backward) for t in (order.rows, order.offsets, order.slots))


@torch.library.custom_op("leanbayes::sparse_local", mutates_args=())
def _sparse(
    x: Tensor,
    mu: Tensor,
    sigma: Tensor | None,
    bias: Tensor | None,
    noise: Tensor | None,
    rows: Tensor,
    offsets: Tensor,
    slots: Tensor,
    rows_back: Tensor,
    offsets_back: Tensor,
    slots_back: Tensor,
    geometry: list[int],
    seed: int,
) -> tuple[Tensor, Tensor]:
    """The output, and eps / (2 sqrt(variance)), which is all that the backward pass needs of the noise."""
    y = x.new_empty(_out_shape(x, geometry))
    slope = y.new_empty(0) if sigma is None else torch.empty_like(y)
    mode = MEAN if sigma is None else NOISE if noise is None else GIVEN
    values = [None if t is None else t.contiguous() for t in (mu, sigma, bias, x, noise)]
    call("leanbayes_forward", geometry, len(mu), rows, offsets, slots, *values, y, slope, seed, mode)
    return y, slope


@_sparse.register_fake
def _(x: Tensor, mu: Tensor, sigma: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    y = x.new_empty(_out_shape(x, rest[-2]))
    return y, x.new_empty(0) if sigma is None else torch.empty_like(y)


def _out_shape(x: Tensor, geometry: list[int]) -> list[int]:
    return [x.shape[0], geometry[11] * geometry[12], geometry[0], LANES]


@torch.library.custom_op("leanbayes::sparse_local_backward", mutates_args=())
def _sparse_backward(
    grad: Tensor,
    x: Tensor,
    mu: Tensor,
    sigma: Tensor | None,
    slope: Tensor,
    rows: Tensor,
    offsets: Tensor,
    slots: Tensor,
    geometry: list[int],
    wants: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, mu and sigma; an empty tensor where none is wanted."""
    want_x, want_w = wants
    grad, x = grad.contiguous(), x.contiguous()
    if sigma is not None:
        pair = grad.new_empty(*grad.shape[:-1], 2, LANES)
        call("leanbayes_pair", grad, slope, pair, grad.numel() // LANES, LANES)
        grad = pair
    wanted = (want_x, want_w, want_w and sigma is not None)
    # outputs of an operation may not be the same tensor: an empty one for each that is not wanted
    likes = zip(wanted, (x, mu, mu), strict=True)
    dx, dmu, dsigma = (torch.empty_like(like) if want else x.new_empty(0) for want, like in likes)
    values = [mu.contiguous(), None if sigma is None else sigma.contiguous(), x, grad]
    outs = [t if want else None for want, t in zip(wanted, (dx, dmu, dsigma), strict=True)]
    call("leanbayes_backward", geometry, len(mu), rows, offsets, slots, *values, *outs)
    return dx, dmu, dsigma


@_sparse_backward.register_fake
def _(grad: Tensor, x: Tensor, mu: Tensor, sigma: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    want_x, want_w = rest[-1]
    likes = ((want_x, x), (want_w, mu), (want_w and sigma is not None, mu))
    dx, dmu, dsigma = (torch.empty_like(like) if want else x.new_empty(0) for want, like in likes)
    return dx, dmu, dsigma


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, mu, sigma, bias, _, _, _, _, rows, offsets, slots, geometry, _ = inputs
    ctx.save_for_backward(x, mu, sigma, output[1], rows, offsets, slots)
    ctx.geometry, ctx.has_bias = geometry, bias is not None
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    x, mu, sigma, slope, rows, offsets, slots = ctx.saved_tensors
    want_x, want_mu, want_sigma, want_bias = ctx.needs_input_grad[:4]
    want_w = want_mu or want_sigma
    dx = dmu = dsigma = None
    if want_x or want_w:
        dx, dmu, dsigma = _sparse_backward(
            grad, x, mu, sigma, slope, rows, offsets, slots, ctx.geometry, [want_x, want_w]
        )
    dbias = grad.sum((0, 1, 3)) if want_bias and ctx.has_bias else None
    return (dx if want_x else None, dmu if want_mu else None, dsigma if want_sigma else None, dbias, *[None] * 9)


_sparse.register_autograd(_gradients, setup_context=_keep)
