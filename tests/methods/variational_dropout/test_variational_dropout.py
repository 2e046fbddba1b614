import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import ConfigError


def layer(**options):
    model = nn.Sequential(nn.Linear(50, 40))
    lb.bayesianize_(model, lb.VariationalDropout(**options))
    return model[0]


def test_an_additive_sigma_starts_at_root_alpha_times_the_rms_weight():
    q = layer(log_alpha=-3.0).posteriors["weight"]
    rms = q.mean.square().mean().sqrt()
    assert torch.allclose(q.std, rms * math.exp(-1.5), rtol=1e-4)


def test_zero_weights_get_a_small_sigma():
    model = nn.Sequential(nn.Linear(3, 3))
    model[0].weight.data.zero_()
    lb.bayesianize_(model, lb.VariationalDropout())
    assert (model[0].posteriors["weight"].std > 0).all()
    assert lb.kl_sum(model).isfinite()


@pytest.mark.parametrize(("granularity", "shape"), [("weight", (40, 50)), ("neuron", (40, 1)), ("layer", (1, 1))])
def test_multiplicative_alpha_has_the_granularity_asked_for(granularity, shape):
    q = layer(parameterisation="multiplicative", granularity=granularity, log_alpha=-2.0).posteriors["weight"]
    assert q.log_alpha.shape == shape
    assert (q.log_alpha == -2.0).all()
    assert q.log_alpha.requires_grad
    assert torch.allclose(q.std, q.mean.abs() * math.exp(-1.0))


def test_biases_stay_as_they_are():
    assert list(layer().posteriors) == ["weight"]
    assert isinstance(layer().bias, nn.Parameter)


def test_approximations_differ_and_are_finite():
    model = nn.Sequential(nn.Linear(5, 4))
    weight = model[0].weight.detach().clone()
    values = set()
    for name in ("molchanov", "kingma", "cui", "exact"):
        model = nn.Sequential(nn.Linear(5, 4))
        model[0].weight.data = weight.clone()
        lb.bayesianize_(model, lb.VariationalDropout(approximation=name, log_alpha=-2.0))
        value = lb.kl_sum(model)
        assert value.isfinite()
        values.add(round(value.item(), 3))
    assert len(values) == 4


def test_settings_that_do_not_fit_together_are_refused():
    with pytest.raises(ConfigError, match="use parameterisation='multiplicative'"):
        lb.VariationalDropout(granularity="layer")
    for options in ({"approximation": "x"}, {"parameterisation": 1}, {"granularity": None}, {"log_alpha": "x"}):
        with pytest.raises(ConfigError, match=f"VariationalDropout.{next(iter(options))}"):
            lb.VariationalDropout(**options)
