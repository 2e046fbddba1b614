"""Rules of linear layers, with weights that are certain or Gaussian.

For independent inputs of mean m and variance v, and independent weights of mean mu and variance sigma^2,

    Var[sum w x] = sum sigma^2 E[x^2] + mu^2 v,     E[x^2] = m^2 + v

which is exact. The positions of an image are not independent: the filters of all layers before are the same for all of
them. How they vary together is known on average, which costs next to nothing: `_together`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...kernels import gaussian
from ...kernels.gaussian import Terms, in_order
from ...posteriors.scale import std_from_rho
from . import across
from .across import JOINT, Node
from .law import Moments
from .rules import NoRule, rule

Apply = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass
class Weight:
    """Mean and variance of a weight and a bias; None for what is certain, or not there.

    rho: in the place of a variance, which is softplus(rho)^2. joins: whether the operation can be asked for more input
    channels than it has.
    """

    mean: Tensor
    variance: Tensor | None = None
    bias: Tensor | None = None
    bias_variance: Tensor | None = None
    rho: Tensor | None = None
    joins: bool = True

    @property
    def is_random(self) -> bool:
        """Whether it has a variance."""
        return self.variance is not None or self.rho is not None

    def squares(self) -> Tensor:
        """sigma^2 and mu^2 side by side, as twice as many input channels."""
        if gaussian.serves(self.mean, self.variance, self.rho):
            return gaussian.squares(self.mean, self.variance, self.rho)
        return torch.cat([self.known().variance, self.mean.square()], 1)  # type: ignore[list-item]

    def known(self) -> Weight:
        """With its variance as a tensor."""
        return self if self.rho is None else replace(self, variance=std_from_rho(self.rho).square(), rho=None)


@dataclass(frozen=True)
class Filter:
    """How a convolution looks at its input: (outputs, inputs / groups, ...) weights, zeros around the input."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, kernel: torch.Size, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Filter:
        """From the options of torch's convolutions, numbers or one for each dimension."""
        dims = len(kernel)
        stride, dilation = (_each(value, dims) for value in (stride, dilation))
        if padding == "same":
            padding = tuple(d * (k - 1) // 2 for d, k in zip(dilation, kernel, strict=True))
        return cls(stride, _each(0 if padding == "valid" else padding, dims), dilation, groups)


def weighted(apply: Apply, x: Moments | Tensor, w: Weight, conv: Filter | None = None) -> Moments:
    """A map that is linear in its input and in its weight.

    apply: (input, weight, bias) -> output. conv: of a convolution of batches, whose positions vary together; None for
    any other map.
    """
    example = x if isinstance(x, Tensor) else x.mean
    if conv is None or example.ndim != w.mean.ndim:
        return _plain(apply, x, w)
    given = apply
    apply = lambda t, weight, bias: in_order(given(t, weight, bias))  # noqa: E731
    variance, rho = (None if t is None else in_order(t) for t in (w.variance, w.rho))
    w = replace(w, mean=in_order(w.mean), variance=variance, rho=rho)
    if isinstance(x, Tensor):
        x = in_order(x)
        mean, squares = apply(x, w.mean, w.bias), w.squares() if w.is_random else None
        if squares is None:
            return Moments(mean, apply(x.square(), torch.zeros_like(w.mean), None))
        variance = apply(x.square(), in_order(squares[:, : w.mean.shape[1]]), w.bias_variance)
        certain = Moments(x, x.new_zeros(()))
        share, _, node = _behind(certain, _averages(certain, conv.stride[-1]), w, squares, conv, mean.shape[2:])
        return Moments(mean, variance, share, None, node)
    x = replace(x, mean=in_order(x.mean), variance=in_order(x.variance))
    mean = apply(x.mean, w.mean, w.bias)
    joint = w.is_random and conv.groups == 1 and w.joins
    squares = w.squares() if joint else None
    both, averages = _spread(x, conv.stride[-1], joint)
    if squares is not None:  # one convolution of twice as many channels
        variance = apply(both, squares, w.bias_variance)
    elif not w.is_random:
        variance = apply(both[1], w.mean.square(), w.bias_variance)
    else:
        w = w.known()
        variance = apply(both[1], w.mean.square(), None).add_(apply(both[0], w.variance, w.bias_variance))  # type: ignore[arg-type]
    share, excess, node = _behind(x, averages, w, squares, conv, mean.shape[2:])
    return Moments(mean, variance if excess is None else variance.mul_(excess), share, None, node)


def _plain(apply: Apply, x: Moments | Tensor, w: Weight) -> Moments:
    """Of inputs that are taken for independent."""
    if isinstance(x, Tensor):
        w = w.known()
        squares = torch.zeros_like(w.mean) if w.variance is None else w.variance
        return Moments(apply(x, w.mean, w.bias), apply(x.square(), squares, w.bias_variance))
    mean = apply(x.mean, w.mean, w.bias)
    if w.is_random and w.joins and x.mean.ndim == w.mean.ndim == 2:
        variance = apply(_spread(replace(x, share=None), 1, True)[0], w.squares(), w.bias_variance)
        return _dense(x, w, mean, variance)
    w = w.known()
    variance = apply(x.variance, w.mean.square(), w.bias_variance if w.variance is None else None)
    if w.variance is not None:
        variance = variance.add_(apply(x.square, w.variance, w.bias_variance))
    return _dense(x, w, mean, variance)


def _behind(
    x: Moments, averages: Tensor, w: Weight, squares: Tensor | None, conv: Filter, out: torch.Size
) -> tuple[Tensor | None, Tensor | None, Node | None]:
    """How the positions of a convolution's output vary together, the factor of its variance for it, and its node."""
    inside = _inside(x.mean.shape[2:], w.mean.shape[2:], conv, out)
    served = conv.groups == 1 and w.is_random and gaussian.serves(w.mean, w.bias_variance, averages, x.share)
    if not served:
        w = w.known()
        share, excess = _together(x, averages, w, conv, inside)
        return share, excess, _node(x, averages, w, conv, inside)
    shares = None if x.share is None else x.share.flatten(2)
    given = w.squares() if squares is None else squares
    found, factor, sums = gaussian.together(
        w.mean, given, averages, shares, w.bias_variance, bool(x.variance.ndim), inside
    )
    tail = (1,) * (x.mean.ndim - 2)
    excess = None if factor is None else factor.view(*factor.shape, *tail)
    return found.view(*found.shape, *tail), excess, _joined(x, averages, sums[3], sums[1], w.bias_variance)


def _node(x: Moments, averages: Tensor, w: Weight, conv: Filter, inside: tuple[Tensor, Tensor]) -> Node | None:
    """Which uncertainty the averages of a convolution's channels have in common; see `across`."""
    if conv.groups != 1:
        return None
    alone = inside[0].to(w.mean)
    spread = None if w.variance is None else w.variance.flatten(2) @ alone.square()
    return _joined(x, averages, w.mean.flatten(2) @ alone, spread, w.bias_variance)


def _joined(x: Moments, averages: Tensor, weights: Tensor, spread: Tensor | None, bias_variance: Tensor | None) -> Node:
    """The node of a convolution whose averages are a linear map of those of its input, with weights (outputs, inputs).

    spread: the variance of these weights.
    """
    level, _, variance, _ = averages
    far = variance * x.share[0].flatten(1) if x.share is not None else torch.zeros_like(variance)
    before = Node(lambda: far) if x.across is None else x.across

    def noise() -> Tensor:
        if spread is None:
            return level.new_zeros(level.shape[0], weights.shape[0])
        found = _mix(level.square() + far, spread, 1)
        return found if bias_variance is None else found + bias_variance

    return Node(noise, ((before, lambda sums: sums @ weights),))


def _spread(x: Moments, step: int, beside: bool) -> tuple[Tensor, Tensor]:
    """E[x^2] and the variance without what neighbours vary together, and averages: see `kernels.gaussian.spread`."""
    near = None if x.share is None else x.share[1].flatten(1)
    if gaussian.serves(x.mean, x.variance, near):
        return gaussian.spread(Terms(x.mean, x.variance), step, near, beside)
    own = x.variance if x.share is None else x.variance * (1 - x.share[1])
    return torch.cat([x.square, own], 1) if beside else torch.stack([x.square, own]), _averages(x, step)


def _averages(x: Moments, step: int) -> Tensor:
    dims = tuple(range(2, x.mean.ndim))
    variance = x.variance.mean(dims) if x.variance.ndim else x.variance.expand(x.mean.shape[:2])
    return torch.stack([x.mean.mean(dims), x.mean.square().mean(dims), variance, neighbours(x.mean, step)])


def _together(
    x: Moments, averages: Tensor, w: Weight, conv: Filter, inside: tuple[Tensor, Tensor]
) -> tuple[Tensor | None, Tensor | None]:
    """How the positions of a convolution's output vary together, and the factor by which its variance is larger for it.

    Of averages over positions, (batch, channels). The noise of the weights at positions p and q has the covariance
    sum sigma^2 E[x(p) x(q)]. Where the inputs under a filter vary together, their variance c adds (sum of mu)^2 c. What
    lies in the padding does not count: `_inside`.
    """
    if w.variance is None and x.share is None:
        return None, None
    alone, pairs = (part.to(w.mean) for part in inside)
    level, power, variance, close_by = averages
    mu, groups = w.mean.flatten(2), conv.groups
    total = together = close = excess = power.new_zeros(())
    far = near = power.new_zeros(())
    if x.share is not None:
        far, near = variance * x.share.flatten(2)
    if w.variance is not None:
        spread = w.variance.flatten(2)
        whole = spread @ alone
        total = _mix(power + variance, whole, groups)
        together = _mix(level.square() + far, spread @ alone.square(), groups)
        close = _mix(close_by + near, whole, groups)
    if x.variance.ndim:
        total = total + _mix(variance - near, mu.square() @ alone, groups)
    if x.share is not None:
        excess = _mix(near, (mu @ pairs).mul_(mu).sum(2), groups)
        together = together + _mix(far, (mu @ alone).square_(), groups)
        close = close + excess
    if w.bias_variance is not None:  # the same at all positions
        total, together, close = (part + w.bias_variance for part in (total, together, close))
    tiny, shape = torch.finfo(power.dtype).tiny, (2, *total.shape, *(1,) * (x.mean.ndim - 2))
    found = torch.stack([together, close]).div_((total + excess).clamp_min_(tiny)).clamp_(0, 1).view(shape)
    return found, None if x.share is None else (1 + excess / total.clamp_min(tiny)).view(shape[1:])


def neighbours(mean: Tensor, stride: int) -> Tensor:
    """The average of m(p) m(q) over positions of a channel that are ``stride`` apart in the last dimension."""
    if mean.shape[-1] <= stride:
        return mean.flatten(2).mean(2).square()
    dims = tuple(range(2, mean.ndim))
    return (mean[..., stride:] * mean[..., :-stride]).mean(dims)


@lru_cache(maxsize=256)
def _inside(size: torch.Size, kernel: torch.Size, conv: Filter, out: torch.Size) -> tuple[Tensor, Tensor]:
    """For the weights of a filter, (k,) and (k, k): at which part of the positions they, and pairs of them, see input.

    >>> _inside(torch.Size([2]), torch.Size([3]), Filter((1,), (1,), (1,), 1), torch.Size([2]))[0]
    tensor([0.5000, 1.0000, 0.5000])
    """
    alone, pairs = torch.ones(1), torch.ones(1, 1)
    for n, k, m, s, p, d in zip(size, kernel, out, conv.stride, conv.padding, conv.dilation, strict=True):
        at = torch.arange(m).unsqueeze(1) * s - p + torch.arange(k) * d
        seen = ((at >= 0) & (at < n)).float()
        alone = torch.outer(alone, seen.mean(0)).flatten()
        pairs = torch.kron(pairs, seen.mT @ seen / m)
    return alone, pairs


def _each(value: Any, dims: int) -> tuple[int, ...]:
    return (value,) * dims if isinstance(value, int) else tuple(value) * (dims if len(value) == 1 else 1)


def _mix(values: Tensor, weights: Tensor, groups: int) -> Tensor:
    """A 1x1 convolution of numbers (batch, inputs) by (outputs, inputs / groups)."""
    if groups == 1:
        return values @ weights.mT
    return F.conv1d(values.unsqueeze(2), weights.unsqueeze(2), groups=groups).squeeze(2)


def _dense(x: Moments, w: Weight, mean: Tensor, variance: Tensor) -> Moments:
    """The outputs of a Linear (batch, features), which share the uncertainty of the inputs; of others as they are."""
    if mean.ndim != 2 or w.mean.ndim != 2 or w.mean.shape != (mean.shape[1], x.mean.shape[1]):
        return Moments(mean, variance)
    if x.across is not None and mean.shape[1] <= JOINT:
        joint = across.covariance(x.across, w.mean.expand(mean.shape[0], *w.mean.shape))
        alone = x.variance @ w.mean.square().mT
        variance = variance - alone + joint.diagonal(dim1=1, dim2=2)
        return Moments(mean, variance, covariance=lambda: torch.diagonal_scatter(joint, variance, dim1=1, dim2=2))

    def covariance() -> Tensor:
        found = torch.matmul(x.variance.unsqueeze(1) * w.mean, w.mean.mT)
        own = torch.eye(found.shape[1], dtype=torch.bool, device=found.device)
        return torch.where(own, variance.unsqueeze(2), found)

    return Moments(mean, variance, covariance=covariance)


def _certain(x: Any, weight: Any, bias: Any) -> None:
    if not isinstance(x, Moments) or isinstance(weight, Moments) or isinstance(bias, Moments):
        raise NoRule("its weight was computed from random values")


@rule("linear")
def _linear(x: Moments, weight: Tensor, bias: Tensor | None = None) -> Moments:
    _certain(x, weight, bias)
    return weighted(F.linear, x, Weight(weight, None, bias))


def _convolution(name: str) -> Any:
    function = getattr(F, name)
    is_transposed = "transpose" in name

    def apply(x: Moments, weight: Tensor, bias: Tensor | None = None, *args: Any, **options: Any) -> Moments:
        _certain(x, weight, bias)
        conv = None if is_transposed else Filter.of(weight.shape[2:], *args, **options)
        return weighted(lambda t, w, b: function(t, w, b, *args, **options), x, Weight(weight, None, bias), conv)

    return apply


for _dims in (1, 2, 3):
    rule(f"conv{_dims}d")(_convolution(f"conv{_dims}d"))
    rule(f"conv_transpose{_dims}d")(_convolution(f"conv_transpose{_dims}d"))
