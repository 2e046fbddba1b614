"""The zero-mean swap: same spread, no mean, nothing else touched."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import ConversionError, PredictionError
from leanbayes.posteriors import ZeroMeanGaussian


def network(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    lb.bayesianize_(model, {"0": lb.Variance(**options), "4": lb.MeanField()})
    return model.eval()


@pytest.mark.parametrize("parameterisation", ["layer", "neuron", "weight", "additive"])
def test_the_spread_stays_and_the_mean_goes(parameterisation):
    model = network(parameterisation=parameterisation, log_alpha=1.0)
    before, other = model[0].posteriors["weight"].std.detach().clone(), model[4].posteriors["weight"]
    assert lb.zero_means_(model) == ["0"]
    q = model[0].posteriors["weight"]
    assert isinstance(q, ZeroMeanGaussian)
    assert torch.allclose(q.std, before, rtol=1e-5)
    assert model[4].posteriors["weight"] is other
    assert lb.zero_means_(model) == []  # nothing left to do
    with pytest.raises(PredictionError, match="meaningless"):
        lb.predict(model, torch.randn(2, 1, 4, 4), mean_only=True, task="classification")


def test_at_a_huge_alpha_it_changes_next_to_nothing():
    model = network(log_alpha=20.0, parameterisation="additive")  # whose draw is mean + std * noise, without a sign
    swapped = copy.deepcopy(model)
    lb.zero_means_(swapped)
    x = torch.randn(5, 1, 4, 4)
    ask = {"samples": 8, "task": "classification"}
    assert torch.allclose(lb.predict(model, x, **ask).probs, lb.predict(swapped, x, **ask).probs, atol=1e-3)


def test_the_result_is_saved_and_loaded(tmp_path):
    model = network(log_alpha=3.0)
    lb.zero_means_(model)
    path = lb.save(model, tmp_path / "model.safetensors")
    plain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    loaded, x = lb.load(path, into=plain), torch.randn(2, 1, 4, 4)
    ask = {"samples": 4, "task": "classification"}
    assert torch.equal(lb.predict(loaded, x, **ask).probs, lb.predict(model, x, **ask).probs)


def test_zeros_pruned_weights_and_ties():
    shared = nn.Linear(4, 4)
    with torch.no_grad():
        shared.weight[0, 0] = 0
    model = nn.Sequential(shared, nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = shared.weight
    lb.bayesianize_(model, lb.Variance(log_alpha=2.0))
    keep = torch.ones(4, 4, dtype=torch.bool)
    keep[1] = False
    model[0].posteriors["weight"].keep = keep
    assert lb.zero_means_(model) == ["0", "2"]
    q = model[0].posteriors["weight"]
    assert model[2].posteriors["weight"] is q
    assert (q.std[1] == 0).all()
    assert q.std[0, 0] < 1e-6
    assert q.std.isfinite().all()


def test_a_model_without_variance_layers_is_refused():
    model = nn.Sequential(nn.Linear(2, 2))
    lb.bayesianize_(model, lb.MeanField())
    with pytest.raises(ConversionError, match=r"lb\.Variance\(\)"):
        lb.zero_means_(model)
