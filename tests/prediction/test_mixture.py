"""Mixtures of Gaussians against torch's own, scipy's integrals, scoringrules and properscoring."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, Normal

import leanbayes as lb
from leanbayes.errors import DataError, PredictionError
from leanbayes.likelihoods import Regression
from leanbayes.prediction import mixture


def random_mixture(samples, data, *, outputs=(), spread=1.0, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    means = spread * torch.randn(samples, data, *outputs, generator=generator, dtype=dtype)
    variances = torch.rand(samples, data, *outputs, generator=generator, dtype=dtype) * 2 + 0.01
    weights = torch.rand(samples, data, generator=generator, dtype=dtype)
    weights[0, ::2] = 0 if samples > 1 else 1  # some took fewer samples
    return means, variances, (weights / weights.sum(0)).log()


def torchs(parts, datum):
    means, variances, log_weights = (part[:, datum] for part in parts)
    return MixtureSameFamily(Categorical(logits=log_weights), Normal(means, variances.sqrt()))


@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("samples", [1, 2, 17])
def test_cdf_and_quantile_are_inverse_and_torchs_own(samples, spread):
    parts = random_mixture(samples, 9, spread=spread)
    for q in (1e-6, 0.025, 0.5, 0.9, 0.999):
        x = mixture.quantile(parts, q)
        assert torch.allclose(mixture.cdf(parts, x), torch.full((9,), q, dtype=torch.float64), atol=1e-10)
        for i in range(9):
            assert torchs(parts, i).cdf(x[i]).item() == pytest.approx(q, abs=1e-9)


def test_a_quantile_does_not_depend_on_its_neighbours():
    parts = random_mixture(8, 20, outputs=(2,), spread=5.0)
    alone = torch.cat([mixture.quantile(tuple(p[:, i : i + 1] for p in parts), 0.3) for i in range(20)])
    assert torch.allclose(mixture.quantile(parts, 0.3), alone, rtol=0, atol=1e-13)  # up to the order of a sum


def test_far_components_do_not_slow_a_quantile_down(monkeypatch):
    calls = []
    real = torch.special.ndtr
    monkeypatch.setattr(torch.special, "ndtr", lambda x: (calls.append(1), real(x))[1])
    mixture.quantile(random_mixture(64, 200, spread=100.0, dtype=torch.float32), 0.9)
    assert len(calls) <= 60  # what plain bisection takes


@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0])
def test_crps_is_the_integral_it_stands_for(spread):
    from scipy import integrate
    from scipy.special import ndtr

    parts = random_mixture(5, 4, spread=spread, seed=1)
    y = torch.tensor([0.0, -2.0, 3.0, 40.0], dtype=torch.float64)
    found = mixture.crps(parts, y)
    means, variances, weights = (p.numpy() for p in (parts[0], parts[1], parts[2].exp()))
    for i in range(4):

        def squared(x, i=i):
            return (float(weights[:, i] @ ndtr((x - means[:, i]) / variances[:, i] ** 0.5)) - (x >= float(y[i]))) ** 2

        ends = min(means[:, i].min(), float(y[i])) - 15, max(means[:, i].max(), float(y[i])) + 15
        breaks = sorted([*means[:, i].tolist(), float(y[i])])
        expected, _ = integrate.quad(squared, *ends, points=breaks, limit=500, epsabs=1e-10)
        assert found[i].item() == pytest.approx(expected, abs=1e-6)


def test_crps_of_one_gaussian_and_of_a_point():
    means, variances, _ = random_mixture(1, 50)
    y, zero = torch.linspace(-3, 3, 50, dtype=torch.float64), torch.zeros(1, 50, dtype=torch.float64)
    std, z = variances[0].sqrt(), (y - means[0]) / variances[0].sqrt()
    unit = Normal(0.0, 1.0)
    closed = std * (z * (2 * unit.cdf(z) - 1) + 2 * unit.log_prob(z).exp() - 1 / math.sqrt(math.pi))
    assert torch.allclose(mixture.crps((means, variances, zero), y), closed, atol=1e-12)  # Gneiting & Raftery, eq. 22
    assert torch.allclose(mixture.crps((means, zero, zero), y), (y - means[0]).abs(), atol=1e-12)
    assert torch.equal(mixture.cdf((means, zero, zero), means[0] + 1), torch.ones(50, dtype=torch.float64))
    assert torch.equal(mixture.quantile((means, zero, zero), 0.2), means[0])


def test_crps_of_a_published_example():
    """The example of the documentation of scoringrules.crps_mixnorm."""
    rows = torch.tensor([[0.1, -0.3, 1.0], [0.4, 2.1, 0.7], [0.1, 0.2, 0.7]], dtype=torch.float64)
    means, std, weights = rows.unsqueeze(2)
    found = mixture.crps((means, std.square(), weights.log()), torch.zeros(1, dtype=torch.float64))
    assert found.item() == pytest.approx(0.46806866729387275, abs=1e-9)


@pytest.mark.extra
def test_crps_equals_properscoring_and_scoringrules():
    proper, rules = pytest.importorskip("properscoring"), pytest.importorskip("scoringrules")
    means, variances, log_weights = parts = random_mixture(6, 30)
    y = torch.randn(30, dtype=torch.float64)
    expected = rules.crps_mixnorm(
        y.numpy(), means.T.numpy(), variances.sqrt().T.numpy(), log_weights.exp().T.numpy(), backend="numpy"
    )
    assert np.allclose(mixture.crps(parts, y).numpy(), expected, atol=1e-9)
    one = means[:1], variances[:1], torch.zeros(1, 30, dtype=torch.float64)
    expected = proper.crps_gaussian(y.numpy(), means[0].numpy(), variances[0].sqrt().numpy())
    assert np.allclose(mixture.crps(one, y).numpy(), expected, atol=1e-9)


def test_the_predictive_asks_its_mixture():
    model = torch.nn.Sequential(torch.nn.Linear(4, 2))
    lb.bayesianize_(model, lb.MeanField(std=0.5))
    x, y = torch.randn(6, 4), torch.randn(6, 2)
    pred = lb.predict(model, x, samples=40, task=Regression(std=0.3))
    assert pred.cdf(y).shape == pred.crps(y).shape == (6, 2)
    assert torch.allclose(pred.cdf(pred.quantile(0.3)), torch.tensor(0.3), atol=1e-5)
    draws = pred.samples + 0.3 * torch.randn(2000, *pred.samples.shape)  # Monte Carlo of its definition
    draws, others = draws.flatten(0, 1), draws.flip(0, 1).flatten(0, 1)[torch.randperm(80000)]
    estimate = (draws - y).abs().mean(0) - (draws - others).abs().mean(0) / 2
    error = ((draws - y).abs() - (draws - others).abs() / 2).std(0) / math.sqrt(len(draws) / 10)
    assert ((pred.crps(y) - estimate).abs() < 5 * error).all()
    for ask in (pred.cdf, pred.crps):
        with pytest.raises(DataError, match="expected targets of shape"):
            ask(torch.zeros(6))
    classes = lb.predict(model, x, samples=2, task="classification")
    for ask in (classes.cdf, classes.crps):
        with pytest.raises(PredictionError, match="regression"):
            ask(y)


def test_settled_data_have_the_mixture_of_what_they_took():
    model = torch.nn.Sequential(torch.nn.Linear(4, 1)).double()
    lb.bayesianize_(model, lb.MeanField(std=0.5))
    x = torch.cat([torch.randn(4, 4), 30 * torch.randn(4, 4)]).double()
    pred = lb.predict(model, x, samples=64, task="regression", settle=0.1)
    assert pred.counts.min() < pred.counts.max()
    y = torch.randn(8, 1, dtype=torch.float64)
    for i, count in enumerate(pred.counts.tolist()):
        parts = (
            pred.samples[:count, i : i + 1], pred.noise[:count, i : i + 1],
            torch.full((count, 1), -math.log(count), dtype=torch.float64),
        )  # fmt: skip
        assert torch.allclose(pred.cdf(y)[i], mixture.cdf(parts, y[i : i + 1])[0])
        assert torch.allclose(pred.crps(y)[i], mixture.crps(parts, y[i : i + 1])[0])
        assert torch.allclose(pred.quantile(0.1)[i], mixture.quantile(parts, 0.1)[0])
