"""Methods with nothing but their defaults, on a small network that was trained in a plain loop: the recipe in short."""

from __future__ import annotations

import copy
import math
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from leanbayes.data import load
from leanbayes.errors import ConversionError, LeanBayesWarning
from leanbayes.recipes.defaults_tasks import Residual, tasks
from leanbayes.training.arguments import KL_SHARE, default_kl_weight

METHODS = {
    method.__name__: method
    for method in (
        lb.MeanField,
        lb.VariationalDropout,
        lb.Dropout,
        lb.Variance,
        lb.Ensemble,
        lb.SparseSubspace,
        lb.Patch,
        lb.Nested,
    )
}


def digits():
    parts = load("digits", seed=0).parts
    return [parts[name].tensors for name in ("train", "test")]


@cache
def trained():
    """A CNN with BatchNorm and a residual sum on digits."""
    torch.manual_seed(0)
    (x, y), _ = digits()
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1, bias=False),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        Residual(12, nn.BatchNorm2d),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(48, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(12):
        for rows in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model.eval()


def scores(model, task=None):
    _, (x, y) = digits()
    said = lb.predict(model, x, samples=16, task=task)
    return float((said.probs.argmax(1) == y).double().mean()), -float(said.log_prob(y).mean())


@cache
def without_bayes():
    model = copy.deepcopy(trained())
    lb.fit(model, digits()[0], epochs=3, progress=False)
    return scores(model)


@pytest.mark.parametrize("name", ["MeanField", "Patch", "Variance", "Dropout", "Nested"])
def test_conversion_alone_costs_at_most_two_points(name):
    model = copy.deepcopy(trained())
    lb.bayesianize_(model, METHODS[name]())
    assert scores(model, "classification")[0] >= scores(trained(), "classification")[0] - 0.02


@pytest.mark.parametrize("name", METHODS)
def test_a_short_fit_with_defaults_is_no_worse_than_without_bayes(name):
    torch.manual_seed(1)
    model = copy.deepcopy(trained())
    lb.bayesianize_(model, METHODS[name]())
    lb.fit(model, digits()[0], epochs=3, progress=False)
    accuracy, nll = scores(model)
    # 360 data: one point is 3.6 of them, and two networks as good differ by about as many
    plain_accuracy, plain_nll = without_bayes()
    assert accuracy >= plain_accuracy - 0.03
    assert nll <= plain_nll + 0.06


@pytest.mark.parametrize("task", tasks("cpu"), ids=lambda task: task.name)
def test_every_method_takes_every_network_of_the_recipe_or_is_known_to_refuse_it(task):
    for name, method in METHODS.items():
        if name in task.refused:
            with pytest.raises(ConversionError, match="nothing to order"):
                lb.plan(task.network(), method())
        else:
            assert lb.plan(task.network(), method()).converted


def test_the_kl_weight_follows_the_data_and_the_weights():
    model = nn.Sequential(nn.Linear(10, 10, bias=False))
    assert default_kl_weight(model, 50) == 1.0  # nothing random
    lb.bayesianize_(model, lb.MeanField())
    assert default_kl_weight(model, 50) == pytest.approx(KL_SHARE * 50 / 100)
    assert default_kl_weight(model, 10_000) == 1.0
    x, y = torch.randn(50, 10), torch.randint(10, (50,))
    assert lb.fit(model, (x, y), epochs=1, progress=False).last["kl_weight"] == pytest.approx(KL_SHARE / 2)
    assert lb.fit(model, (x, y), epochs=1, kl_weight=1.0, progress=False).last["kl_weight"] == 1.0


def test_a_kl_that_dwarfs_the_data_is_said_at_the_first_step():
    model = nn.Sequential(nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 2))
    lb.bayesianize_(model, lb.MeanField(prior=lb.Normal(), std=0.01))
    x, y = torch.randn(20, 100), torch.randint(2, (20,))
    with pytest.warns(LeanBayesWarning, match=r"the KL counts .* nats per datum .* lower kl_weight"):
        lb.fit(model, (x, y), epochs=1, kl_weight=1.0, progress=False)
    lb.fit(model, (x, y), epochs=1, progress=False)  # not by default


def test_the_empirical_prior_leaves_means_alone_and_holds_the_spread():
    model = nn.Sequential(nn.Linear(20, 30))
    lb.bayesianize_(model, lb.MeanField())
    q = model[0].posteriors["weight"]
    expected = 0.05 * q.loc.detach().square().mean().sqrt()
    assert torch.allclose(q.std, expected.expand_as(q.std), rtol=1e-4)
    assert lb.kl_sum(model).item() == pytest.approx(0.0, abs=1e-2)  # of 630 weights
    with torch.no_grad():
        q.rho.add_(0.5)
    lb.kl_sum(model).backward()
    assert q.loc.grad is None or not q.loc.grad.any()
    assert (q.rho.grad > 0).all()


def test_statistics_are_collected_anew_under_whole_draws():
    x, y = digits()[0]
    runs = {}
    for recalibrate in (True, False):
        torch.manual_seed(0)
        model = copy.deepcopy(trained())
        lb.bayesianize_(model, lb.MeanField())
        lb.fit(model, (x[:300], y[:300]), epochs=1, recalibrate=recalibrate, progress=False)
        runs[recalibrate] = model
    again = lb.recalibrate_(copy.deepcopy(runs[False]), (x[:300],), data=10_000)
    assert not torch.equal(runs[True][1].running_mean, runs[False][1].running_mean)
    assert torch.equal(runs[True][1].running_mean, again[1].running_mean)


def test_frozen_statistics_stay():
    x, y = digits()[0]
    model = copy.deepcopy(trained()).train()
    lb.bayesianize_(model, lb.MeanField())
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.eval()
    before = [norm.running_mean.clone() for norm in norms]
    lb.fit(model, (x[:200], y[:200]), epochs=1, progress=False)
    assert all(torch.equal(norm.running_mean, old) for norm, old in zip(norms, before, strict=True))


@pytest.mark.parametrize("method", [None, lb.MeanField(), lb.Patch()])
def test_the_noise_of_a_regression_is_learned_whatever_its_unit(method):
    torch.manual_seed(0)
    x = torch.randn(400, 3)
    y = 500 * x.sum(1, keepdim=True) + 100 * torch.randn(400, 1)
    model = nn.Sequential(nn.Linear(3, 1))
    with torch.no_grad():
        model[0].weight.fill_(500.0)
        model[0].bias.zero_()
    if method is not None:
        lb.bayesianize_(model, method)
    lb.fit(model, (x[:200], y[:200]), task="regression", epochs=2, progress=False)
    low, high = lb.predict(model, x[200:], samples=16).interval(0.95)
    covered = float(((y[200:] >= low) & (y[200:] <= high)).double().mean())
    assert 0.95 - 3 * math.sqrt(0.95 * 0.05 / 200) <= covered <= 0.995
    assert float((high - low).mean()) < 8 * 100


def test_a_noise_level_that_is_given_stays():
    assert lb.Regression().noise == "learned"
    assert (lb.Regression(std=0.5).noise, lb.Regression(std=0.5).std) == ("fixed", 0.5)
    x = torch.randn(64, 1)
    model = nn.Linear(1, 1)
    lb.fit(model, (x, x), task=lb.Regression(std=0.5), epochs=1, progress=False)
    assert lb.predict(model, x[:1]).aleatoric.item() == pytest.approx(0.25)
