"""The KL of a model by the kernels is that of its layers one by one, in value and gradient, or torch computes it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import kl as module
from leanbayes.kernels import library
from leanbayes.kl import Term, _compiled, kl_sum
from leanbayes.posteriors import Gaussian, MultiplicativeGaussian, ZeroMeanGaussian
from leanbayes.posteriors.scale import std_from_rho
from leanbayes.priors import EmpiricalNormal, LogUniform, Normal, StudentT

pytestmark = pytest.mark.skipif(library.library() is None, reason="no compiled kernels")

METHODS = {
    "empirical": lb.MeanField(),
    "normal": lb.MeanField(prior=Normal(0.1, 0.3)),
    "log-uniform": lb.MeanField(prior=LogUniform()),
    "sparse": lb.SparseSubspace(density=0.3),
    "variational dropout": lb.VariationalDropout(),
    "kingma": lb.VariationalDropout(approximation="kingma"),
    "multiplicative": lb.VariationalDropout(parameterisation="multiplicative", approximation="cui"),
    "variance": lb.Variance(),
    "nested": lb.Nested(),
    "nested, mean field": lb.Nested(weights=lb.MeanField(prior=Normal())),
    "ensemble": lb.Ensemble(2, method=lb.MeanField(prior=Normal())),
}


def network(method):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 20, 3), nn.BatchNorm2d(20), nn.ReLU(), nn.Conv2d(20, 17, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(17 * 16, 7), nn.ReLU(), nn.Linear(7, 3),
    )  # fmt: skip
    lb.bayesianize_(model, method)
    with torch.no_grad():
        for p in model.parameters():  # away from where the KL is least
            p += 0.3 * torch.randn_like(p)
    return model


def terms(model):
    return [term for layer in model.modules() if hasattr(layer, "kl_terms") for _, term in layer.kl_terms()]


def both(model, monkeypatch):
    """(value, gradients) as it is, and by torch alone."""
    found = []
    for served in (True, False):
        with monkeypatch.context() as patch:
            if not served:
                patch.setattr(module, "kernels_serve", lambda: False)
            model.zero_grad()
            total = kl_sum(model)
            if total.requires_grad:
                total.backward()
            found.append((total.detach(), {name: p.grad for name, p in model.named_parameters()}))
    return found


def compare(model, monkeypatch):
    (ours, gradients), (value, expected) = both(model, monkeypatch)
    assert torch.allclose(ours, value, rtol=1e-5)
    for name, gradient in gradients.items():
        assert (gradient is None) == (expected[name] is None), name
        if gradient is not None:
            assert gradient.stride() == expected[name].stride()
            assert torch.allclose(gradient, expected[name], rtol=2e-5, atol=2e-5 * float(expected[name].abs().max()))


@pytest.mark.parametrize("name", METHODS)
def test_value_and_gradients_are_those_of_the_layers(name, monkeypatch):
    model = network(METHODS[name])
    served = [isinstance(term, Term) and _compiled(term) is not None for term in terms(model)]
    assert all(served) if name != "variance" else not any(served)  # whose KL is a constant
    compare(model, monkeypatch)
    compare(model.to(memory_format=torch.channels_last), monkeypatch)


def test_frozen_pruned_and_tied_parameters(monkeypatch):
    model = network(lb.MeanField(prior=Normal(0.1)))
    model[0].posteriors["weight"].loc.requires_grad_(False)
    model[3].posteriors["weight"].rho.requires_grad_(False)
    model[8].posteriors["weight"].requires_grad_(False)
    model.append(model[6])
    model.append(copy.copy(model[3]))  # another layer with the same posteriors
    compare(model, monkeypatch)
    lb.prune_(model, fraction=0.5, scope="layer")
    assert not any(_compiled(term) for term in terms(model) if term.q.keep is not None)
    compare(model, monkeypatch)


def test_other_laws_precisions_and_layouts_are_left_to_torch(monkeypatch):
    class Doubled(Gaussian):
        @property
        def std(self):
            return 2 * std_from_rho(self.rho)

    class Shifted(Normal):
        pass

    loc = torch.randn(6, 4)
    served = Gaussian(loc, loc)
    assert _compiled(Term(served, Normal(), None)) is not None
    for q, p in (
        (Doubled(loc, loc), Normal()),
        (served, Shifted()),
        (served, StudentT()),
        (served, lb.ScaleMixture()),
        (Gaussian(loc.double(), loc.double()), Normal()),
        (Gaussian(loc.bfloat16(), loc.bfloat16()), Normal()),
        (Gaussian(loc, loc.t().contiguous().t()), Normal()),
        (Gaussian(loc[:, ::2], loc[:, ::2]), Normal()),
        (Gaussian(loc.to("meta"), loc.to("meta")), Normal()),
        (ZeroMeanGaussian(loc), EmpiricalNormal()),
        (ZeroMeanGaussian(loc), LogUniform()),
        (MultiplicativeGaussian(loc, loc), Normal()),
        (MultiplicativeGaussian(loc, loc[:, :1]), LogUniform()),
    ):
        assert _compiled(Term(q, p, None)) is None
    assert _compiled(Term(served, LogUniform(), "exact")) is None
    model = network(lb.MeanField(prior=Normal()))
    model[0].posteriors["weight"] = Doubled(*model[0].posteriors["weight"].parameters())
    compare(model, monkeypatch)
    assert kl_sum(model.double()).dtype == torch.float64


def test_second_derivatives_are_those_of_the_formulas():
    model, wide = network(METHODS["log-uniform"]), network(METHODS["log-uniform"]).double()
    found = []
    for one in (model, wide):  # the kernels, and what they do not serve
        parameters = list(one[8].posteriors["weight"].parameters())
        slopes = torch.autograd.grad(kl_sum(one), parameters, create_graph=True)
        found.append(torch.autograd.grad(sum(s.square().sum() for s in slopes), parameters))
    for ours, expected in zip(*found, strict=True):
        assert torch.allclose(ours.double(), expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_transforms_and_compilers_see_operations():
    model = network(METHODS["normal"])
    values = {name: p.detach() for name, p in model.named_parameters()}
    slopes = torch.func.grad(
        lambda v: torch.func.functional_call(_Sum(model), {f"model.{k}": x for k, x in v.items()})
    )(values)
    kl_sum(model).backward()
    for name, p in model.named_parameters():
        assert p.grad is None or torch.allclose(slopes[name], p.grad, rtol=1e-4, atol=1e-5)
    rho = model[8].posteriors["weight"].rho
    with torch.no_grad():
        rho[0, 0] = torch.nan
    assert kl_sum(model).isnan()


class _Sum(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self):
        return kl_sum(self.model)


def test_layers_that_come_and_go_are_noticed():
    model = network(METHODS["normal"])
    whole = kl_sum(model).item()
    extra = network(METHODS["normal"])[8]
    model.append(extra)
    more = kl_sum(model).item()
    assert more > whole
    model[8] = nn.Identity()
    assert kl_sum(model).item() == pytest.approx(whole, rel=1e-5)
    model.append(nn.Sequential(nn.Linear(3, 2)))
    lb.bayesianize_(model[-1], METHODS["normal"])
    assert kl_sum(model).item() == pytest.approx(whole + kl_sum(model[-1]).item(), rel=1e-5)
    assert kl_sum(copy.deepcopy(model)).item() == kl_sum(model).item()
