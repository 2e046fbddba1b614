"""Criteria of sparse subspace VI against Monte Carlo, and against 50 digits of mpmath."""

import itertools
import math

import pytest
import torch

from leanbayes.errors import ConfigError
from leanbayes.methods.sparse import criteria
from leanbayes.methods.sparse.criteria import REMOVALS, removal_score

mpmath = pytest.importorskip("mpmath")  # torch brings it along, through sympy

RATIOS = [10.0**e for e in (-6, -4, -2, -1, -0.5, 0, 0.3, 0.6, 0.8, 1, 1.07, 1.09, 1.3, 2, 4, 6)]
SIGMAS = [10.0**e for e in (-8, -5, -3.01, -2.99, -2, -1, 0, 1, 2.5)]
VALUES = {
    "mean": criteria.magnitude_of_mean,
    "snr": criteria.signal_to_noise,
    "abs": criteria.expected_magnitude,
    "snr-abs": criteria.signal_to_noise_of_magnitude,
    "exp": criteria.log_expected_exponential,
    "snr-exp": criteria.signal_to_noise_of_exponential,
}


def exact(mu, sigma, lam=1.0):
    """Every criterion by its definition, with digits to spare for what cancels."""
    with mpmath.workdps(100):
        mu, sigma, lam = abs(mpmath.mpf(mu)), mpmath.mpf(sigma), mpmath.mpf(lam)
        r = mu / sigma
        first = mu * mpmath.erf(r / mpmath.sqrt(2)) + sigma * mpmath.sqrt(2 / mpmath.pi) * mpmath.exp(-r * r / 2)

        def log_moment(order):
            s = order * lam * sigma
            tilted = mpmath.ncdf(r + s) + mpmath.exp(-2 * r * s) * mpmath.ncdf(s - r)
            return r * s + s * s / 2 + mpmath.log(tilted)

        return {
            "mean": mu,
            "snr": r,
            "abs": first,
            "snr-abs": first / mpmath.sqrt(sigma**2 + mu**2 - first**2),
            "exp": log_moment(1),
            "snr-exp": 1 / mpmath.sqrt(mpmath.expm1(log_moment(2) - 2 * log_moment(1))),
        }


@pytest.fixture(scope="module")
def grid():
    pairs = list(itertools.product(RATIOS, SIGMAS))
    sigma = torch.tensor([s for _, s in pairs], dtype=torch.double)
    mu = torch.tensor([r * s for r, s in pairs], dtype=torch.double)
    mu[::2] *= -1
    return mu, sigma, [exact(m, s) for m, s in zip(mu.tolist(), sigma.tolist(), strict=True)]


@pytest.mark.parametrize("name", REMOVALS)
def test_values_are_exact_in_the_tails(name, grid):
    mu, sigma, truth = grid
    values = VALUES[name](mu, sigma)
    assert values.dtype == torch.double
    assert values.isfinite().all()
    for got, one in zip(values.tolist(), truth, strict=True):
        if abs(one[name]) > 1e-280:  # below, doubles end
            assert abs((got - one[name]) / one[name]) < 1e-6


@pytest.mark.parametrize("name", REMOVALS)
def test_scores_rank_as_the_exact_values_do(name, grid):
    mu, sigma, truth = grid
    scores = removal_score(name, mu, sigma)
    assert scores.isfinite().all()
    order = sorted(range(len(truth)), key=lambda i: truth[i][name])
    for low, high in itertools.pairwise(order):
        a, b = truth[low][name], truth[high][name]
        apart = b - a if name == "exp" else (b - a) / b  # its logarithm is what is at hand
        if apart > 1e-5:
            assert scores[low] < scores[high], (low, high)


@pytest.mark.parametrize("name", REMOVALS)
def test_values_are_what_a_million_samples_say(name):
    torch.manual_seed(0)
    n = 10**6
    for mu, sigma in ((0.0, 1.0), (0.3, 0.5), (-1.0, 0.7), (2.0, 0.2)):
        theta = mu + sigma * torch.randn(n, dtype=torch.double)
        f = {"mean": theta, "snr": theta, "abs": theta.abs(), "snr-abs": theta.abs()}.get(name, theta.abs().exp())
        m, s = f.mean(), f.std()
        value = VALUES[name](torch.tensor([mu]), torch.tensor([sigma])).item()
        error = 5 * s / math.sqrt(n)  # of the mean
        if name == "mean":
            assert abs(value - m.abs()) < error
        elif name == "abs":
            assert abs(value - m) < error
        elif name == "exp":
            assert abs(value - m.log()) < error / m
        else:  # delta method: both the mean and the spread are estimates
            z = (f - m) / s
            influence = z - 0.5 * (m / s) * (z.square() - 1)
            assert abs(value - (m / s).abs()) < 5 * influence.std() / math.sqrt(n)


def test_criterion_four_has_the_order_of_criterion_two_where_single_precision_sees_none():
    r = torch.rand(2000) * 0.05
    sigma = torch.ones(2000)
    assert torch.equal(removal_score("snr-abs", r, sigma), removal_score("snr", r, sigma))
    value = criteria.signal_to_noise_of_magnitude(r, sigma)
    assert (value[r.argsort()].diff() > -1e-15).all()
    assert len(value.float().unique()) < 100  # which is why the published removals differ


@pytest.mark.parametrize("name", REMOVALS)
def test_single_precision_and_degenerate_sigmas_come_out_finite(name):
    mu, sigma = torch.tensor([0.0, 1e-30, 3.0]), torch.tensor([1e-45, 0.0, 1e-38])
    assert removal_score(name, mu, sigma).isfinite().all()
    assert not removal_score(name, mu.requires_grad_(), sigma).requires_grad


def test_lambda_is_a_unit_of_length():
    mu, sigma = torch.tensor([0.4, 0.1]), torch.tensor([0.1, 0.3])
    for name in ("exp", "snr-exp"):
        assert torch.allclose(removal_score(name, mu, sigma, 5.0), removal_score(name, 5 * mu, 5 * sigma, 1.0))


def test_bad_names_and_lambdas_are_refused():
    one = torch.ones(1)
    with pytest.raises(ConfigError, match="snr-abs"):
        removal_score("magnitude", one, one)
    for lam in (0.0, -1.0, math.nan, math.inf, True):
        with pytest.raises(ConfigError, match="lam"):
            removal_score("exp", one, one, lam)
