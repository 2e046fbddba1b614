"""The Dirichlet likelihood against Monte Carlo, and what predict, evaluate, save and calibrate_ make of it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import likelihoods
from leanbayes.errors import ConfigError, DataError

OUTPUTS = torch.tensor([[2.0, 0.0, -1.0, 3.0], [0.5, 0.4, 0.3, -2.0], [6.0, -3.0, 0.0, 30.0], [0.0, 0.0, 0.0, 1.0]])


def entropy(p):
    return -torch.special.xlogy(p, p).sum(-1)


@pytest.mark.parametrize("form", ["column", "logits"])
def test_parts_in_closed_form_are_those_of_monte_carlo(form):
    likelihood = lb.Dirichlet(form, scale=0.7)
    outputs = OUTPUTS.double() if form == "column" else OUTPUTS[:, :3].double()
    draws = 100_000
    torch.manual_seed(0)
    drawn = torch.distributions.Dirichlet(likelihood.concentration(outputs)).sample((draws,))
    inside, variance = likelihood.spread(outputs)
    each = entropy(drawn)
    error = 5 * each.std(0) / math.sqrt(draws)  # five standard errors
    assert ((inside - each.mean(0)).abs() < error).all()
    assert torch.allclose(variance, drawn.var(0), rtol=0.05, atol=1e-5)
    mean_error = 5 * drawn.std(0) / math.sqrt(draws)
    assert ((likelihood.probs(outputs) - drawn.mean(0)).abs() < mean_error + 1e-12).all()


def test_prediction_of_one_pass_has_all_parts():
    pred = lb.predict(nn.Identity(), OUTPUTS, task=lb.Dirichlet())
    inside, variance = lb.Dirichlet().spread(OUTPUTS)
    assert pred.engine == "deterministic"
    assert pred.counts.tolist() == [1] * 4
    assert torch.allclose(pred.aleatoric, inside, atol=1e-6)
    assert torch.allclose(pred.mutual_information, pred.entropy - inside, atol=1e-6)
    assert torch.allclose(pred.variance, variance, atol=1e-7)
    assert (pred.mutual_information > 1e-4).all()
    # the second is as undecided as the fourth, but less sure of it; the third is sure
    assert pred.mutual_information[1] > pred.mutual_information[3] > pred.mutual_information[2]
    assert torch.allclose(pred.energy, -lb.Dirichlet().total(OUTPUTS).log())


def test_samples_of_a_bayesian_network_add_their_own_part():
    """Total variance and mutual information: those inside a sample, and those between samples."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4))
    lb.bayesianize_(model, lb.MeanField())
    with torch.no_grad():
        model[0].posterior("weight").rho.fill_(0.5)
    both = lb.predict(model, OUTPUTS / 10, 64, task=lb.Dirichlet(), keep_samples=True)
    kept = lb.predict(model, OUTPUTS / 10, 64, task=lb.Dirichlet(scale=1e9))  # no spread inside a sample
    assert torch.allclose(both.probs, kept.probs)
    assert (both.mutual_information > kept.mutual_information).all()
    assert torch.allclose(kept.variance, both.samples.var(0, correction=0), atol=1e-5)
    assert (both.variance > kept.variance).all()


def test_the_probability_of_a_label_is_that_of_the_mean():
    labels = torch.tensor([0, 1, 2, 0])
    found = lb.Dirichlet().log_prob(OUTPUTS, labels)
    assert torch.equal(found, lb.Classification().log_prob(OUTPUTS[:, :3], labels))


def test_logits_give_every_dirichlet():
    alpha = torch.tensor([[0.3, 2.0, 11.0]])
    assert torch.allclose(lb.Dirichlet("logits").concentration(alpha.log()), alpha)
    assert torch.allclose(lb.Dirichlet("logits", scale=3.0).concentration(alpha.log()), 3 * alpha)


def test_precision_stays_finite():
    for form in ("column", "logits"):
        extreme = torch.tensor([[1e4, 0.0, 1e4], [-1e4, -1e4, -1e4], [0.0, 0.0, -1e4]], requires_grad=True)
        likelihood = lb.Dirichlet(form)
        assert torch.isfinite(likelihood.concentration(extreme)).all()
        assert all(torch.isfinite(part).all() for part in likelihood.spread(extreme))
        likelihood.spread(extreme)[0].sum().backward()
        assert torch.isfinite(extreme.grad).all()


def test_it_is_written_and_read(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4))
    said = lb.Dirichlet("column", scale=0.25, temperature=2.0)
    lb.save(model, tmp_path / "m.safetensors", task=said)
    loaded = lb.load(tmp_path / "m.safetensors", into=nn.Sequential(nn.Linear(4, 4)))
    first, again = lb.predict(model, OUTPUTS, task=said), lb.predict(loaded, OUTPUTS)
    assert torch.equal(first.mutual_information, again.mutual_information)
    assert torch.equal(first.probs, lb.predict(loaded, OUTPUTS, task="classification").probs)
    assert likelihoods.from_dict(said.to_dict()).to_dict() == said.to_dict()


def test_temperature_is_of_the_mean_alone():
    model, outputs = nn.Identity(), OUTPUTS[:1].repeat(4, 1)  # 84 % sure, and right in three of four
    found = lb.calibrate_(model, (outputs, torch.tensor([0, 0, 0, 1])), task=lb.Dirichlet(), progress=False)
    assert 1 < found < 2
    assert abs(lb.predict(model, outputs).probs[0, 0] - lb.Dirichlet(temperature=found).probs(outputs)[0, 0]) < 1e-6
    alpha = [lb.Dirichlet(temperature=t).concentration(OUTPUTS).sum(-1) for t in (1.0, found)]
    assert torch.allclose(*alpha)


def test_evaluate_detects_by_mutual_information():
    inside, outside = OUTPUTS[[0, 2]].repeat(20, 1), OUTPUTS[[1, 3]].repeat(20, 1)
    outside = outside + 0.01 * torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(40, dtype=torch.long)
    found = lb.evaluate(
        nn.Identity(), (inside, labels), ood={"other": outside}, task=lb.Dirichlet(), replicates=0, progress=False
    )
    assert found["ood.other.mutual_information.auroc"] == 1.0


def test_bad_arguments():
    with pytest.raises(ConfigError, match=r"Dirichlet.precision: expected .*'logits'"):
        lb.Dirichlet("row")
    with pytest.raises(ConfigError, match=r"Dirichlet.scale: expected a finite number above 0, received 0"):
        lb.Dirichlet(scale=0)
    with pytest.raises(DataError, match=r"classes \+ 1\).*received \(3, 1\)"):
        lb.Dirichlet().log_prob(torch.zeros(3, 1), torch.zeros(3, dtype=torch.long))
    with pytest.raises(DataError, match="expected 0 to 2 for 3 output"):
        lb.Dirichlet().log_prob(OUTPUTS, torch.tensor([0, 1, 2, 3]))
