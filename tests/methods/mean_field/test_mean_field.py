import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import ConfigError


@pytest.mark.parametrize("std", [1e-4, 0.02, 3.0])
def test_sigma_starts_where_told(std):
    model = nn.Sequential(nn.Linear(4, 3))
    lb.bayesianize_(model, lb.MeanField(std=std))
    for q in model[0].posteriors.values():
        assert torch.allclose(q.std, torch.tensor(std), rtol=1e-5)


@pytest.mark.parametrize("prior", [lb.Normal(std=0.5), lb.LogUniform(), lb.StudentT(), lb.ScaleMixture()])
def test_the_prior_reaches_every_random_parameter(prior):
    model = nn.Sequential(nn.Conv1d(2, 3, 2))
    lb.bayesianize_(model, lb.MeanField(prior=prior))
    assert model[0].priors == {"weight": prior, "bias": prior}
    assert lb.kl_sum(model).isfinite()


def test_what_is_no_prior_is_refused():
    for prior in ("normal", 1.0, lb.Normal):
        with pytest.raises(ConfigError, match=r"MeanField.prior"):
            lb.MeanField(prior=prior)


def test_biases_may_stay_as_they_are():
    model = nn.Sequential(nn.Linear(4, 3))
    bias = model[0].bias
    plan = lb.bayesianize_(model, lb.MeanField(random_bias=False))
    assert model[0].bias is bias
    assert list(model[0].posteriors) == ["weight"]
    assert plan.parameters_after == 4 * 3 * 2 + 3


@pytest.mark.parametrize("estimator", ["local", "weight", "flipout"])
def test_the_estimator_is_the_layers_unless_the_context_says_otherwise(estimator):
    model = nn.Sequential(nn.Linear(4, 3))
    lb.bayesianize_(model, lb.MeanField(std=0.5, estimator=estimator))
    y = model(torch.ones(2, 4))
    assert torch.equal(y[0], y[1]) == (estimator == "weight")
    with lb.using(estimator="weight"):
        y = model(torch.ones(2, 4))
    assert torch.equal(y[0], y[1])
