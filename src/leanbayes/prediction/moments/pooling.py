"""Rules of pooling and resizing.

Positions of a channel that vary together do not average out. A maximum is taken pairwise by Clark's formula (1961),
along one dimension and then the next, with the correlation of neighbours.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...kernels import gaussian
from ...kernels.gaussian import Window
from . import across
from .elementwise import TINY, tail
from .law import Moments
from .rules import NoRule, rule
from .waiting import Affine, Pending, computed


def _sizes(value: Any, dims: int) -> tuple[int, ...]:
    return (value,) * dims if isinstance(value, int) else tuple(value) * (dims if len(value) == 1 else 1)


def _batched(x: Moments | Affine, dims: int) -> None:
    if x.mean.ndim != dims + 2:
        raise NoRule("it has a rule for batches (N, C, ...)")


def _average(dims: int) -> Any:
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[dims - 1]

    def apply(x: Moments, kernel_size: Any, stride: Any = None, *args: Any, **options: Any) -> Moments:
        _batched(x, dims)
        stride = stride or kernel_size
        mean, variance = (pool(part, kernel_size, stride, *args, **options) for part in (x.mean, x.variance))
        return _averaged(x, mean, variance, math.prod(_sizes(kernel_size, dims)), _sizes(stride, dims)[-1])

    return apply


def _averaged(x: Moments, mean: Tensor, variance: Tensor, count: int, stride: int) -> Moments:
    """Averages over windows of so many positions, given those of the mean and the variance."""
    if x.share is None:
        return Moments(mean, variance / count)
    far, near = farther(x.share, stride)
    inside = x.share[0] if mean.shape[2:].numel() == 1 else x.share[1]
    factor = inside + (1 - inside) / count
    share = (torch.stack([far, near]) / factor.clamp_min(torch.finfo(factor.dtype).tiny)).clamp(0, 1)
    node = None
    if mean.shape[2:].numel() == 1:
        node = across.behind(x.across, lambda: (variance * (1 - inside) / count).flatten(1))
    return Moments(mean, variance * factor, share, None, node)


def farther(share: Tensor, stride: int) -> Tensor:
    """The correlations where only every so many positions are left: those of neighbours fall off exponentially."""
    far, near = share
    excess = ((near - far) / (1 - far).clamp_min(torch.finfo(far.dtype).eps)).clamp(0, 1)
    return torch.stack([far, far + (1 - far) * excess**stride])


def _adaptive(dims: int) -> Any:
    pool = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[dims - 1]

    def apply(x: Moments, output_size: Any) -> Moments:
        _batched(x, dims)
        mean, variance = (pool(part, output_size) for part in (x.mean, x.variance))
        sizes, wanted = x.mean.shape[2:], mean.shape[2:]
        if any(n % m for n, m in zip(sizes, wanted, strict=True)):
            raise NoRule("its windows are not of one size")
        return _averaged(x, mean, variance, math.prod(sizes) // math.prod(wanted), sizes[-1] // wanted[-1])

    return apply


def larger(x: Moments, other: Moments) -> Moments:
    """max(x, other) (Clark, 1961, equations 2 to 4), written for the distance d of the means.

    With a^2 = v1 + v2 - 2 cov and u = d / a: mean max(m1, m2) + a (phi(u) - u Phi(-u)).
    """
    spread = x.variance + other.variance
    if x.share is not None:
        spread = spread.addcmul_((x.variance * other.variance).clamp_min_(0).sqrt_(), -2 * x.share[1])
    a = spread.clamp_min_(TINY).sqrt_()
    ahead = x.mean - other.mean
    d = torch.minimum(ahead.abs(), 8 * a)
    below, g = tail(d / a)
    g.mul_(a)
    beaten = (0.5 - below).copysign_(ahead).neg_().add_(0.5)  # the probability that the other one is larger
    # about the larger mean: v_ahead (1 - Phi) + (d^2 + v_behind) Phi - d a phi, with a phi = g + d Phi
    variance = torch.lerp(x.variance, other.variance, beaten).addcmul_(d.add_(g), g, value=-1)
    return Moments(torch.maximum(x.mean, other.mean).add_(g), variance.clamp_min_(0), x.share)


def _window(length: int, size: int, stride: int, padding: int, dilation: int, ceil: bool) -> Window:
    """How many windows there are along a dimension."""
    steps = (length + 2 * padding - dilation * (size - 1) - 1) / stride
    count = (math.ceil(steps) if ceil else math.floor(steps)) + 1
    if ceil and (count - 1) * stride >= length + padding:  # torch: no window begins beyond the input
        count -= 1
    return Window(length, size, stride, padding, dilation, count)


def _along(x: Moments, dim: int, w: Window) -> Moments:
    """Maxima over windows along one dimension."""
    span, reach = (w.count - 1) * w.stride + 1, w.dilation * (w.kernel - 1)
    after = max(span + reach - w.size - w.padding, 0)
    if w.padding or after:
        pad = [0, 0] * (x.mean.ndim - 1 - dim) + [w.padding, after]
        lowest = float(torch.finfo(x.mean.dtype).min) / 4
        x = Moments(F.pad(x.mean, pad, value=lowest), F.pad(x.variance, pad), x.share)

    def at(offset: int) -> Moments:
        def part(t: Tensor) -> Tensor:
            return t.narrow(dim, offset, span)[(slice(None),) * dim + (slice(None, None, w.stride),)]

        return Moments(part(x.mean), part(x.variance), x.share)

    found = at(0)
    for i in range(1, w.kernel):
        found = larger(found, at(i * w.dilation))
    return found


def _over(x: Moments | Affine, windows: list[Window]) -> Moments:
    """Maxima over windows, along the last dimension first."""
    waiting = x if isinstance(x, Affine) else Affine(x)
    share = waiting.source.share
    terms = waiting.terms()
    if len(windows) == 2 and waiting.other is None and gaussian.serves(*terms.tensors()):
        near = None if share is None else share[1].flatten(1)
        return Moments(*gaussian.largest(terms, windows[0], windows[1], near), share)
    x = computed(x)
    for i in reversed(range(len(windows))):
        x = _along(x, i + 2, windows[i])
    return x


def _maximum(dims: int) -> Any:
    def apply(
        x: Moments | Affine | Pending, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Moments | Pending:  # fmt: skip
        if isinstance(x, Pending):
            return Pending(apply(x.source, kernel_size, stride, padding, dilation, ceil_mode, return_indices), x.rule)  # type: ignore[arg-type]
        _batched(x, dims)
        if return_indices:
            raise NoRule("it returns where the maxima are")
        kernel, steps = _sizes(kernel_size, dims), _sizes(stride or kernel_size, dims)
        each = zip(x.mean.shape[2:], kernel, steps, _sizes(padding, dims), _sizes(dilation, dims), strict=True)
        found = _over(x, [_window(*one, ceil_mode) for one in each])
        return Moments(found.mean, found.variance, None if found.share is None else farther(found.share, steps[-1]))

    return apply


for _dims in (1, 2, 3):
    rule(f"avg_pool{_dims}d")(_average(_dims))
    rule(f"adaptive_avg_pool{_dims}d")(_adaptive(_dims))
    rule(f"max_pool{_dims}d", early=(Affine, Pending))(_maximum(_dims))


@rule("maximum")
def _larger_of_two(x: Any, other: Any) -> Moments:
    first, second = (part if isinstance(part, Moments) else Moments.fixed(part) for part in (x, other))
    if x is other or first.mean.shape != second.mean.shape:
        raise NoRule("it has a rule for two tensors of one shape")
    return larger(Moments(first.mean, first.variance), Moments(second.mean, second.variance))


@rule("interpolate", "upsample")
def _interpolate(
    x: Moments, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Moments:  # fmt: skip
    """Any mode is a linear map along each dimension; its matrix is what becomes of unit vectors."""
    options = {"align_corners": align_corners, "recompute_scale_factor": recompute_scale_factor, "antialias": antialias}
    mean = F.interpolate(x.mean, size, scale_factor, mode, **options)  # type: ignore[arg-type]
    if mode.startswith("nearest"):
        return Moments(mean, F.interpolate(x.variance, size, scale_factor, mode), x.share)
    dims = x.mean.ndim - 2
    if antialias or recompute_scale_factor or mode == "area":
        raise NoRule(f"it has a rule for nearest and linear modes, without antialias; this is {mode}")
    line = "linear" if mode != "bicubic" else mode
    factors: Any = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * dims
    variance = x.variance
    for i in range(dims):
        n, m = x.mean.shape[i + 2], mean.shape[i + 2]
        units = torch.eye(n, dtype=mean.dtype, device=mean.device)
        if line == "linear":
            how: dict[str, Any] = {"size": m} if (by := factors[i]) is None else {"scale_factor": float(by)}
            table = F.interpolate(units.unsqueeze(0), mode="linear", align_corners=align_corners, **how)[0]
        else:
            how = {"size": (n, m)} if (by := factors[i]) is None else {"scale_factor": (1.0, float(by))}
            table = F.interpolate(units[None, None], mode="bicubic", align_corners=align_corners, **how)[0, 0]
        variance = torch.tensordot(variance, table.square(), dims=([i + 2], [0])).movedim(-1, i + 2)
    return Moments(mean, variance, None)
