"""Stacking weights against a brute-force optimum, and predictions that use them."""

import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import DataError, PredictionError
from leanbayes.prediction.stacking import fit_weights, stacking_weights


def grid(count, steps):
    """All weights that are multiples of 1 / steps."""
    if count == 1:
        yield (steps,)
        return
    for first in range(steps + 1):
        for rest in grid(count - 1, steps - first) if count > 2 else [(steps - first,)]:
            yield (first, *rest)


def score(weights, log_density):
    return torch.logsumexp(weights.log().unsqueeze(1) + log_density, 0).mean()


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_no_weights_on_a_grid_are_better(count, seed):
    torch.manual_seed(seed)
    log_density = 2 * torch.randn(count, 50, dtype=torch.float64)
    found = stacking_weights(log_density, tolerance=1e-9)
    best = max(score(torch.tensor(w, dtype=torch.float64) / 100, log_density) for w in grid(count, 100))
    assert found.sum().item() == pytest.approx(1)
    assert score(found, log_density) >= best - 1e-8
    assert score(found, log_density) < best + 1e-3  # the grid is fine enough to come close


def test_two_networks_have_a_closed_form_and_a_useless_one_gets_nothing():
    """Right with probability a two times of three: w a + (1 - w)(1 - a) = 2/3."""
    p = torch.tensor([[0.9, 0.9, 0.1], [0.1, 0.1, 0.9]], dtype=torch.float64)
    assert stacking_weights(p.log(), 1e-12)[0].item() == pytest.approx((2 / 3 - 0.1) / 0.8, abs=1e-5)
    worse = torch.cat([p, 0.5 * p[:1]])
    assert stacking_weights(worse.log(), 1e-9)[2] < 1e-6
    assert stacking_weights(torch.zeros(1, 4)).tolist() == [1.0]
    assert torch.allclose(stacking_weights(torch.full((3, 5), -700.0)), torch.full((3,), 1 / 3).double())


@pytest.mark.parametrize(
    "bad",
    [
        torch.zeros(3),
        torch.zeros(0, 2),
        torch.full((2, 2), -math.inf),
        torch.ones(2, 2).to_sparse(),
        torch.zeros(2, 2, device="meta"),
        torch.zeros(2, 2, dtype=torch.complex64),
    ],
)
def test_bad_densities_are_refused(bad):
    with pytest.raises(DataError, match="log_density"):
        stacking_weights(bad)


def patched(outputs=3):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, outputs))
    lb.bayesianize_(model, lb.Patch(3, perturbation=1.0))
    return model


def test_predictions_are_the_weighted_averages():
    model, x = patched(), torch.randn(6, 4)
    w = torch.tensor([0.5, 0.2, 0.0, 0.3])
    ask = {"samples": 4, "seed": 3, "task": "classification", "keep_samples": True}
    plain = lb.predict(model, x, **ask)
    for options in ({}, {"strategy": "loop"}, {"chunk": 3}):
        said = lb.predict(model, x, weights=w, **ask, **options)
        mean = (w.reshape(4, 1, 1) * plain.samples).sum(0)
        assert torch.allclose(said.probs, mean, atol=1e-6)
        assert torch.allclose(said.variance, (w.reshape(4, 1, 1) * (plain.samples - mean) ** 2).sum(0), atol=1e-6)
        entropy = torch.special.entr(plain.samples).sum(2)
        assert torch.allclose(said.aleatoric, (w.unsqueeze(1) * entropy).sum(0), atol=1e-6)
        assert torch.allclose(said.samples, plain.samples, atol=1e-6)
    alike = lb.predict(model, x, weights=torch.full((4,), 0.25), **ask)
    assert torch.allclose(alike.probs, plain.probs, atol=1e-6)


def test_regression_densities_and_quantiles_know_the_weights():
    model, x, y = patched(1), torch.randn(6, 4), torch.randn(6, 1)
    w = torch.tensor([0.7, 0.0, 0.3])
    said = lb.predict(model, x, samples=3, task="regression", weights=w)
    normal = torch.distributions.Normal(said.samples, said.noise.sqrt())
    expected = torch.logsumexp(w.log().reshape(3, 1, 1) + normal.log_prob(y), 0).sum(1)
    assert torch.allclose(said.log_prob(y), expected, atol=1e-5)
    q = said.quantile(0.3)
    assert torch.allclose((w.reshape(3, 1, 1) * normal.cdf(q)).sum(0), torch.full((6, 1), 0.3), atol=1e-4)
    assert said.crps(y).shape == (6, 1)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_fitted_weights_score_no_worse_on_what_they_were_fitted_to(task):
    classes = task == "classification"
    model, x = patched(3 if classes else 1), torch.randn(80, 4)
    y = torch.randint(3, (80,)) if classes else torch.randn(80, 1)
    weights = fit_weights(model, (x, y), samples=6, seed=5, task=task)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=30)
    assert torch.allclose(weights, fit_weights(model, loader, samples=6, seed=5, task=task), atol=1e-6)
    scores = [lb.predict(model, x, samples=6, seed=5, task=task, weights=w).log_prob(y).mean() for w in (None, weights)]
    assert scores[1] > scores[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": torch.ones(3) / 3}, "each of 4 samples"),
        ({"weights": [0.25] * 4}, "tensor"),
        ({"weights": torch.tensor([0.5, 0.5, 0.5, -0.5])}, "0 or more"),
        ({"weights": torch.ones(4)}, "sum to 1"),
        ({"weights": torch.ones(4) / 4, "settle": 0.1}, "settle"),
    ],
)
def test_bad_weights_are_refused(options, message):
    with pytest.raises(PredictionError, match=message):
        lb.predict(patched(), torch.zeros(1, 4), samples=4, task="classification", **options)
    with pytest.raises(PredictionError, match="no weights"):
        fit_weights(patched(), (torch.zeros(1, 4), torch.zeros(1).long()), task="classification", settle=0.1)
