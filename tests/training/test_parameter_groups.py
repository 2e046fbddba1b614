"""Scales train: what is a scale, whether it moves, and what is said where it does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.convert import record
from leanbayes.data import load
from leanbayes.errors import ConfigError
from leanbayes.models import build
from leanbayes.posteriors.base import Posterior
from leanbayes.registry import methods
from leanbayes.training.parameter_groups import Watch, scale_parameters

# a method by where its sigma starts, relative to some place that is not where it ends
FACTORS: dict[str, Callable[[float], Any]] = {
    "MeanField": lambda f: lb.MeanField(std=0.024 * f),
    "SparseSubspace": lambda f: lb.SparseSubspace(density=0.2, std=0.02 * f),
    "VariationalDropout": lambda f: lb.VariationalDropout(log_alpha=-5 + 2 * math.log(f)),
    "VariationalDropout, multiplicative": lambda f: lb.VariationalDropout(
        log_alpha=-5 + 2 * math.log(f), parameterisation="multiplicative"
    ),
    "Variance": lambda f: lb.Variance(log_alpha=-5 + 2 * math.log(f)),
    "StructuredPruning": lambda f: lb.StructuredPruning(log_std=-5 + math.log(f)),
    "Nested": lambda f: lb.Nested(weights=lb.VariationalDropout(log_alpha=-5 + 2 * math.log(f))),
}
WITHOUT = {"Dropout", "DropConnect", "Ensemble", "NestedDropout", "Patch", "Point", "Rigl"}  # no scale of their own
DEFAULT: dict[str, Any] = {}
SGD: dict[str, Any] = {"optimizer": lb.SGD, "lr": 0.05}
# the two ways in turn; at the default scale_lr all of them take batches of 32, and four times as long
RUNS = [(name, (DEFAULT, SGD)[i % 2]) for i, name in enumerate(FACTORS)]


def network(method: Any) -> nn.Module:
    torch.manual_seed(0)
    model = build("mlp", in_features=64, hidden=(32,), out_features=10)
    lb.bayesianize_(model, method)
    return model


def median_log_scale(model: nn.Module) -> float:
    """The median of log sigma (log sqrt(alpha) where that is learned) over the learned scales of a model."""
    found = (module.log_scale() for module in model.modules() if isinstance(module, Posterior))
    return float(torch.cat([scale.flatten() for scale in found if scale is not None]).median())


def test_every_method_is_here() -> None:
    assert {name.partition(",")[0] for name in FACTORS} | WITHOUT == set(methods())


@pytest.mark.parametrize(("name", "optimizer"), RUNS)
def test_scales_train_and_forget_where_they_began(name: str, optimizer: dict[str, Any]) -> None:
    """Ten epochs on the digits: each start moves by more than 0.3, and starts ten times apart end half as far apart."""
    data = load("digits").train
    begun, ended = [], []
    for factor in (10**-0.5, 10**0.5):
        model = network(FACTORS[name](factor))
        begun.append(median_log_scale(model))
        lb.fit(model, data, epochs=10, scale_lr=0.05, progress=False, **optimizer)
        ended.append(median_log_scale(model))
    assert begun[1] - begun[0] == pytest.approx(math.log(10), abs=0.01)
    assert all(abs(after - before) > 0.3 for before, after in zip(begun, ended, strict=True)), (begun, ended)
    assert abs(ended[1] - ended[0]) < math.log(10) / 2, (begun, ended)


def test_groups_hold_every_parameter_once() -> None:
    model = network(lb.MeanField())
    model[-1].posteriors["bias"].rho.requires_grad_(False)  # type: ignore[index, union-attr]
    means, scales = lb.parameter_groups(model, lr=0.1, weight_decay=0.01)
    together = [id(p) for group in (means, scales) for p in group["params"]]
    assert len(set(together)) == len(together) == sum(p.requires_grad for p in model.parameters())
    assert means["weight_decay"] == 0.01
    assert scales["weight_decay"] == 0.0
    assert scales["lr"] == 0.02  # whatever lr is
    assert {id(p) for p in scales["params"]} < {id(p) for p in scale_parameters(model)}
    (plain,) = lb.parameter_groups(nn.Linear(2, 2))
    assert len(plain["params"]) == 2


def test_log_alpha_moves_by_twice_as_much() -> None:
    groups = lb.parameter_groups(network(lb.Variance()), scale_lr=0.01)
    assert [group["lr"] for group in groups] == [1e-3, 0.02]


@pytest.mark.parametrize("bad", [{"lr": -1}, {"scale_lr": math.nan}, {"weight_decay": "1"}])
def test_refuses_bad_rates(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        lb.parameter_groups(nn.Linear(2, 2), **bad)


def test_fit_says_where_scales_stayed() -> None:
    data, options = load("digits").train, {"epochs": 10, "batch_size": 128, "progress": False}
    model = network(lb.MeanField())
    with pytest.warns(lb.LeanBayesWarning, match=r"have not been trained.*lb\.SGD\(lb\.parameter_groups"):
        lb.fit(model, data, optimizer=torch.optim.SGD(model.parameters(), lr=0.02), **options)
    frozen = network(lb.MeanField())
    for p in scale_parameters(frozen):
        p.requires_grad_(False)  # on purpose: nothing to say
    lb.fit(frozen, data, optimizer=torch.optim.SGD, lr=0.05, **options)


def test_weights_that_were_thinned_out_are_compared_by_their_median() -> None:
    model = network(lb.SparseSubspace(density=0.2))
    watch = Watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert watch.moved() == 0
    q: Any = model[-1].posteriors["weight"]  # type: ignore[index, union-attr]
    q.take_(torch.arange(len(q.index) // 2))
    for posterior in (m.posteriors["weight"] for m in model.modules() if hasattr(m, "posteriors")):
        posterior.rho.data += 0.5
    assert watch.moved() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_a_learned_noise_level_stays_with_the_errors_at_a_large_learning_rate(seed):
    # errors of a jump, measured against a small sigma, once sent it far above the spread of the targets, 1.4
    torch.manual_seed(seed)
    x = torch.randn(400, 12)
    y = x[:, :2].sum(1, keepdim=True)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))
    lb.fit(model, (x, y), task="regression", epochs=60, lr=0.05, batch_size=100, progress=False)
    assert record.get(model).likelihood["std"] < 0.5
