"""Batch normalisation of blocked activations, with the sum and the rectifier behind it in the same pass."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..errors import DataError
from .buffers import empty
from .checks import expect, side_by_side
from .geometry import LANES
from .library import call


@dataclass(frozen=True)
class Norm:
    """gamma (x - mean) / sqrt(variance + eps) + beta by channel; ``own``: by the moments of x itself."""

    gamma: Tensor | None
    beta: Tensor | None
    mean: Tensor
    variance: Tensor
    eps: float
    own: bool


def moments(x: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over batch and positions, (channels,) each, of blocks that hold ``batch`` data."""
    shape = sizes(x, batch)
    if batch < 1:
        raise DataError("expected at least one datum to take moments of, received an empty batch")
    mean, variance = x.new_empty(x.shape[2]), x.new_empty(x.shape[2])
    call("leanbayes_moments", shape, side_by_side(x.detach()), mean, variance)
    return mean, variance


def finish(x: Tensor, batch: int, norm: Norm | None, other: Tensor | None, rectify: bool) -> Tensor:
    """The norm, the sum with another activation and the rectifier of x, as many of them as there are, in one pass."""
    shape, numbers = sizes(x, batch), _numbers(norm, x)
    if other is not None:
        expect(other, x.shape, "the other activation of a sum")
        other = side_by_side(other)
    out = empty(x.shape)
    call("leanbayes_finish", shape, side_by_side(x), *numbers, other, out, int(rectify))
    return out


def gradients(
    x: Tensor, batch: int, grad: Tensor, out: Tensor | None, rectified: bool, norm: Norm, masked: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The line that gives the gradient of x (see upstream in kernels.c), and the gradients of gamma and beta."""
    shape, numbers, channels = sizes(x, batch), _numbers(norm, x), x.shape[2]
    for given, what in ((grad, "a gradient"), (out, "an output"), (masked, "a masked gradient")):
        if given is not None:
            expect(given, x.shape, what)
    line, dgamma, dbeta = x.new_empty(6 * channels), x.new_empty(channels), x.new_empty(channels)
    rest = (*numbers, int(norm.own), masked, line, dgamma, dbeta)
    out = None if out is None else side_by_side(out)
    call("leanbayes_norm_gradients", shape, side_by_side(x), side_by_side(grad), out, int(rectified), *rest)
    return line, dgamma, dbeta


def _numbers(norm: Norm | None, x: Tensor) -> tuple[Tensor | float | None, ...]:
    """What the kernels read of a norm, if it is one of the channels of x."""
    if norm is None:
        return None, None, None, None, 0.0
    found: list[Tensor | float | None] = []
    channels = x.shape[2:3]
    for given in (norm.mean, norm.variance, norm.gamma, norm.beta):
        if given is not None and given.shape != channels:
            raise DataError(
                f"expected a norm of {x.shape[2]} channels, as the activation has, received one of "
                f"{tuple(given.shape)}; check the number of channels that the norm was made for"
            )
        found.append(None if given is None else side_by_side(given))
    return *found, norm.eps


def sizes(x: Tensor, batch: int) -> list[int]:
    """What the kernels read of a blocked activation."""
    shape = x.shape
    if len(shape) != 4 or shape[3] != LANES or shape[0] != -(-batch // LANES):
        raise DataError(
            f"expected blocks (blocks, positions, channels, {LANES}) of a batch of {batch}, received {tuple(x.shape)}; "
            "the batch is that of the tensor the blocks were made of"
        )
    return [shape[0], shape[1], shape[2], batch]


def norm_input(x: Tensor, batch: int, grad: Tensor, out: Tensor | None, rectified: bool, line: Tensor) -> Tensor:
    """The gradient of x from the line that `gradients` found."""
    dx = empty(x.shape)
    call("leanbayes_norm_input", sizes(x, batch), x, grad, out, int(rectified), line, dx)
    return dx
