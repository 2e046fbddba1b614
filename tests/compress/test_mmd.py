"""The estimate of the MMD against loops, its gradient against finite differences, and that of Dirichlet draws."""

from __future__ import annotations

import math
from statistics import median

import pytest
import torch

from leanbayes.compress.mmd import MMD
from leanbayes.compress.taught import dirichlet_mmd, dirichlet_nll
from leanbayes.errors import ConfigError


def brute_force(x, y, kernel):
    """Sums over pairs, one by one."""
    one = [kernel(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j]
    two = [kernel(a, b) for i, a in enumerate(y) for j, b in enumerate(y) if i != j]
    across = [kernel(a, b) for a in x for b in y]
    return sum(one) / len(one) + sum(two) / len(two) - 2 * sum(across) / len(across)


def rbf(widths):
    return lambda a, b: sum(math.exp(-((a - b) ** 2).sum() / (2 * h * h)) for h in widths) / len(widths)


def polynomial(degree):
    return lambda a, b: sum(float(a @ b) ** d for d in range(1, degree + 1))


@pytest.fixture
def points():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.rand(3, n, 4, generator=generator, dtype=torch.double) for n in (5, 7))
    return x / x.sum(-1, keepdim=True), y / y.sum(-1, keepdim=True)


@pytest.mark.parametrize("kernel", ["rbf", "polynomial", "both"])
@pytest.mark.parametrize("bandwidths", [None, (0.1, 0.6)])
def test_against_brute_force(points, kernel, bandwidths):
    x, y = points
    found = MMD(kernel, bandwidths, degree=2)(x, y)
    for datum in range(3):
        widths = bandwidths
        if widths is None:
            both = torch.cat([x[datum], y[datum]])
            distances = [float((both[i] - both[j]).norm()) for i in range(12) for j in range(i)]
            middle = median(sorted(distances)[: len(distances) - 1 + len(distances) % 2])  # torch takes the lower one
            widths = (middle / 2, middle, 2 * middle)
        kernels = {"rbf": [rbf(widths)], "polynomial": [polynomial(2)], "both": [rbf(widths), polynomial(2)]}[kernel]
        expected = sum(brute_force(x[datum], y[datum], k) for k in kernels)
        assert abs(float(found[datum]) - expected) < 1e-12


@pytest.mark.parametrize("kernel", ["rbf", "polynomial", "both"])
def test_gradient_against_finite_differences(points, kernel):
    x, y = points
    mmd = MMD(kernel, bandwidths=(0.2, 0.5))  # a median has no gradient, by design
    assert torch.autograd.gradcheck(lambda y: mmd(x, y), y.clone().requires_grad_())


def test_it_is_unbiased_and_grows_with_the_distance():
    """The mean over many pairs of sets from one distribution is 0, not above, as a biased estimate's would be."""
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(4000, 6, 2, generator=generator, dtype=torch.double) for _ in range(2))
    mmd = MMD("rbf", (1.0,))
    same = mmd(x, y)
    assert abs(same.mean()) < 4 * same.std() / math.sqrt(4000)
    assert mmd(x, y + 0.5).mean() < mmd(x, y + 1.0).mean()
    assert mmd(x, y + 0.5).mean() > 10 * abs(same.mean())


def test_gradient_through_dirichlet_draws_is_that_of_the_expectation():
    """With k(x, y) = x . y the expected MMD^2 is |E x - E y|^2, whose gradient is known."""
    alpha = torch.tensor([[2.0, 1.0, 0.5]], dtype=torch.double, requires_grad=True)
    teacher = torch.distributions.Dirichlet(torch.tensor([1.0, 3.0, 2.0], dtype=torch.double))
    torch.manual_seed(0)
    samples = teacher.sample((1, 200))
    exact = ((alpha / alpha.sum() - samples.mean(1)) ** 2).sum()
    (expected,) = torch.autograd.grad(exact, alpha)
    mmd, found = MMD("polynomial", degree=1), []
    for _ in range(40):
        (gradient,) = torch.autograd.grad(dirichlet_mmd(alpha, samples, mmd).sum(), alpha)
        found.append(gradient)
    found = torch.stack(found)
    assert ((found.mean(0) - expected).abs() < 5 * found.std(0) / math.sqrt(40)).all()


def test_draws_of_extreme_concentrations_have_finite_gradients():
    alpha = torch.tensor([[1e-8, 1e-3, 1.0], [1e6, 1e6, 1e-3], [1e-8, 1e-8, 1e-8]], requires_grad=True)
    torch.manual_seed(0)
    loss = dirichlet_mmd(alpha, torch.full((3, 8, 3), 1 / 3), MMD())
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(alpha.grad).all()


def test_density_is_that_of_torch():
    torch.manual_seed(0)
    alpha = torch.tensor([[2.0, 1.0, 0.5], [30.0, 4.0, 6.0]], dtype=torch.double)
    law = torch.distributions.Dirichlet(alpha)
    samples = law.sample((50,)).movedim(0, 1).clamp_min(1e-2)
    samples = samples / samples.sum(-1, keepdim=True)
    smoothed = (1 - 1e-4) * samples + 1e-4 / 3
    assert torch.allclose(dirichlet_nll(alpha, samples), -law.log_prob(smoothed.movedim(1, 0)).mean(0))


def test_bad_arguments():
    with pytest.raises(ConfigError, match="kernel: expected"):
        MMD("linear")
    with pytest.raises(ConfigError, match="bandwidths: expected None or positive numbers"):
        MMD("rbf", 0.5)
    with pytest.raises(ConfigError, match="bandwidths: expected a finite number above 0"):
        MMD("rbf", (0.5, -1))
    with pytest.raises(ConfigError, match="two samples or more on both sides"):
        MMD()(torch.zeros(1, 3), torch.zeros(2, 3))
