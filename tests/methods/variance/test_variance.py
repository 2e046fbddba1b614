import copy
import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.config import from_dict, to_dict
from leanbayes.errors import ConfigError, PredictionError
from leanbayes.kl import kl_kind
from leanbayes.methods.variance.config import PARAMETERISATIONS
from leanbayes.methods.variance.implementation import magnitudes
from leanbayes.posteriors import Gaussian, MultiplicativeGaussian, ZeroMeanGaussian

LAYERS = {
    "linear": (lambda: nn.Linear(30, 20), (1, 30)),
    "conv1d": (lambda: nn.Conv1d(3, 5, 3), (1, 3, 9)),
    "conv2d": (lambda: nn.Conv2d(3, 6, 3, groups=3, stride=2, padding=1), (1, 3, 7, 7)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, bias=False), (1, 2, 4, 4, 4)),
}


def layer(kind="linear", **options):
    torch.manual_seed(3)
    model = nn.Sequential(LAYERS[kind][0]())
    lb.bayesianize_(model, lb.Variance(**options))
    return model[0]


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("parameterisation", PARAMETERISATIONS)
def test_the_output_has_the_moments_of_equations_21_to_24(kind, parameterisation):
    one = layer(kind, parameterisation=parameterisation, log_alpha=0.5)
    q, shell = one.posteriors["weight"], LAYERS[kind][0]()
    x = torch.randn(LAYERS[kind][1])
    with torch.no_grad():
        mean = one.compute(x, q.mean, one._parameters.get("bias"))
        variance = one.compute(x * x, q.variance, None)
        draws = one(x.expand(4000, *x.shape[1:]))  # noise is drawn for every datum
    assert draws.shape[1:] == shell(x).shape[1:]
    assert ((draws.mean(0) - mean[0]).abs() < 5.5 * (variance[0] / 4000).sqrt() + 1e-5).all()
    assert (draws.var(0) / variance[0] - 1).abs().max() < 5.5 * math.sqrt(2 / 4000)


@pytest.mark.parametrize("kind", LAYERS)
def test_parameterisations_start_from_one_distribution(kind):
    plain = layer(kind, parameterisation="weight", log_alpha=-1.0).posteriors["weight"]
    for name in ("layer", "neuron", "additive"):
        q = layer(kind, parameterisation=name, log_alpha=-1.0).posteriors["weight"]
        assert torch.equal(q.mean, plain.mean)
        close = plain.mean.abs() > 0.011 * plain.mean.square().mean().sqrt()
        assert torch.allclose(q.std[close], plain.std[close], rtol=1e-4)
    zero = layer(kind, parameterisation="zero").posteriors["weight"]
    assert not zero.has_mean
    assert torch.allclose(zero.std[close], plain.mean.abs()[close], rtol=1e-4)


@pytest.mark.parametrize(
    ("parameterisation", "kind", "numbers"),
    [
        ("layer", MultiplicativeGaussian, 600 + 1),
        ("neuron", MultiplicativeGaussian, 600 + 20),
        ("weight", MultiplicativeGaussian, 1200),
        ("additive", Gaussian, 1200),
        ("zero", ZeroMeanGaussian, 600),
    ],
)
def test_what_each_stores(parameterisation, kind, numbers):
    one = layer(parameterisation=parameterisation)
    assert type(one.posteriors["weight"]) is kind
    assert sum(p.numel() for p in one.posteriors.parameters()) == numbers
    assert list(one.posteriors) == ["weight"]
    assert isinstance(one.bias, nn.Parameter)
    config = lb.Variance(parameterisation=parameterisation)
    assert from_dict(to_dict(config)) == config


def test_the_parameter_itself_becomes_mu():
    model = nn.Sequential(nn.Linear(3, 2))
    weight = model[0].weight
    lb.bayesianize_(model, lb.Variance())
    assert model[0].posteriors["weight"].loc is weight
    lb.bayesianize_(other := nn.Sequential(nn.Linear(3, 2)), lb.Variance(keep_weights=False))
    assert other[0].posteriors["weight"].loc.shape == (2, 3)


def test_zeros_among_the_weights_do_not_start_dead():
    w = torch.tensor([[0.0, 1.0, -3.0, 4.0]])
    assert magnitudes(w).tolist() == [[pytest.approx(0.01 * math.sqrt(6.5)), 1.0, 3.0, 4.0]]
    assert magnitudes(torch.zeros(3, 4, 2)).unique().item() == pytest.approx(1 / math.sqrt(8))
    assert magnitudes(w.to(torch.bfloat16)).dtype == torch.float32
    assert magnitudes(w.to("meta")).is_meta


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, "approximation"),
        ({"approximation": "exact"}, "up to a constant"),
        ({"approximation": "monte carlo"}, "monte carlo"),
        ({"prior": lb.StudentT(1e-16)}, "exact"),
        ({"prior": lb.StudentT(1e-16), "approximation": "exact"}, "exact"),
        ({"prior": lb.StudentT(1e-16), "approximation": "monte carlo"}, "monte carlo"),
    ],
)
@pytest.mark.parametrize("parameterisation", PARAMETERISATIONS)
def test_kls(options, kind, parameterisation):
    one = layer(parameterisation=parameterisation, **options)
    found = kl_kind(one.posteriors["weight"], one.priors["weight"], one.approximation)
    constant = parameterisation == "zero" and "prior" not in options  # appendix C
    assert found == ("up to a constant" if constant else kind)
    total = lb.kl_sum(nn.Sequential(one))
    assert total.isfinite()
    if constant:
        assert total == 0
    else:
        total.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in one.parameters())


def test_students_t_trains_as_the_log_uniform_prior_does():
    # appendix B: at df = 1e-16 even the steps of training are the same
    def trained(prior):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
        lb.bayesianize_(model, {"0": lb.Variance(prior=prior, approximation="exact")})
        x = torch.randn(64, 5)
        lb.fit(model, (x, (x[:, 0] > 0).long()), epochs=3, batch_size=16, lr=0.01, progress=False)
        return model[0].posteriors["weight"].log_alpha.item()

    assert trained(lb.StudentT(1e-16)) == pytest.approx(trained(lb.LogUniform()), abs=1e-3)


def test_alpha_grows_as_the_kl_asks():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))
    lb.bayesianize_(model, {"0": lb.Variance()})
    x = torch.randn(256, 5)
    data = x, (x[:, 0] > 0).long()
    history = lb.fit(model, data, epochs=20, batch_size=16, lr=0.03, kl_weight=1.0, progress=False)
    assert model[0].posteriors["weight"].log_alpha.item() > 1
    assert history.last["kl"] < 0.1 * history.rows[0]["kl"]


def test_a_layer_without_means_learns_and_has_no_means_to_ask():
    # the classes differ in |x| alone: all that a layer of mean zero can tell apart
    torch.manual_seed(0)
    x = torch.randn(600, 8)
    y = (x[:, 0].abs() > 0.67).long()
    model = nn.Sequential(nn.Linear(8, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))
    lb.bayesianize_(model, {"0": lb.Variance("zero")})
    before = model[0].posteriors["weight"].std.detach()
    lb.fit(model, (x, y), epochs=60, batch_size=50, lr=0.02, progress=False)
    std = model[0].posteriors["weight"].std.detach()
    share, start = (s[:, 0].square().sum() / s.square().sum() for s in (std, before))
    assert share > 2 * start  # the variances of the first input's weights have learned that it counts
    assert (lb.predict(model, x, samples=64).probs.argmax(1) == y).float().mean() > 0.8
    with pytest.raises(PredictionError, match="all that was learned is in the variances"):
        lb.predict(model, x, mean_only=True)
    with pytest.raises(lb.LeanBayesError, match="zero by construction"):
        lb.restore_(copy.deepcopy(model))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parameterisation": "channel"}, "parameterisation"),
        ({"log_alpha": 99.0}, "log_alpha"),
        ({"approximation": "kingma"}, "approximation"),
        ({"estimator": "global"}, "estimator"),
        ({"keep_weights": 1}, "keep_weights"),
        ({"prior": lb.Normal()}, "prior"),
        ({"prior": lb.StudentT(), "approximation": "molchanov"}, "log-uniform prior"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        lb.Variance(**options)
