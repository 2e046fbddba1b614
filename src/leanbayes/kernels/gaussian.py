"""Mean and variance of Gaussians behind a rectifier, max pooling and a convolution, each in one pass over memory.

Activations (batch, channels, ...) lie in memory with their channels side by side, as torch's channels-last order has
them; tensors in another order are copied.

Whatever the kernels do not serve (`serves`) goes by torch's functions: `leanbayes.prediction.moments` has the same
formulas in `elementwise`, `pooling` and `linear`. The two differ by rounding, by 1e-6 of a standard deviation at most.
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

    def tensors(self) -> tuple[Tensor | None, ...]:
        """All of them."""
        return (self.mean, self.variance, self.factor, self.shift, self.other_mean, self.other_variance)


def serves(*tensors: Tensor | None) -> bool:
    """Whether the compiled kernels take these tensors."""
    return (
        library.library() is not None
        and not torch.compiler.is_compiling()
        and torch._C._functorch.maybe_current_level() is None  # type: ignore[attr-defined]
        and all(
            type(t) in (Tensor, torch.nn.Parameter)
            and t.dtype == torch.float32
            and t.is_cpu
            and t.ndim > 0
            and t.numel() > 0
            and not t.is_neg()
            and not (t.requires_grad and torch.is_grad_enabled())
            for t in tensors
            if t is not None
        )
    )


def in_order(x: Tensor) -> Tensor:
    """The tensor (batch, channels, ...) if its channels lie side by side in memory, else a copy whose channels do.

    >>> in_order(torch.zeros(2, 3, 4, 4)).is_contiguous(memory_format=torch.channels_last)
    True
    """
    return _side_by_side(x).movedim(-1, 1) if x.ndim > 2 else x.contiguous()


def _side_by_side(x: Tensor) -> Tensor:
    """(batch, ..., channels), contiguous: what a kernel reads."""
    return x.movedim(1, -1).contiguous() if x.ndim > 2 else x.contiguous()


def _images(shape: torch.Size) -> list[int]:
    """Data, positions, channels."""
    return [shape[0], shape[2:].numel(), shape[1]]


def _empty(shape: tuple[int, ...] | torch.Size) -> Tensor:
    """(batch, ..., channels) in memory, for a result of this shape (batch, channels, ...)."""
    return empty((shape[0], *shape[2:], shape[1]))


def rectify(x: Terms, slope: float = 0.0, sums: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
    """Mean and variance of max(y, 0) + slope min(y, 0), for y = factor x + shift + other.

    sums: whether to return, as the third, sums over the positions of each channel, (4, batch, channels): of the
    variance of factor x, of that of the other term, of (mean derivative)^2 times both, and of the resulting variance.
    """
    x.check()
    shape, tensors = x.mean.shape, x.tensors()
    plain = x.factor is None and x.shift is None and not sums
    if plain and all(t is None or t.is_contiguous() for t in tensors):  # in any order: each number by itself
        mean, variance = empty(shape), empty(shape)
        numbers = [shape[0], 1, shape[1:].numel()]
        call("leanbayes_rectify", numbers, *tensors, float(slope), mean, variance, None)
        return mean, variance, None
    mean, variance = _empty(shape), _empty(shape)
    found = x.mean.new_empty(4, *shape[:2]) if sums else None
    given = [None if t is None else _side_by_side(t) for t in tensors]
    call("leanbayes_rectify", _images(shape), *given, float(slope), mean, variance, found)
    return mean.movedim(-1, 1), variance.movedim(-1, 1), found


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
    shape = x.mean.shape
    expect(x.mean, (*shape[:2], rows.size, columns.size), "images")
    if near is not None:
        expect(near, tuple(shape[:2]), "a correlation for every channel")
        near = near.contiguous()
    mean, variance = (_empty((*shape[:2], rows.count, columns.count)) for _ in range(2))
    given = [None if t is None else _side_by_side(t) for t in x.tensors()[:4]]
    call("leanbayes_pool_moments", [*shape[:2], *rows.numbers(), *columns.numbers()], *given, near, mean, variance)
    return mean.movedim(-1, 1), variance.movedim(-1, 1)


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
    both = empty((shape[0], *shape[2:], 2 * shape[1]) if beside else (2, shape[0], *shape[2:], shape[1]))
    averages = x.mean.new_empty(4, *shape[:2])
    numbers = [*_images(shape), shape[-1] if len(shape) > 2 else 1, step]
    given = _side_by_side(x.mean), _side_by_side(x.variance)
    call("leanbayes_spread", numbers, *given, near, int(beside), both, averages)
    return both.movedim(-1, 1 if beside else 2), averages


def squares(mean: Tensor, variance: Tensor | None, rho: Tensor | None = None) -> Tensor:
    """sigma^2 and mu^2 of a weight (outputs, inputs, ...) side by side, (outputs, 2 * inputs, ...).

    sigma^2: the variance, or softplus(rho)^2.
    """
    for part in (variance, rho):
        if part is not None:
            expect(part, tuple(mean.shape), "a number for every weight")
    given = [None if t is None else _side_by_side(t) for t in (mean, rho, variance)]
    outputs, inputs, *kernel = mean.shape
    both = empty((outputs, *kernel, 2 * inputs))
    call("leanbayes_squares", [mean.numel() // inputs, inputs], *given, both)
    return both.movedim(-1, 1)


def together(
    mean: Tensor,
    both: Tensor,
    averages: Tensor,
    share: Tensor | None,
    bias: Tensor | None,
    uncertain: bool,
    inside: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor | None, Tensor]:
    """How positions of a convolution's output vary together, as `prediction.moments.linear` has it.

    both: `squares`. averages: (4, batch, inputs), of `spread`. share: (2, batch, inputs), or None. bias: variances, or
    None. uncertain: whether the input has a variance. inside: at which part of the positions the weights of a filter,
    (k,), and pairs of them, (k, k), see input.
    Returns correlations (2, batch, outputs), the factor of the variance (batch, outputs) where there is a share, and
    sums over a filter's weights, (5, outputs, inputs): of sigma^2 a, sigma^2 a^2, mu^2 a, mu a and mu (P mu).
    """
    outputs, inputs, *kernel = mean.shape
    rows, (alone, pairs) = averages.shape[1], inside
    expect(both, (outputs, 2 * inputs, *kernel), "squares of the weights")
    expect(averages, (4, rows, inputs), "averages of the inputs")
    if share is not None:
        expect(share, (2, rows, inputs), "correlations of the inputs")
        share = share.contiguous()
    sums, found = averages.new_empty(5, outputs, inputs), averages.new_empty(2, rows, outputs)
    factor = None if share is None else averages.new_empty(rows, outputs)
    taps = mean[0, 0].numel()
    given = (_side_by_side(mean), _side_by_side(both), alone.contiguous(), pairs.contiguous(), averages.contiguous())
    numbers = [rows, inputs, outputs, taps]
    call("leanbayes_together", numbers, *given, share, bias, int(uncertain), sums, found, factor)
    return found, factor, sums
