"""Noise on outputs: the compiled pass against torch's, its law, its gradient, and where it does not run."""

import math

import pytest
import torch

from leanbayes.kernels import library
from leanbayes.layers import perturb as room
from leanbayes.layers.perturb import perturb

compiled = pytest.mark.skipif(library.library() is None, reason="no compiled kernels")
LAYOUTS = [torch.contiguous_format, torch.channels_last]


def pair(shape=(3, 5, 7, 9), layout=torch.contiguous_format):
    mean, variance = torch.randn(shape), torch.rand(shape) + 0.1
    if len(shape) == 4:
        mean, variance = (t.contiguous(memory_format=layout) for t in (mean, variance))
    return mean.requires_grad_(), variance.requires_grad_()


@pytest.fixture(params=["compiled", "torch"])
def path(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(room, "_compiled", lambda mean, variance: False)
    elif library.library() is None:
        pytest.skip("no compiled kernels")
    return request.param


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_noise_is_standard_normal_and_uncorrelated(path, layout):
    torch.manual_seed(0)
    shape = (64, 32, 16, 16)
    mean, variance = pair(shape, layout)
    noise = ((perturb(mean, variance) - mean) / variance.sqrt()).detach().double()
    count = noise.numel()
    for power, expected, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float((noise**power).mean()) - expected) < 4.5 * math.sqrt(spread / count), power
    for dim in range(4):  # neighbours in every direction
        n = shape[dim]
        together = float((noise.narrow(dim, 0, n - 1) * noise.narrow(dim, 1, n - 1)).mean())
        assert abs(together) < 4.5 / math.sqrt(count * (n - 1) / n)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(1,), (31,), (33, 3), (2, 3, 4, 5), (5, 40_001)])
def test_the_gradient_is_that_of_the_noise_that_was_drawn(path, shape, layout):
    torch.manual_seed(1)
    mean, variance = pair(shape, layout)
    out = perturb(mean, variance)
    noise = ((out - mean) / variance.sqrt()).detach()
    upstream = torch.randn_like(out)
    out.backward(upstream)
    assert out.stride() == mean.stride()
    torch.testing.assert_close(mean.grad, upstream)
    expected = upstream * noise / (2 * variance.detach().sqrt())
    torch.testing.assert_close(variance.grad, expected, rtol=2e-5, atol=2e-5)


def test_without_variance_there_is_neither_noise_nor_gradient(path):
    mean = torch.randn(50)
    variance = torch.zeros(50).index_fill(0, torch.arange(0, 50, 2), -1e-9).requires_grad_()
    out = perturb(mean, variance)
    out.sum().backward()
    assert torch.equal(out, mean)
    assert (variance.grad == 0).all()


def test_a_seed_repeats_it_whatever_the_threads(path):
    mean, variance = pair((70_000,))
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(7)
        found.append(perturb(mean, variance))
    torch.set_num_threads(before)
    assert torch.equal(*found)
    assert not torch.equal(found[0], perturb(mean, variance))


@compiled
@pytest.mark.parametrize("level", range(3))
def test_every_instruction_set_draws_normals(level):
    native = library.library()
    best = native.leanbayes_level(-1)
    if level > best:
        pytest.skip(f"this machine has no {library.LEVELS[level]}")
    try:
        native.leanbayes_level(level)
        torch.manual_seed(2)
        noise = perturb(torch.zeros(100_000), torch.full((100_000,), 4.0)) / 2
    finally:
        native.leanbayes_level(best)
    assert abs(float(noise.mean())) < 4.5 / math.sqrt(1e5)
    assert abs(float(noise.square().mean()) - 1) < 4.5 * math.sqrt(2 / 1e5)


@compiled
def test_it_stays_away_from_what_it_cannot_do():
    mean, variance = torch.zeros(4, 6), torch.ones(4, 6)
    assert room._compiled(mean, variance)
    assert not room._compiled(mean.double(), variance.double())
    assert not room._compiled(mean.bfloat16(), variance)
    assert not room._compiled(mean.t().contiguous().t(), variance)  # other strides
    assert not room._compiled(mean[:, ::2], variance[:, ::2])
    several = torch.func.vmap(lambda m: perturb(m, variance[0]), randomness="different")(mean)
    assert several.shape == mean.shape
