"""When a network should not be asked at its means."""

import warnings

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.data import load
from leanbayes.prediction.phase_transition import log_noise, past_transition


def network(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    lb.bayesianize_(model, {"0": lb.Variance(**options)})
    return model


def ask(model, **options):
    return lb.predict(model, torch.randn(4, 6), task="classification", **options)


@pytest.mark.parametrize("parameterisation", ["layer", "neuron", "weight", "additive"])
def test_the_means_of_a_layer_past_its_transition_are_warned_about(parameterisation):
    model = network(parameterisation=parameterisation, log_alpha=6.0)
    assert past_transition(model) == ["0"]
    with pytest.warns(lb.LeanBayesWarning, match=r"weights of 0 .*samples=32.*lb\.recalibrate_\(model, loader"):
        ask(model, mean_only=True)
    ask(model, samples=2)  # samples are what it is for


def test_below_the_threshold_there_is_no_warning():
    model = network(log_alpha=4.9)
    assert past_transition(model) == []
    ask(model, mean_only=True)


def test_a_recalibrated_network_has_been_warned_about_before():
    model = network(log_alpha=8.0)
    x = torch.randn(64, 6)
    lb.recalibrate_(model, (x,), at="means")
    ask(model, mean_only=True)
    lb.fit(model, (x, torch.arange(64) % 3), epochs=1, progress=False)  # collects statistics under noise again
    with pytest.warns(lb.LeanBayesWarning):
        ask(model, mean_only=True)
    lb.recalibrate_(model, (x,), at="means")
    lb.recalibrate_(model, (x,))
    with pytest.warns(lb.LeanBayesWarning):
        ask(model, mean_only=True)


def test_single_weights_with_a_huge_alpha_are_only_prunable():
    # one weight in fifty carries the signal, the others are noise of a hundredth of its size
    model = nn.Sequential(nn.Linear(50, 40))
    with torch.no_grad():
        model[0].weight.fill_(1e-6)
        model[0].weight[:, 0] = 1.0
    lb.bayesianize_(model, lb.VariationalDropout(parameterisation="multiplicative", granularity="weight"))
    q = model[0].posteriors["weight"]
    with torch.no_grad():
        q.log_alpha.fill_(18.0)  # std 0.008
        q.log_alpha[:, 0] = -5.0
    assert (q.snr() < 0.01).float().mean() > 0.97
    assert past_transition(model) == []
    with torch.no_grad():
        q.log_alpha[:, 0] = 18.0
    assert past_transition(model) == ["0"]


def test_ordinary_variational_dropout_is_left_in_peace():
    data = load("digits")
    x, y = data.train.tensors
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    lb.bayesianize_(model, lb.VariationalDropout())
    steps = 5 * 21
    lb.fit(model, (x, y), epochs=20, batch_size=64, lr=1e-2, kl_weight=lb.warmup(0, 1, steps=steps), progress=False)
    log_alpha = -2 * model[1].posteriors["weight"].snr().log()
    assert (log_alpha > 3).float().mean() > 0.5  # much of it can be pruned
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mean = lb.predict(model, data.test.tensors[0], mean_only=True)
    assert (mean.probs.argmax(1) == data.test.tensors[1]).float().mean() > 0.9


def test_log_noise_is_log_alpha_and_knows_the_extremes():
    assert log_noise(network(log_alpha=3.0)[0]) == pytest.approx(3.0, abs=1e-5)
    assert log_noise(network(parameterisation="zero")[0]) == float("inf")
    model = network(log_alpha=30.0)
    model[0].posteriors["weight"].keep = torch.zeros(8, 6, dtype=torch.bool)
    assert log_noise(model[0]) == float("-inf")  # all pruned: neither signal nor noise
    assert past_transition(nn.Linear(2, 2)) == []
