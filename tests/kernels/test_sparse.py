"""The compiled sparse operations against dense torch: same noise, same outputs, same gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings, strategies as st
from tests.kernels.reference import close, doubled
from torch import nn

from leanbayes.kernels import geometry, layout, library, operation, sparse
from leanbayes.kernels.plan import plan


def dense(x, mu, sigma, bias, index, conv, eps):
    """mean + sqrt(variance) eps of a masked dense convolution, with a zero gradient where there is no variance."""
    shape = conv.weight.shape
    mean, variance = (x.new_zeros(shape.numel()).index_copy(0, index.long(), w).view(shape) for w in (mu, sigma**2))
    options = (conv.stride, conv.padding, conv.dilation, conv.groups)
    v = F.conv2d(x * x, variance, None, *options)
    some = v > 0
    return F.conv2d(x, mean, bias, *options) + torch.where(some, torch.where(some, v, 1.0).sqrt(), 0.0) * eps


def compare(conv, size, batch, count, seed):
    """Output and all gradients, for the same noise."""
    torch.manual_seed(seed)
    index = torch.randperm(conv.weight.numel())[:count].to(torch.int32)
    shape = geometry.of_conv(conv, size)
    eps = torch.randn(batch, conv.out_channels, *shape.out_size)
    leaves = [torch.randn(batch, conv.in_channels, *size), torch.randn(count), torch.rand(count) + 0.1]
    leaves += [torch.randn(conv.out_channels) if conv.bias is not None else None]
    grad = torch.randn_like(eps)

    def passed(own, y, grad):
        wanted = [t for t in own if t is not None]
        return [y.detach(), *torch.autograd.grad(y, wanted, grad)]

    own = [None if t is None else t.requires_grad_() for t in leaves]
    y = operation.apply(own[0], *own[1:], plan(shape, index), layout.block(eps), tuple(eps.shape))
    ours = passed(own, y.plain(), grad)
    true, positive = doubled(leaves), doubled(leaves, absolute=True)
    exact = passed(true, dense(*true, index, conv, eps.double()), grad.double())
    sizes = passed(positive, dense(*positive, index, conv, eps.double().abs()), grad.double().abs())
    for *result, name in zip(ours, exact, sizes, ("output", "input", "mu", "sigma", "bias"), strict=False):
        close(*result, name)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_shape_equals_dense(data, level):
    kernel = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)), "kernel")
    stride = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)), "stride")
    padding = data.draw(st.tuples(st.integers(0, 3), st.integers(0, 3)), "padding")
    size = tuple(data.draw(st.integers(max(1, k - 2 * p), 9)) for k, p in zip(kernel, padding, strict=True))
    groups = data.draw(st.integers(1, 3), "groups")
    inputs, outputs = (groups * data.draw(st.integers(1, 7)) for _ in range(2))
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=data.draw(st.booleans()))
    count = data.draw(st.integers(1, conv.weight.numel()), "count")
    compare(conv, size, data.draw(st.integers(1, 257), "batch"), count, data.draw(st.integers(0, 2**20)))


@pytest.mark.parametrize("batch", [1, 31, 32, 33, 128, 257])
def test_linear_is_a_convolution_of_one_position(batch, level):
    compare(nn.Conv2d(50, 30, 1), (1, 1), batch, 75, batch)


def test_a_layer_of_many_bands(level):
    """Enough nonzeros that channels are cut into bands and partial sums are added up."""
    compare(nn.Conv2d(96, 80, 3, padding=1), (6, 6), 40, 30_000, 0)
    compare(nn.Conv2d(600, 500, 1), (1, 1), 40, 15_000, 0)


def test_fixed_values(level):
    torch.manual_seed(0)
    conv, index = nn.Conv2d(4, 6, 3, padding=1), torch.randperm(216)[:40].to(torch.int32)
    leaves = [torch.randn(9, 4, 5, 5, requires_grad=True), torch.randn(40, requires_grad=True)]
    grad = torch.randn(9, 6, 5, 5)

    def expected(x, w, grad):
        whole = x.new_zeros(216).index_copy(0, index.long(), w).view(conv.weight.shape)
        y = F.conv2d(x, whole, None, padding=1)
        return [y.detach(), *torch.autograd.grad(y, (x, w), grad)]

    ready = plan(geometry.of_conv(conv, (5, 5)), index)
    y = operation.apply(leaves[0], leaves[1], None, None, ready, 0, tuple(grad.shape)).plain()
    ours = [y, *torch.autograd.grad(y, leaves, grad)]
    exact = expected(*doubled(leaves), grad.double())
    sizes = expected(*doubled(leaves, absolute=True), grad.double().abs())
    for *result, name in zip(ours, exact, sizes, ("output", "input", "weight"), strict=True):
        close(*result, name)


def test_noise_from_inside_has_the_right_law(level):
    """Outputs that all have mean 1 and standard deviation 2: moments, and independence between neighbours."""
    count, batch = 8, 64 * 50
    index = torch.arange(count, dtype=torch.int32)
    ready = plan(geometry.of_linear(count, 1), index)
    x = layout.block(torch.ones(batch, 1))
    mu, sigma = torch.ones(count), torch.full((count,), 2.0)
    y = torch.cat([sparse.both(x, mu, sigma, None, ready, s, batch)[0] for s in range(40)])
    z = ((y - 1) / 2).double().flatten()
    n = z.numel()
    assert abs(float(z.mean())) < 5 / n**0.5
    assert abs(float(z.square().mean()) - 1) < 5 * (2 / n) ** 0.5
    assert abs(float(z.pow(3).mean())) < 5 * (15 / n) ** 0.5
    assert abs(float(z.pow(4).mean()) - 3) < 5 * (96 / n) ** 0.5
    for lag in (1, 2, 4, 8, 16, 32, 64, 256):
        assert abs(float((z[:-lag] * z[lag:]).mean())) < 5 / n**0.5, lag


def test_a_seed_repeats_and_threads_do_not_matter(level):
    torch.manual_seed(0)
    conv = nn.Conv2d(16, 16, 3, padding=1)
    index = torch.randperm(conv.weight.numel())[:200].to(torch.int32)
    ready = plan(geometry.of_conv(conv, (8, 8)), index)
    x, mu = torch.randn(70, 16, 8, 8, requires_grad=True), torch.randn(200, requires_grad=True)
    sigma = torch.rand(200, requires_grad=True)
    before = torch.get_num_threads()
    found = []
    for threads, seed in ((1, 7), (2, 7), (1, 8)):
        torch.set_num_threads(threads)
        y = operation.apply(x, mu, sigma, None, ready, seed, (70, 16, 8, 8)).plain()
        found.append([y, *torch.autograd.grad(y.square().sum(), (x, mu, sigma))])
    torch.set_num_threads(before)
    for a, b in zip(found[0], found[1], strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(found[0][0], found[2][0])


def test_zero_variance_has_a_finite_gradient(level):
    ready = plan(geometry.of_linear(1, 1), torch.zeros(1, dtype=torch.int32))
    x = torch.zeros(3, 1, requires_grad=True)
    mu, sigma = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    y = operation.apply(x, mu, sigma, None, ready, 0, (3, 1))
    grads = torch.autograd.grad(y.sum(), (x, mu, sigma))
    assert all(bool(g.isfinite().all()) for g in grads)


def test_the_library_says_what_it_runs_on():
    assert library.instructions() in library.LEVELS
