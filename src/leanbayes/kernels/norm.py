"""Batch normalisation of blocked activations, with the sum and the rectifier behind it in the same pass."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .buffers import empty
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

    def numbers(self) -> tuple[Tensor | float | None, ...]:
        """What the kernels read, in their order."""
        gamma, beta = (None if t is None else t.detach().contiguous() for t in (self.gamma, self.beta))
        return self.mean, self.variance, gamma, beta, self.eps


def moments(x: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over batch and positions, (channels,) each, of blocks that hold ``batch`` data."""
    mean, variance = x.new_empty(x.shape[2]), x.new_empty(x.shape[2])
    call("leanbayes_moments", sizes(x, batch), x.detach().contiguous(), mean, variance)
    return mean, variance


def finish(x: Tensor, batch: int, norm: Norm | None, other: Tensor | None, rectify: bool) -> Tensor:
    """The norm, the sum with another activation and the rectifier of x, as many of them as there are, in one pass."""
    out = empty(x.shape)
    numbers = (None, None, None, None, 0.0) if norm is None else norm.numbers()
    other = None if other is None else other.contiguous()
    call("leanbayes_finish", sizes(x, batch), x.contiguous(), *numbers, other, out, int(rectify))
    return out


def gradients(
    x: Tensor, batch: int, grad: Tensor, out: Tensor | None, rectified: bool, norm: Norm, masked: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The line that gives the gradient of x (see upstream in kernels.c), and the gradients of gamma and beta."""
    channels = x.shape[2]
    line, dgamma, dbeta = x.new_empty(6 * channels), x.new_empty(channels), x.new_empty(channels)
    rest = (*norm.numbers(), int(norm.own), masked, line, dgamma, dbeta)
    call("leanbayes_norm_gradients", sizes(x, batch), x, grad, out, int(rectified), *rest)
    return line, dgamma, dbeta


def sizes(x: Tensor, batch: int) -> list[int]:
    """What the kernels read of a blocked activation."""
    return [*x.shape[:3], batch]


def norm_input(x: Tensor, batch: int, grad: Tensor, out: Tensor | None, rectified: bool, line: Tensor) -> Tensor:
    """The gradient of x from the line that `gradients` found."""
    dx = empty(x.shape)
    call("leanbayes_norm_input", sizes(x, batch), x, grad, out, int(rectified), line, dx)
    return dx
