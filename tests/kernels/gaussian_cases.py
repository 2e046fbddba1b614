"""Random cases of the kernels that carry means and variances, against float64 and the formulas as they are printed."""

from __future__ import annotations

import torch
from tests.kernels.reference import close

from leanbayes.kernels import gaussian


def shape_of(rng):
    """Planes of one position, of a few, and larger than what a kernel takes at a time."""
    size = [rng.choice([1, 2, 5, 17, 40]) for _ in range(rng.randint(1, 2))]
    return (rng.choice([1, 3, 17]), rng.randint(1, 9), *(size if rng.random() < 0.8 else [37, 41]))


def terms(rng, shape):
    """Means and variances, some of them 0 or far apart, with a normalisation and another term or without."""
    mean, variance = torch.randn(shape) * rng.choice([0.1, 1, 30]), torch.rand(shape) * (torch.rand(shape) < 0.9)
    factor = torch.randn(shape[1]) if rng.random() < 0.5 else None
    other = (torch.randn(shape), torch.rand(shape)) if rng.random() < 0.5 else (None, None)
    shift = torch.randn(shape[1]) if rng.random() < 0.5 else None
    return gaussian.Terms(mean, variance, factor, shift, *other)


def summed(x):
    """factor x + shift + other in float64: mean, and the variances of both parts."""
    shape = (-1, *(1,) * (x.mean.ndim - 2))
    factor = 1.0 if x.factor is None else x.factor.double().view(shape)
    mean = x.mean.double() * factor + (0.0 if x.shift is None else x.shift.double().view(shape))
    mean = mean if x.other_mean is None else mean + x.other_mean.double()
    other = torch.zeros_like(mean) if x.other_variance is None else x.other_variance.double()
    return mean, x.variance.double() * factor**2, other


def magnitude(x):
    """Of the terms of a sum: what a mean that they cancel in is known to a share of."""
    parts = (x.mean, x.variance, x.factor, x.shift, x.other_mean, x.other_variance)
    return summed(gaussian.Terms(*(None if part is None else part.abs() for part in parts)))[0]


def normal(t):
    """Phi(t) and phi(t)."""
    return torch.special.ndtr(t), torch.exp(-t * t / 2) / (2 * torch.pi) ** 0.5


def rectified(rng):
    """Moments of a rectified Gaussian, and sums of them over positions, against the textbook's formulas."""
    shape = shape_of(rng)
    x, slope = terms(rng, shape), rng.choice([0.0, 0.0, 0.1, -1.0, 1.0])
    y, v, sums = gaussian.rectify(x, slope, sums=True)
    mean, first, second = summed(x)
    variance = first + second
    s = variance.clamp_min(1e-30).sqrt()
    above, density = normal(mean / s)
    one, two = mean * above + s * density, (mean**2 + variance) * above + mean * s * density
    expected = one + slope * (mean - one)  # E min(x, 0) = E x - E max(x, 0)
    power = two + slope**2 * (mean**2 + variance - two)
    spread, size = (power - expected**2).clamp_min(0), magnitude(x) + s
    close(y, expected, 2 * size, "mean")
    close(v, spread, 2 * size**2, "variance")
    linear = (slope + (1 - slope) * above) ** 2 * variance
    exact = torch.stack([part.flatten(2).sum(2) for part in (first, second, linear, spread)])
    close(sums, exact, 4 * (size**2).flatten(2).sum(2) + 1, "sums")


def largest(rng):
    """Maxima of Gaussians over windows: their means are between the largest mean and the sum of all deviations."""
    kernel, dilation = [rng.choice([1, 2, 2, 3]) for _ in range(2)], [rng.choice([1, 1, 2]) for _ in range(2)]
    padding = [rng.randint(0, k // 2) for k in kernel]
    stride = [rng.randint(1, 4) for _ in range(2)]
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    size = [rng.randint(r, max(12, r)) for r in reach]
    x = terms(rng, (rng.choice([1, 3, 17]), rng.randint(1, 9), *size))
    x = gaussian.Terms(x.mean, x.variance, x.factor, x.shift)
    near = torch.rand(x.mean.shape[:2]) if rng.random() < 0.5 else None
    each = zip(size, kernel, stride, padding, dilation, reach, strict=True)
    rows, columns = (gaussian.Window(n, k, s, p, d, (n + 2 * p - r) // s + 1) for n, k, s, p, d, r in each)
    y, v = gaussian.largest(x, rows, columns, near)
    mean, variance, _ = summed(x)
    pairwise = zip((rows, columns), (2, 3), strict=True)
    for window, dim in reversed(list(pairwise)):
        mean, variance = clark(mean, variance, window, dim, near)
    size = mean.abs() + variance.sqrt() + magnitude(x).amax()
    close(y, mean, 10 * size, "mean")
    close(v, variance, 10 * size**2, "variance")


def clark(mean, variance, window, dim, near):
    """Maxima over windows along one dimension, in float64, by Clark's formulas as he prints them."""
    found = None
    for k in range(window.kernel):
        at = torch.arange(window.count) * window.stride - window.padding + k * window.dilation
        inside = ((at >= 0) & (at < window.size)).view(-1, *(1,) * (3 - dim))
        at = at.clamp(0, window.size - 1)
        m, v = mean.index_select(dim, at).where(inside, -1e4), variance.index_select(dim, at) * inside
        if found is None:
            found = m, v
            continue
        m0, v0 = found
        r = 0.0 if near is None else near.double()[:, :, None, None]
        a = (v0 + v - 2 * r * (v0 * v).sqrt()).clamp_min(1e-30).sqrt()
        above, density = normal((m0 - m) / a)
        first = m0 * above + m * (1 - above) + a * density
        centre = torch.maximum(m0, m)  # second moments about it
        p, q = m0 - centre, m - centre
        about = p * above + q * (1 - above) + a * density
        second = (p**2 + v0) * above + (q**2 + v) * (1 - above) + (p + q) * a * density
        found = first, (second - about**2).clamp_min(0)
    return found


def spread(rng):
    """E[x^2] and what is left of the variance, side by side or one behind the other, and averages over positions."""
    shape = shape_of(rng)
    x, step, beside = terms(rng, shape), rng.choice([1, 1, 2, 9]), rng.random() < 0.5
    near = torch.rand(shape[:2]) if rng.random() < 0.5 else None
    both, averages = gaussian.spread(x, step, near, beside)
    m, v = x.mean.double(), x.variance.double()
    left = v if near is None else v * (1 - near.double().view(*shape[:2], *(1,) * (len(shape) - 2)))
    exact = torch.cat([m**2 + v, left], 1) if beside else torch.stack([m**2 + v, left])
    close(both, exact, exact + 1e-6, "both")
    pairs = (m[..., step:] * m[..., :-step]).flatten(2).mean(2) if shape[-1] > step else m.flatten(2).mean(2) ** 2
    known = torch.stack([m.flatten(2).mean(2), (m**2).flatten(2).mean(2), v.flatten(2).mean(2), pairs])
    close(averages, known, 4 * ((m**2).flatten(2).mean(2) + 1), "averages")


def calls(rng):
    """Each of the kernels once, for those who look at their arguments."""
    shape = (rng.randint(1, 3), rng.randint(1, 4), rng.randint(3, 6), rng.randint(3, 6))
    x = gaussian.Terms(*(torch.rand(shape) for _ in range(2)), *(torch.rand(shape[1]) for _ in range(2)))
    near = torch.rand(shape[:2])
    windows = [gaussian.Window(n, 2, 2, 1, 1, n // 2 + 1) for n in shape[2:]]
    gaussian.rectify(gaussian.Terms(x.mean, x.variance, x.factor, x.shift, x.mean, x.variance), 0.1, sums=True)
    gaussian.largest(x, *windows, near)
    gaussian.spread(x, 1, near, rng.random() < 0.5)
