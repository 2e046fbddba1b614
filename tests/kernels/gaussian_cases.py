"""Random cases of the kernels that carry means and variances, against float64 and the formulas as they are printed."""

from __future__ import annotations

import torch
from tests.kernels.reference import close

from leanbayes.kernels import gaussian
from leanbayes.prediction.moments import linear


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


def weight(rng):
    """Means and rho of a convolution, in either order of memory."""
    shape = (rng.randint(1, 20), rng.randint(1, 40), rng.choice([1, 2, 3]), rng.choice([1, 3, 5]))
    order = rng.choice([torch.contiguous_format, torch.channels_last])
    mean, rho = torch.randn(shape), torch.randn(shape) * rng.choice([1, 10])
    return mean.contiguous(memory_format=order), rho.contiguous(memory_format=order)


def squared(rng):
    """Variances and squared means of weights side by side."""
    mean, rho = weight(rng)
    variance = torch.nn.functional.softplus(rho.double(), threshold=40).square()
    given = (variance.float(), None) if rng.random() < 0.5 else (None, rho)
    exact = torch.cat([variance, mean.double().square()], 1)
    close(gaussian.squares(mean, *given), exact, exact + 1e-12, "squares")


def positions(rng):
    """How positions of a convolution's output vary together, and sums over a filter, against the twin in float64."""
    mean, rho = weight(rng)
    both, rows, (outputs, inputs, *kernel) = gaussian.squares(mean, None, rho), rng.randint(1, 5), mean.shape
    size = [rng.randint(k, k + 6) for k in kernel]
    conv = linear.Filter.of(mean.shape[2:], rng.choice([1, 2]), [rng.randint(0, k - 1) for k in kernel])
    steps = zip(size, kernel, conv.padding, conv.stride, strict=True)
    out = torch.Size((n + 2 * p - k) // s + 1 for n, k, p, s in steps)
    inside = linear._inside(torch.Size(size), mean.shape[2:], conv, out)
    x = linear.Moments(torch.randn(rows, inputs, *size), torch.rand(rows, inputs, *size))
    averages = linear._averages(x, 1)
    x.share = torch.rand(2, rows, inputs, 1, 1).sort(0).values if rng.random() < 0.7 else None
    bias, share = torch.rand(outputs) if rng.random() < 0.5 else None, None if x.share is None else x.share.flatten(2)
    uncertain = x.share is not None or rng.random() < 0.5
    found, factor, sums = gaussian.together(mean, both, averages, share, bias, uncertain, inside)
    wide = linear.Moments(x.mean.double(), x.variance.double() if uncertain else x.variance.new_zeros(()).double())
    wide.share = None if x.share is None else x.share.double()
    w = linear.Weight(mean.double(), both[:, :inputs].double(), None, None if bias is None else bias.double())
    exact, excess = linear._together(wide, averages.double(), w, conv, tuple(part.double() for part in inside))
    close(found, exact.flatten(2), torch.full_like(exact.flatten(2), 30.0), "correlations")
    assert (factor is None) == (excess is None)
    if factor is not None:
        close(factor, excess.flatten(1), 30 * excess.flatten(1).abs(), "factors")
    alone, pairs = inside[0].double(), inside[1].double()
    mu, s2 = w.mean.flatten(2), w.variance.flatten(2)
    rivals = [s2 @ alone, s2 @ alone.square(), mu.square() @ alone, mu @ alone, ((mu @ pairs) * mu).sum(2)]
    bounds = [s2.sum(2), s2.sum(2), mu.square().sum(2), mu.abs().sum(2), mu.abs().sum(2).square()]
    for got, one, bound in zip(sums, rivals, bounds, strict=True):
        close(got, one, bound + 1e-12, "sums over a filter")


def calls(rng):
    """Each of the kernels once, for those who look at their arguments."""
    shape = (rng.randint(1, 3), rng.randint(1, 4), rng.randint(3, 6), rng.randint(3, 6))
    x = gaussian.Terms(*(torch.rand(shape) for _ in range(2)), *(torch.rand(shape[1]) for _ in range(2)))
    near = torch.rand(shape[:2])
    windows = [gaussian.Window(n, 2, 2, 1, 1, n // 2 + 1) for n in shape[2:]]
    gaussian.rectify(gaussian.Terms(x.mean, x.variance, x.factor, x.shift, x.mean, x.variance), 0.1, sums=True)
    gaussian.largest(x, *windows, near)
    averages = gaussian.spread(x, 1, near, rng.random() < 0.5)[1]
    mean, rho = torch.rand(2, 3, shape[1], 2, 2)
    inside, share = (torch.rand(4), torch.rand(4, 4)), torch.rand(2, *shape[:2])
    both = gaussian.squares(mean, None, rho)
    gaussian.together(mean, both, averages, share, torch.rand(3), True, inside)
