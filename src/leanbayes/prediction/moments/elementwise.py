"""Rules of functions of one number, for a Gaussian x ~ N(m, v); s = sqrt(v), t = m / s.

Rectifiers have closed forms: E max(x, 0) = m Phi(t) + s phi(t). All others, GELU and SiLU among them, are integrated by
Gauss-Hermite quadrature, sum_i w_i f(m + s z_i), at `NODES` nodes.

What is left of the correlation of two positions behind f depends on E[f'(x)] = Cov(x, f(x)) / v: see `left`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...kernels import gaussian
from ...kernels.gaussian import Terms
from . import across
from .across import Node
from .law import Moments
from .rules import NoRule, rule
from .waiting import Affine, Pending, computed, mixed

NODES = 8
_ROOTS, _WEIGHTS = np.polynomial.hermite_e.hermegauss(NODES)
HERMITE = list(zip(_ROOTS.tolist(), (_WEIGHTS / _WEIGHTS.sum()).tolist(), strict=True))
"""Nodes and weights for E f(z), z standard normal."""
TINY = 1e-30
"""A variance that counts as 0 and whose products are ordinary numbers."""
_SQRT_HALF, _PHI0 = math.sqrt(0.5), 1 / math.sqrt(2 * math.pi)


def tail(t: Tensor) -> tuple[Tensor, Tensor]:
    """Phi(-|t|), and E max(z - |t|, 0) = phi(t) - |t| Phi(-|t|).

    From 8 on they are as at 8, 6e-16 and 8e-17: numbers so small that they slow the arithmetic down would follow.
    """
    t = t.abs().clamp_max_(8)
    below = torch.special.erfc(t * _SQRT_HALF).mul_(0.5)
    return below, torch.exp(t.square().mul_(-0.5)).mul_(_PHI0).addcmul_(t, below, value=-1)


def rectified(x: Moments | Affine, slope: Any = 0.0) -> Moments:
    """max(x, 0) + slope min(x, 0).

    With g = E max(s z - |m|, 0): E max(x, 0) = max(m, 0) + g, and Var max(x, 0) = v Phi(t) - E max(x, 0) E max(-x, 0).
    """
    if isinstance(slope, (int, float)):
        waiting = x if isinstance(x, Affine) else Affine(x)
        terms = waiting.terms()
        if x.mean.ndim >= 2 and gaussian.serves(*terms.tensors()):
            return _by_kernel(waiting, terms, slope)
    x = computed(x)
    m, v = x.mean, x.variance.clamp_min(TINY)
    s = v.sqrt()
    below, g = tail(m / s)
    g.mul_(s)
    positive, negative = F.relu(m).add_(g), F.relu(-m).add_(g)
    gain = (0.5 - below).copysign_(m).add_(0.5)
    variance = (v * gain).addcmul_(positive, negative, value=-1)
    if not isinstance(slope, (int, float)) or slope != 0:
        keep = 1 - slope
        variance = slope**2 * v + keep**2 * variance + 2 * slope * keep * v * gain
        positive = positive - slope * negative
        gain = slope + keep * gain
    found = Moments(positive, variance.clamp_min_(0), left(x, gain, variance))
    if x.across is not None and x.share is not None:
        dims = tuple(range(2, m.ndim))
        before, after = (part.mean(dims, keepdim=True) for part in (v, variance))
        slope = (gain.square() * v).mean(dims, keepdim=True) / before
        found.across = _linear_part(found, x.across, slope, before * x.share[0], after)
    return found


def _by_kernel(x: Affine, terms: Terms, slope: float) -> Moments:
    """The same, and a normalisation and a sum before it, in one pass; the correlations from sums over positions."""
    other = Moments(x.source.mean, x.source.variance) if x.other is None else x.other
    correlated = x.source.share is not None or other.share is not None
    mean, variance, sums = gaussian.rectify(terms, slope, correlated)
    if sums is None:
        return Moments(mean, variance)
    first, second, linear, total = sums.view(4, *mean.shape[:2], *(1,) * (mean.ndim - 2)).unbind(0)
    share = mixed(x.source, other, first, second)
    tiny = torch.finfo(mean.dtype).tiny
    part = (linear / total.clamp_min(tiny)).clamp(0, 1)
    found = Moments(mean, variance, None if share is None else share * (part + (1 - part) * share))
    terms_of = [across.scaled(x.source.across, x.factor), *([] if x.other is None else [x.other.across])]
    if share is not None and (node := across.added(*terms_of)) is not None:
        before, positions = (first + second).clamp_min(tiny), mean[0, 0].numel()
        found.across = _linear_part(found, node, linear / before, (before / positions * share[0]), total / positions)
    return found


def _linear_part(found: Moments, node: Node, slope: Tensor, before: Tensor, after: Tensor) -> Node | None:
    """Behind a function of one number: its mean derivative (squared: slope), and the rest of its variance as new.

    before: the variance of the averages over positions. after: of single numbers behind it.
    """
    share = found.share
    assert share is not None

    def fresh() -> Tensor:
        return (after * share[0] - slope * before).flatten(1)

    return across.behind(across.scaled(node, slope.clamp_min(0).sqrt().flatten(1)), fresh)


def left(x: Moments, gain: Tensor, variance: Tensor) -> Tensor | None:
    """The correlations of positions behind a function whose mean derivative is ``gain``.

    Two Gaussians of correlation r have f(x) of covariance sum_k c_k r^k (Hermite); c_1 = v gain^2, and what is left of
    the variance is taken for c_2.
    """
    if x.share is None:
        return None
    dims = tuple(range(2, x.mean.ndim))
    total = variance.mean(dims, keepdim=True).clamp_min(torch.finfo(variance.dtype).tiny)
    first = ((gain.square() * x.variance).mean(dims, keepdim=True) / total).clamp(0, 1)
    return x.share * (first + (1 - first) * x.share)


def between(x: Moments, low: float, high: float) -> Moments:
    """clamp(x, low, high), in closed form."""
    s = x.std.clamp_min(torch.finfo(x.mean.dtype).tiny)
    centre = x.mean.clamp(low, high)  # moments about it: no cancellation
    m, v = x.mean - centre, x.variance
    low_, high_ = low - centre, high - centre
    a, b = ((edge - m) / s for edge in (low_, high_))
    below, above = torch.special.ndtr(a), torch.special.ndtr(-b)
    pa, pb = (torch.exp(-0.5 * edge.clamp(-1e9, 1e9).square()) * _PHI0 for edge in (a, b))
    inside = (1 - below - above).clamp_min(0)
    lows, highs = (0.0 if math.isinf(edge) else part for edge, part in ((low, low_), (high, high_)))
    first = lows * below + highs * above + m * inside + s * (pa - pb)
    edges = _times(a, pa) - _times(b, pb)
    second = lows**2 * below + highs**2 * above + (m * m + v) * inside + 2 * m * s * (pa - pb) + v * edges
    variance = (second - first.square()).clamp_min(0)
    return Moments(centre + first, variance, left(x, inside, variance))


def _times(edge: Tensor, density: Tensor) -> Tensor:
    return torch.where(density > 0, edge * density, 0.0)


def integrated(x: Moments, function: Callable[[Tensor], Tensor]) -> Moments:
    """Any function of one number, by quadrature."""
    s = x.std
    values = [function(torch.add(x.mean, s, alpha=z)) for z, _ in HERMITE]
    mean = torch.zeros_like(x.mean)
    for value, (_, weight) in zip(values, HERMITE, strict=True):
        mean.add_(value, alpha=weight)
    variance, slope = torch.zeros_like(mean), torch.zeros_like(mean)
    for value, (z, weight) in zip(values, HERMITE, strict=True):
        variance.add_((value - mean).square_(), alpha=weight)
        slope.add_(value, alpha=weight * z)
    return Moments(mean, variance, left(x, slope / s.clamp_min(torch.finfo(s.dtype).tiny), variance))


@rule("relu", early=(Affine,))
def _relu(x: Moments | Affine) -> Pending:
    return Pending(x, rectified)


@rule("leaky_relu", early=(Affine,))
def _leaky_relu(x: Moments | Affine, negative_slope: float = 0.01) -> Moments | Pending:
    leaky = partial(rectified, slope=negative_slope)
    return Pending(x, leaky) if negative_slope >= 0 else leaky(x)


@rule("prelu")
def _prelu(x: Moments, weight: Tensor) -> Moments:
    if not isinstance(x, Moments) or isinstance(weight, Moments):
        raise NoRule("its slope is random")
    return rectified(x, weight if weight.numel() == 1 else weight.view(-1, *(1,) * (x.mean.ndim - 2)))


@rule("abs", "absolute")
def _abs(x: Moments) -> Moments:
    return rectified(x, slope=-1.0)


@rule("relu6")
def _relu6(x: Moments) -> Pending:
    return Pending(x, partial(between, low=0.0, high=6.0))


@rule("hardtanh")
def _hardtanh(x: Moments, min_val: float = -1.0, max_val: float = 1.0) -> Pending:
    return Pending(x, partial(between, low=min_val, high=max_val))


@rule("clamp", "clip", "clamp_min", "clamp_max")
def _clamp(x: Moments, min: Any = None, max: Any = None) -> Pending:
    low, high = -math.inf if min is None else min, math.inf if max is None else max
    if not all(isinstance(edge, (int, float)) for edge in (low, high)):
        raise NoRule("its limits are tensors")
    return Pending(x, partial(between, low=low, high=high))


@rule("clamp_max")
def _clamp_max(x: Moments, max: Any) -> Pending:
    return _clamp(x, None, max)


def _quadrature(function: Callable[..., Tensor]) -> Any:
    def apply(x: Moments, *args: Any, **kwargs: Any) -> Moments:
        if not isinstance(x, Moments) or any(isinstance(a, Moments) for a in (*args, *kwargs.values())):
            raise NoRule("several of its arguments are random")
        return integrated(x, lambda value: function(value, *args, **kwargs))

    return apply


for _function in (
    F.gelu, F.silu, F.mish, F.elu, F.selu, F.celu, F.softplus, F.hardswish, F.hardsigmoid, F.logsigmoid, F.softsign,
    F.tanhshrink, F.softshrink, F.hardshrink, F.threshold, torch.tanh, torch.sigmoid, torch.exp, torch.expm1,
    torch.sin, torch.cos, torch.erf, torch.atan, torch.square,
):  # fmt: skip
    rule(_function.__name__.strip("_"))(_quadrature(_function))
rule("special_expit", "expit")(_quadrature(torch.sigmoid))


@rule("pow", "float_power")
def _pow(x: Moments, exponent: Any) -> Moments:
    if not isinstance(exponent, int) or not 0 < exponent < NODES:
        raise NoRule("powers have a rule for small whole exponents")
    return integrated(x, lambda value: value**exponent)
