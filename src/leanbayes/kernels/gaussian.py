"""Mean and variance of Gaussians behind a rectifier and behind max pooling, in one pass over memory.

Whatever the kernels do not serve (`serves`) goes by torch's functions: `leanbayes.prediction.moments.elementwise` and
`pooling` have the same formulas. The two differ by rounding and by 1e-6 of a standard deviation at most.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from . import library
from .buffers import empty
from .checks import expect
from .library import call


@dataclass(frozen=True)
class Terms:
    """factor x + shift + other, for x of a mean and a variance (batch, channels, ...).

    factor, shift: of a normalisation, (channels,). other_mean, other_variance: of a term that is independent of x.
    """

    mean: Tensor
    variance: Tensor
    factor: Tensor | None = None
    shift: Tensor | None = None
    other_mean: Tensor | None = None
    other_variance: Tensor | None = None

    def check(self) -> None:
        """Refuse tensors that do not fit together."""
        for what, value in (("a variance", self.variance), ("a mean", self.other_mean)):
            if value is not None:
                expect(value, tuple(self.mean.shape), what)
        for value in (self.factor, self.shift):
            if value is not None:
                expect(value, tuple(self.mean.shape[1:2]), "a number for every channel")

    def numbers(self) -> tuple[int, int, int]:
        """Planes, channels, positions."""
        shape = self.mean.shape
        if len(shape) < 3 and self.factor is None and self.shift is None:  # a datum is a plane
            return shape[0], 1, shape[1:].numel()
        return shape[:2].numel(), shape[1], shape[2:].numel()


def serves(x: Terms) -> bool:
    """Whether the compiled kernels take these tensors."""
    tensors = (x.mean, x.variance, x.factor, x.shift, x.other_mean, x.other_variance)
    return (
        library.library() is not None
        and not torch.compiler.is_compiling()
        and torch._C._functorch.maybe_current_level() is None  # type: ignore[attr-defined]
        and x.mean.ndim >= 2
        and x.mean.numel() > 0
        and all(
            type(t) in (Tensor, torch.nn.Parameter)
            and t.dtype == torch.float32
            and t.is_cpu
            and t.is_contiguous()
            and not t.is_neg()
            and not (t.requires_grad and torch.is_grad_enabled())
            for t in tensors
            if t is not None
        )
    )


def rectify(x: Terms, slope: float = 0.0, sums: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
    """Mean and variance of max(y, 0) + slope min(y, 0), for y = factor x + shift + other.

    sums: whether to return, as the third, sums over the positions of each plane, (batch, channels, 4): of the variance
    of factor x, of that of the other term, of (mean derivative)^2 times both, and of the resulting variance.
    """
    x.check()
    mean, variance = empty(x.mean.shape), empty(x.mean.shape)
    found = x.mean.new_empty(*x.mean.shape[:2], 4) if sums else None
    terms = (x.mean, x.variance, x.factor, x.shift, x.other_mean, x.other_variance)
    call("leanbayes_rectify", list(x.numbers()), *terms, float(slope), mean, variance, found)
    return mean, variance, found


@dataclass(frozen=True)
class Window:
    """Windows along one dimension: how large it is, and how many windows fit."""

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    count: int

    def numbers(self) -> list[int]:
        """As the kernel takes them."""
        return [self.size, self.kernel, self.stride, self.padding, self.dilation, self.count]


def largest(x: Terms, rows: Window, columns: Window, near: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and variance of maxima over windows of (batch, channels, height, width), along rows and then columns.

    near: the correlation of neighbours, (batch, channels).
    """
    x.check()
    expect(x.mean, (*x.mean.shape[:2], rows.size, columns.size), "images")
    if near is not None:
        expect(near, tuple(x.mean.shape[:2]), "a correlation for every channel")
        near = near.contiguous()
    mean, variance = (empty((*x.mean.shape[:2], rows.count, columns.count)) for _ in range(2))
    planes = [x.mean.shape[:2].numel(), x.mean.shape[1]]
    numbers = [*planes, *rows.numbers(), *columns.numbers()]
    given = (x.mean, x.variance, x.factor, x.shift, near)
    call("leanbayes_pool_moments", numbers, *given, mean, variance)
    return mean, variance


def spread(x: Terms, step: int, near: Tensor | None, beside: bool) -> tuple[Tensor, Tensor]:
    """What the variance of a convolution is made of: E[x^2] and the variance, times 1 - near.

    step: how far neighbours are apart, in the last dimension. near: (batch, channels). beside: whether the two are
    channels of one tensor (batch, 2 * channels, ...) or the first and the second half of (2, batch, channels, ...).
    The second result has averages over positions, (4, batch, channels): of m, of m^2, of the variance, and of m(p) m(q)
    over neighbours (the square of the first where there are none).
    """
    x.check()
    shape = x.mean.shape
    if near is not None:
        expect(near, tuple(shape[:2]), "a correlation for every channel")
        near = near.contiguous()
    both = empty((shape[0], 2 * shape[1], *shape[2:]) if beside else (2, *shape))
    averages = x.mean.new_empty(4, *shape[:2])
    numbers = [shape[:2].numel(), shape[1], shape[2:].numel(), shape[-1], step]
    call("leanbayes_spread", numbers, x.mean, x.variance, near, int(beside), both, averages)
    return both, averages
