"""`lb.auto`: what it tries, what it chooses, what it refuses."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import ConfigError, DataError


def problem(seed=0, size=240):
    torch.manual_seed(seed)
    x = torch.randn(size, 4)
    y = (x[:, 0] + 0.5 * torch.randn(size) > 0).long()
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)), (x[:120], y[:120]), (x[120:], y[120:])


def test_candidates_stand_in_the_table_and_the_model_stays_as_it_was():
    model, train, val = problem()
    before = copy.deepcopy(model.state_dict())
    found = lb.auto(model, train, val, epochs=2, progress=False)
    names = {one.name for one in found.tried}
    assert names == {
        "plain",
        "plain, temperature",
        "MeanField",
        "Variance",
        "VariationalDropout",
        "Dropout",
        "Patch",
        "Ensemble",
    }
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    over = next(one for one in found.tried if one.name == "Ensemble")
    assert over.nll is None
    assert "over budget: 5x parameters" in over.note
    text = str(found)
    assert "chosen" in text
    assert "over budget" in text
    tried = [one.nll for one in found.tried if one.nll is not None]
    assert tried == sorted(tried)


def test_the_plain_network_wins_unless_another_is_better_beyond_noise():
    model, train, val = problem()
    hopeless = lb.Dropout(rate=0.9)
    found = lb.auto(model, train, val, methods=[hopeless], epochs=2, progress=False)
    assert found.name == "plain"
    assert found.method is None
    assert not any(isinstance(m, lb.layers.contract.BayesianLayer) for m in found.model.modules())


@pytest.mark.parametrize(("errors", "chosen"), [(1.5, "plain"), (3.0, "MeanField")])
def test_two_standard_errors_make_a_method_better(monkeypatch, errors, chosen):
    model, train, val = problem()
    noise = torch.randn(120, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = (noise - noise.mean()) / noise.std()
    gain = noise / 120**0.5 * 0.1 + errors * 0.1 / 120  # the mean is so many times the standard error
    level = torch.zeros(120, dtype=torch.float64)
    values = iter([level, level, gain])  # plain, at a temperature, MeanField
    monkeypatch.setattr(sys.modules["leanbayes.auto"], "_log_probs", lambda *_: next(values))
    found = lb.auto(model, train, val, methods=[lb.MeanField()], epochs=1, progress=False)
    best = next(one for one in found.tried if one.name == "MeanField")
    assert best.gain / best.gain_error == pytest.approx(errors)
    assert found.name == chosen


def test_a_network_that_is_too_sure_does_not_stay_plain():
    torch.manual_seed(0)
    x = torch.randn(300, 20)
    y = (x[:, 0] + torch.randn(300) > 0).long()
    train, val = (x[:60], y[:60]), (x[60:], y[60:])
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    lb.fit(model, train, epochs=100, lr=1e-2, progress=False)  # sure of all it has seen
    found = lb.auto(model, train, val, methods=[lb.MeanField(scale=0.7)], epochs=1, progress=False)
    method = next(one for one in found.tried if one.name == "MeanField")
    assert method.gain > 2 * method.gain_error > 0
    assert found.name == found.tried[0].name != "plain"


def test_a_temperature_is_enough_for_a_network_that_is_too_sure():
    model, (x, y), val = problem(1, 600)
    lb.fit(model, (x[:40], y[:40]), epochs=200, lr=1e-2, progress=False)
    found = lb.auto(model, (x[:40], y[:40]), val, methods=[], epochs=1, progress=False)
    plain = next(one for one in found.tried if one.name == "plain")
    assert found.name == "plain, temperature"
    assert found.method is None
    assert found.tried[0].prediction == 1
    cooled = copy.deepcopy(found.model)
    assert lb.calibrate_(cooled, val, samples=1, progress=False) > 1.5
    values = lb.predict(found.model, val[0], samples=1).log_prob(val[1]).double()
    assert found.tried[0].nll == pytest.approx(-float(values.mean()), abs=1e-6)
    assert found.tried[0].nll < plain.nll


def test_a_regression_has_no_temperature():
    _, (x, _), (v, _) = problem()
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    found = lb.auto(network, (x, x[:, :1]), (v, v[:, :1]), methods=[], task="regression", epochs=1, progress=False)
    assert [one.name for one in found.tried] == ["plain"]


def test_a_budget_of_prediction_lowers_the_samples():
    model, train, val = problem()
    found = lb.auto(model, train, val, budget={"prediction": 4}, methods=[lb.MeanField()], epochs=1, progress=False)
    assert next(one for one in found.tried if one.name == "MeanField").prediction <= 4


def test_a_method_that_cannot_convert_the_network_is_a_note():
    model, train, val = problem()
    found = lb.auto(nn.Sequential(nn.Linear(4, 2)), train, val, methods=[lb.Nested()], epochs=1, progress=False)
    assert found.name == "plain"
    assert "nothing to order" in next(o for o in found.tried if o.name == "Nested").note
    assert model is not found.model


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"val": None}, DataError, "val: expected held-out data"),
        ({"budget": "double"}, ConfigError, "budget: expected a number of times"),
        ({"budget": 0.5}, ConfigError, "budget"),
        ({"budget": {"speed": 2}}, ConfigError, "parameters, training, prediction"),
        ({"methods": [lb.MeanField]}, ConfigError, "expected a method such as"),
    ],
)
def test_bad_arguments_are_refused_before_training(options, error, message):
    model, train, val = problem()
    with pytest.raises(error, match=message):
        lb.auto(model, train, **{"val": val, "progress": False, **options})


def test_scikit_learn_estimators_choose_by_a_fifth_of_the_data():
    _, (x, y), _ = problem()
    found = lb.BayesClassifier(method="auto", epochs=3, samples=8, random_state=0).fit(x.numpy(), y.numpy())
    assert found.selection_.tried[0].nll is not None
    assert found.predict_proba(x.numpy()[:3]).shape == (3, 2)
