"""Random cases for the compiled kernels, each a function of a seed: shapes of every kind against torch in float64.

`valid(seed)` runs one and raises where a number is wrong; `tests.kernels.broken` has those that must be refused.
"""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from tests.kernels.gaussian_cases import largest, positions, rectified, spread, squared
from tests.kernels.reference import close, doubled

from leanbayes.kernels import geometry, layout, library, norm, sparse
from leanbayes.kernels.buffers import empty
from leanbayes.kernels.convolution import convolve
from leanbayes.kernels.geometry import LANES, Geometry
from leanbayes.kernels.library import call
from leanbayes.kernels.plan import plan
from leanbayes.kl import kl
from leanbayes.posteriors import Gaussian, MultiplicativeGaussian
from leanbayes.priors import LogUniform, Normal


def levels():
    """The instruction sets of this machine, as `leanbayes_level` counts them."""
    native = library.library()
    now = native.leanbayes_level(-1)
    found = [i for i in range(len(library.LEVELS)) if native.leanbayes_level(i) == i]
    native.leanbayes_level(now)
    return found


def valid(seed):
    """Run a case on one of the instruction sets, and say which kind it was."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    native = library.library()
    level, threads = native.leanbayes_level(-1), torch.get_num_threads()
    native.leanbayes_level(rng.choice(levels()))
    torch.set_num_threads(rng.choice([1, 1, 2]))
    kinds = [operation, operation, operation, chain, pool, blocks, perturbed, rectified, largest, spread, divergence]
    kinds += [of_samples, squared, positions]
    kind = rng.choice(kinds)
    try:
        kind(rng)
    finally:
        native.leanbayes_level(level)
        torch.set_num_threads(threads)
    return kind.__name__


def batch_of(rng):
    """Batches around the edges of blocks, single data, and any other up to 100."""
    return rng.choice([1, 2, 15, 16, 17, 32, 33, rng.randint(1, 100)])


def convolution(rng, most=10):
    """A geometry: any stride, padding and groups, kernels larger than the image where the padding allows it."""
    if rng.random() < 0.25:  # a Linear, of one position or of an image that was flattened
        positions = rng.choice([1, 1, 4, 9, 49])
        return geometry.of_linear(rng.randint(1, 40), positions * rng.randint(1, 30), (1, positions))
    groups = rng.choice([1, 1, 1, 2, 3])
    kernel = tuple(rng.choice([1, 1, 2, 3, 3, 5, 7]) for _ in range(2))
    padding = tuple(rng.choice([0, 0, 1, k // 2, 4]) for k in kernel)
    size = tuple(rng.randint(max(1, k - 2 * p), max(most, k)) for k, p in zip(kernel, padding, strict=True))
    stride = tuple(rng.choice([1, 1, 2, rng.randint(1, 8)]) for _ in range(2))
    inputs, outputs = (groups * rng.randint(1, 12) for _ in range(2))
    return Geometry(outputs, inputs, groups, kernel, stride, padding, size)


def nonzeros_of(rng, g):
    """Places in any order: none, one, few, all."""
    numel = g.weights
    count = rng.choice([0, 1, numel, max(1, numel // 10), rng.randint(1, numel)])
    return torch.randperm(numel)[: min(count, 4000)].to(torch.int32)


def dense(x, mu, sigma, bias, index, g, eps):
    """mean + sqrt(variance) eps of a masked dense convolution, with a zero gradient where there is no variance."""
    shape = (g.outputs, g.inputs // g.groups, *g.kernel)
    values = [mu] if sigma is None else [mu, sigma**2]
    mean, *variance = (x.new_zeros(g.weights).index_copy(0, index.long(), w).view(shape) for w in values)
    options = (g.stride, g.padding, 1, g.groups)
    y = F.conv2d(x, mean, bias, *options)
    if sigma is None:
        return y
    v = F.conv2d(x * x, variance[0], None, *options)
    some = v > 0
    return y + torch.where(some, torch.where(some, v, 1.0).sqrt(), 0.0) * eps


def operation(rng):
    """Forward and backward of the sparse operation, with the gradients that someone wants."""
    g, batch = convolution(rng), batch_of(rng)
    index = nonzeros_of(rng, g)
    ready, n = plan(g, index), len(index)
    eps = torch.randn(batch, g.outputs, *g.out_size)
    x, mu = torch.randn(batch, g.inputs, *g.size), torch.randn(n)
    sigma = torch.rand(n) + 0.1 if rng.random() < 0.7 else None
    bias = torch.randn(g.outputs) if rng.random() < 0.5 else None
    grad, xb = torch.randn_like(eps), layout.block(x)
    own = layout.block(eps)
    y, slope = sparse.both(xb, mu, sigma, bias, ready, own if rng.random() < 0.7 else 5, batch)
    if sigma is not None and not torch.equal(y, sparse.both(xb, mu, sigma, bias, ready, own, batch)[0]):
        again = sparse.both(xb, mu, sigma, bias, ready, 5, batch)  # a seed repeats its noise
        assert torch.equal(again[0], y)
        assert torch.equal(again[1], slope)
        y, slope = sparse.both(xb, mu, sigma, bias, ready, own, batch)
    order = ready.backward.rows, ready.backward.offsets, ready.backward.slots
    wants = [rng.random() < 0.8, rng.random() < 0.8, bias is not None and rng.random() < 0.8]
    found = sparse.gradients(layout.block(grad), xb, mu, sigma, slope, order, ready.numbers(batch), wants)
    leaves = [x, mu, sigma, bias]

    def passed(own, eps, grad):
        out = dense(*own, index, g, eps)
        wanted = [t for t in own if t is not None]
        grads = iter(torch.autograd.grad(out, wanted, grad, allow_unused=True))
        return [out.detach(), *(None if t is None else next(grads) for t in own)]

    exact = passed(doubled(leaves), eps.double(), grad.double())
    sizes = passed(doubled(leaves, absolute=True), eps.double().abs(), grad.double().abs())
    ours = [layout.unblock(y, list(eps.shape)), layout.unblock(found[0], list(x.shape)) if wants[0] else None]
    ours += [found[1] if wants[1] else None, found[2] if wants[1] and sigma is not None else None]
    ours += [found[3] if wants[2] else None]
    for got, true, size, name in zip(ours, exact, sizes, ("output", "x", "mu", "sigma", "bias"), strict=True):
        if got is not None and got.numel():
            close(got, true, size, name)


def of_samples(rng):
    """Convolutions of stride 1 of many samples; images, weights and biases may be common to them."""
    kernel, padding = ([rng.choice(few) for _ in range(2)] for few in ([1, 2, 3, 5], [0, 0, 1, 2, 4]))
    size = [rng.randint(max(1, k - 2 * p), 25) for k, p in zip(kernel, padding, strict=True)]
    inputs, outputs, samples = rng.randint(1, 9), rng.randint(1, 13), rng.randint(1, 5)
    counts = [rng.choice([1, samples]) for _ in range(3)]
    x, weight = (
        torch.randn(counts[0], rng.randint(1, 6), inputs, *size),
        torch.randn(counts[1], outputs, inputs, *kernel),
    )
    bias = torch.randn(counts[2], outputs) if rng.random() < 0.7 else None
    ours = convolve(x, weight, bias, padding)

    def exact(*given):
        each = [[None] * len(ours) if t is None else t.expand(len(ours), *t.shape[1:]) for t in given]
        return torch.stack([F.conv2d(*one, padding=padding) for one in zip(*each, strict=True)])

    given = [x, weight, bias]
    close(ours, exact(*doubled(given)).detach(), exact(*doubled(given, absolute=True)).detach(), "of samples")


def chain(rng):
    """The operation with a norm, a sum and a rectifier behind it, undone while the gradient is read."""
    g, batch = convolution(rng), batch_of(rng)
    positions = g.out_size[0] * g.out_size[1]
    batch = batch if batch * positions >= 8 else 8
    index = nonzeros_of(rng, g)
    ready = plan(g, index)
    x, mu, gamma, beta = torch.randn(batch, g.inputs, *g.size), torch.randn(len(index)), None, None
    if rng.random() < 0.7:
        gamma, beta = torch.rand(g.outputs) + 0.5, torch.randn(g.outputs)
    shape = (batch, g.outputs, *g.out_size)
    other = torch.randn(shape) if rng.random() < 0.5 else None
    own, rectify = rng.random() < 0.5, rng.random() < 0.5
    fixed = (torch.randn(g.outputs), torch.rand(g.outputs) + 0.5)

    leaves = doubled([x, mu, gamma, beta, other])
    moments = (None, None) if own else [t.double() for t in fixed]
    before = F.batch_norm(dense(leaves[0], leaves[1], None, None, index, g, 0), *moments, *leaves[2:4], own)
    before = before if other is None else before + leaves[4]
    grad = torch.randn(shape) * (before.abs() > 1e-4)  # a rounded sum may be on the other side of the rectifier
    wanted = [t for t in leaves if t is not None]
    out = before.relu() if rectify else before
    true = iter(torch.autograd.grad(out, wanted, grad.double()))
    exact = [None if t is None else next(true) for t in leaves]

    xb, gb = layout.block(x), layout.block(grad)
    y, slope = sparse.both(xb, mu, None, None, ready, 0, batch)
    ours = norm.Norm(gamma, beta, *(norm.moments(y, batch) if own else fixed), 1e-5, own)
    out_b = norm.finish(y, batch, ours, None if other is None else layout.block(other), rectify)
    kept = out_b if rectify and other is not None else None
    masked = empty(gb.shape) if rectify and rng.random() < 0.5 else None
    line, dgamma, dbeta = norm.gradients(y, batch, gb, kept, rectify, ours, masked)
    behind = (gb, kept, rectify) if masked is None else (masked, None, False)
    order = ready.backward.rows, ready.backward.offsets, ready.backward.slots
    found = sparse.gradients(
        behind[0], xb, mu, None, slope, order, ready.numbers(batch), [True, True, False], behind[1], y, line, behind[2]
    )
    dy = empty(y.shape)
    call("leanbayes_norm_input", norm.sizes(y, batch), y, behind[0], behind[1], int(behind[2]), line, dy)
    again = sparse.gradients(dy, xb, mu, None, slope, order, ready.numbers(batch), [True, True, False])
    pairs = [(layout.unblock(out_b, list(shape)), out.detach()), (dgamma, exact[2]), (dbeta, exact[3])]
    for dx, dmu, *_ in (found, again):
        pairs += [(layout.unblock(dx, list(x.shape)), exact[0]), (dmu, exact[1])]
    for ours, true in pairs:
        if true is not None and true.numel():
            close(ours, true, 50 * (true.abs() + true.abs().max() + 1), "chain")  # a norm mixes the terms of a channel


def pool(rng):
    """Max pooling, whose results are torch's own to the last bit."""
    kernel = tuple(rng.choice([1, 2, 2, 3, 3, 5, 11]) for _ in range(2))
    padding = tuple(rng.randint(0, k // 2) for k in kernel)
    stride = tuple(rng.randint(1, 8) for _ in range(2))
    size = tuple(rng.randint(max(1, k - 2 * p), max(12, k)) for k, p in zip(kernel, padding, strict=True))
    channels, batch, rectify = rng.randint(1, 9), batch_of(rng), rng.random() < 0.5
    g = Geometry(channels, channels, 1, kernel, stride, padding, size)
    x = torch.randn(batch, channels, *size, requires_grad=True)
    expected = F.max_pool2d(x, kernel, stride, padding)
    expected = expected.relu() if rectify else expected
    grad = torch.randint(-4, 5, expected.shape).float()  # integers: sums in any order are the same
    xb, gb, shape = layout.block(x.detach()), layout.block(grad), list(expected.shape)
    y, dx = empty(gb.shape), empty(xb.shape)
    won = torch.empty(gb.shape, dtype=torch.int8)
    call("leanbayes_pool", g.numbers(batch), xb, y, won, int(rectify))
    call("leanbayes_pool_backward", g.numbers(batch), gb, won, dx)
    assert torch.equal(layout.unblock(y, shape), expected.detach())
    assert torch.equal(layout.unblock(dx, list(x.shape)), torch.autograd.grad(expected, x, grad)[0])


def blocks(rng):
    """The layout there and back."""
    batch, channels = rng.choice([0, batch_of(rng)]), rng.randint(1, 40)
    size = [rng.randint(1, 20) for _ in range(rng.randint(0, 3))]
    x = torch.randn(batch, channels, *size)
    y = layout.block(x)
    filled = torch.zeros(-(-batch // LANES) * LANES, channels, y.shape[1])
    filled[:batch] = x.reshape(batch, channels, -1) if batch else 0
    assert torch.equal(y, filled.view(-1, LANES, channels, y.shape[1]).permute(0, 3, 2, 1))
    assert torch.equal(layout.unblock(y, list(x.shape)), x)


def perturbed(rng):
    """Noise on a dense output: y - mean = 2 v slope, nothing where there is no variance."""
    n = rng.choice([1, 7, 31, 32, 33, rng.randint(1, 40_000)])
    mean, v = torch.randn(n), torch.rand(n) * (torch.rand(n) < 0.9)
    y, slope = torch.empty(n), torch.empty(n)
    call("leanbayes_perturb", mean, v, y, slope, rng.randrange(2**62))
    close(y, mean.double() + 2 * v.double() * slope.double(), mean.abs() + y.abs() + 1, "perturbed")
    assert bool((slope[v == 0] == 0).all())
    scores = (2 * v.sqrt() * slope)[v > 0]
    assert bool((scores.abs() < 7).all())


def divergence(rng):
    """The KL by rows and its gradients, against the formulas in float64."""
    rows, length = rng.choice([1, 1, 3, rng.randint(1, 50)]), rng.choice([1, 15, 16, 17, rng.randint(1, 1000), 20_000])
    form = rng.randrange(4)
    multiplicative = form > 0 and rng.random() < 0.5
    prior = LogUniform() if form else Normal(rng.uniform(-1, 1), rng.uniform(0.1, 2))
    centre, std = (0.0, 1.0) if form else (prior.mean, prior.std)
    loc, scale, g = torch.randn(rows, length), 4 * torch.randn(rows, length) - rng.choice([0, 5]), torch.randn(rows)
    mean = None if multiplicative else loc
    sums, found = torch.empty(rows), [None if mean is None else torch.empty(rows, length), torch.empty(rows, length)]
    law = (form, int(multiplicative), centre, std, rows, mean, scale)
    call("leanbayes_divergence", *law, sums)
    call("leanbayes_divergence_gradients", *law, g, *found)
    q = (MultiplicativeGaussian if multiplicative else Gaussian)(*doubled([loc, scale]))
    each = kl(q, prior, (None, "molchanov", "kingma", "cui")[form])
    sizes = each.detach()
    close(sums, sizes.sum(1), sizes.abs().sum(1) + length, "sums")
    exact = torch.autograd.grad(each.sum(1), list(q.parameters()), g.double(), allow_unused=True)
    for ours, gradient in zip(found, exact, strict=True):
        if ours is not None:  # terms of opposite sign cancel where the prior is met
            size = gradient.abs() + g.double().abs()[:, None] * (1 + loc.double().abs().reciprocal()) * 20 / std
            close(ours, gradient, size, "a gradient")
