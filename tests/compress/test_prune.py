"""Pruning: the right weights, exactly as many as asked for, and gone for good."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

import leanbayes as lb
from leanbayes.compress.prune import log_alpha
from leanbayes.errors import ConfigError, ConversionError, LeanBayesWarning
from leanbayes.layers.bayes import BayesLayer
from leanbayes.posteriors import Gaussian, MultiplicativeGaussian, Posterior, ZeroMeanGaussian

METHODS = {
    "mean field": lb.MeanField(),
    "additive": lb.VariationalDropout(),
    "multiplicative": lb.VariationalDropout(parameterisation="multiplicative"),
    "per neuron": lb.VariationalDropout(parameterisation="multiplicative", granularity="neuron"),
}


def network(method: object = METHODS["mean field"], dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4)).to(dtype)
    lb.bayesianize_(model, method)
    with torch.no_grad():
        for q in posteriors(model).values():
            for name in ("rho", "log_alpha"):
                if hasattr(q, name):
                    getattr(q, name).add_(torch.randn_like(getattr(q, name)))
    return model


def posteriors(model: nn.Module) -> dict[str, Posterior]:
    return {n: m for n, m in model.named_modules() if isinstance(m, Posterior) and n.endswith("weight")}


def scores(model: nn.Module) -> torch.Tensor:
    return torch.cat([q.snr().detach().flatten() for q in posteriors(model).values()])


def kept(model: nn.Module) -> torch.Tensor:
    masks = [torch.ones(q.shape).bool() if q.keep is None else q.keep for q in posteriors(model).values()]
    return torch.cat([m.flatten() for m in masks])


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("by", ["snr", "log_alpha"])
@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.6, 0.95])
@pytest.mark.filterwarnings("ignore:nothing is left")
def test_exactly_the_lowest_go(method, by, fraction):
    model = network(method)
    before = scores(model)
    report = lb.prune_(model, fraction=fraction, by=by)
    mask = kept(model)
    assert (~mask).sum() == round(fraction * len(mask)) == report.total - report.kept
    if fraction > 0:
        assert before[~mask].max() <= before[mask].min() * (1 + 1e-6)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("estimator", ["local", "weight", "flipout"])
def test_pruned_weights_are_zero_in_everything(method, estimator):
    model = network(method)
    lb.prune_(model, fraction=0.7)
    for q in posteriors(model).values():
        gone = ~q.keep
        for values in (q.mean, q.std, q.variance, q.snr(), q.sample(), q.sample(q.noise()), q.log_prob(q.mean)):
            assert (values[gone] == 0).all()
            assert values.isfinite().all()
        assert (q.std[q.keep] > 0).all()
    x = torch.randn(3, 1, 4, 4)
    for layer in (m for m in model.modules() if isinstance(m, BayesLayer)):
        assert (layer.weight[~layer.posteriors["weight"].keep] == 0).all()
        assert (layer.deviation("weight")[~layer.posteriors["weight"].keep] == 0).all()
    answers = []
    for _ in range(2):  # what the mask hides has no say
        torch.manual_seed(1)
        with lb.using(estimator=estimator):
            answers.append(model(x))
        with torch.no_grad():
            for q in posteriors(model).values():
                q.loc[~q.keep] = 1e6
    assert torch.equal(*answers)
    assert answers[0].isfinite().all()


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_training_leaves_them_at_zero(method):
    model = network(method)
    lb.prune_(model, fraction=0.5)
    masks = {n: q.keep.clone() for n, q in posteriors(model).items()}
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        (model(torch.randn(8, 1, 4, 4)).square().mean() + 1e-3 * lb.kl_sum(model)).backward()
        for n, q in posteriors(model).items():
            assert q.loc.grad.isfinite().all()
            assert (q.loc.grad[~masks[n]] == 0).all()
            assert q.loc.grad[masks[n]].any()
        optimiser.step()
    for n, q in posteriors(model).items():
        assert torch.equal(q.keep, masks[n])
        assert (q.sample()[~q.keep] == 0).all()


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("prior", [None, lb.StudentT()], ids=["own", "monte carlo"])
def test_kl_is_that_of_the_weights_left(method, prior):
    from leanbayes.kl import kl

    model = network(method)
    for layer in (m for m in model.modules() if isinstance(m, BayesLayer)):
        if prior is not None:
            layer.priors, layer.approximation = dict.fromkeys(layer.priors, prior), None
    lb.prune_(model, fraction=0.5)
    torch.manual_seed(3)
    total = lb.kl_sum(model)
    torch.manual_seed(3)
    expected = torch.zeros(())
    for layer in (m for m in model.modules() if isinstance(m, BayesLayer)):
        for name, q in layer.posteriors.items():
            values = kl(q.whole(), layer.priors[name], layer.approximation)
            expected = expected + (values if q.keep is None else values[q.keep]).sum()
    torch.testing.assert_close(total, expected)
    with torch.autograd.set_detect_anomaly(True):  # no 0 / 0 on the way, even where it would be masked
        lb.kl_sum(model).backward()


def test_thresholds():
    model = network()
    before = scores(model)
    report = lb.prune_(model, threshold=3.0)
    assert torch.equal(kept(model), before >= 3.0)
    assert report.threshold == 3.0
    model = network(lb.VariationalDropout(log_alpha=2.5))
    alpha = torch.cat([log_alpha(q).flatten() for q in posteriors(model).values()])
    assert lb.prune_(model, by="log_alpha").threshold == 3.0
    assert torch.equal(kept(model), alpha <= 3.0)
    assert 0 < kept(model).sum() < len(alpha)


def test_log_alpha_at_the_threshold_stays():
    model = nn.Sequential(nn.Linear(3, 2))
    lb.bayesianize_(model, lb.VariationalDropout(parameterisation="multiplicative", log_alpha=3.0))
    assert lb.prune_(model, by="log_alpha").kept == 6
    assert model[0].posteriors["weight"].keep is None


def test_log_alpha_is_the_log_of_variance_over_mean_squared():
    for q in posteriors(network()).values():
        torch.testing.assert_close(log_alpha(q), (q.variance / q.mean.square()).log())


def test_a_layer_scope_treats_layers_alike():
    model = network()
    report = lb.prune_(model, fraction=0.5, scope="layer")
    assert [(t.name, t.kept, t.total) for t in report.tensors] == [("0.weight", 13, 27), ("4.weight", 24, 48)]


def test_pruning_again_counts_what_is_gone():
    model = network()
    lb.prune_(model, fraction=0.3)
    first = kept(model)
    with torch.no_grad():  # merely zero is not pruned yet
        model[4].posteriors["weight"].loc[:, :3] = 0
    for by in ("snr", "log_alpha"):
        lb.prune_(model, fraction=0.3, by=by)
        assert torch.equal(kept(model), first)
    lb.prune_(model, fraction=0.1)
    assert torch.equal(kept(model), first)
    lb.prune_(model, fraction=0.8)
    assert (~kept(model)).sum() == 60
    assert not (kept(model) & ~first).any()


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.sampled_from([0.0, 0.5, -0.5, 1.0, -2.0]), min_size=1, max_size=12).filter(any),
    fraction=st.floats(0, 0.99),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    by=st.sampled_from(["snr", "log_alpha"]),
)
def test_ties_go_in_order_and_the_number_is_exact(values, fraction, dtype, by):
    layer = nn.Linear(len(values), 1).to(dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([values]))
    model = nn.Sequential(layer)
    lb.bayesianize_(model, lb.MeanField())
    count = round(fraction * len(values))
    if count == len(values):
        return
    report = lb.prune_(model, fraction=fraction, by=by)
    gone = sorted(sorted(range(len(values)), key=lambda i: (abs(values[i]), i))[:count])
    q = model[0].posteriors["weight"]
    assert report.total - report.kept == count
    assert [i for i in range(len(values)) if q.keep is not None and not q.keep[0, i]] == gone


def test_masks_survive_deepcopy_state_dicts_and_restoring():
    model = network()
    lb.prune_(model, fraction=0.6)
    again = copy.deepcopy(model)
    assert torch.equal(kept(again), kept(model))
    fresh = network()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(kept(fresh), kept(model))
    assert torch.equal(scores(fresh), scores(model))
    with pytest.raises(RuntimeError, match="keep"):
        model.load_state_dict(network().state_dict())
    wrong = {**model.state_dict(), "0.posteriors.weight.keep": torch.ones(2).bool()}
    with pytest.raises(RuntimeError, match="size mismatch"):
        network().load_state_dict(wrong)
    assert kept(model.double().half()).dtype == torch.bool
    lb.restore_(again)
    assert type(again[0]) is nn.Conv2d
    assert (again[0].weight == 0).sum() + (again[4].weight == 0).sum() == 45
    assert again[0].weight.requires_grad


def test_tied_weights_are_pruned_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    lb.bayesianize_(model, lb.MeanField())
    report = lb.prune_(model, fraction=1 / 3)
    assert [(t.name, t.kept, t.total) for t in report.tensors] == [("0.weight", 6, 9)]
    assert (model[1].weight == 0).sum() == 3


def test_biases_only_when_asked_for():
    model = network()
    assert lb.prune_(model, fraction=0.5).total == 75
    assert model[0].posteriors["bias"].keep is None
    assert lb.prune_(network(), fraction=0.5, biases=True).total == 75 + 7


def test_the_padding_row_of_an_embedding_is_no_weight():
    model = nn.Sequential(nn.Embedding(4, 3, padding_idx=1))
    with torch.no_grad():
        model[0].weight[1] = 5.0
    lb.bayesianize_(model, lb.MeanField(prior=lb.Normal()))
    assert lb.prune_(model, fraction=0.5).total == 9
    assert (model(torch.tensor([1])) == 5.0).all()


def test_active_parameters():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    lb.bayesianize_(model, lb.MeanField())
    x = torch.randn(2, 4)
    assert lb.cost(model, x).active_parameters == 2 * (16 + 4 + 4)
    lb.prune_(model, fraction=0.5)
    assert lb.cost(model, x).active_parameters == 2 * (8 + 4 + 4)  # the tied weight once
    assert lb.cost(model, x).parameters == 2 * (16 + 4 + 4)
    q = MultiplicativeGaussian.from_tensor(torch.ones(3, 2), "neuron")
    q.keep = torch.tensor([[True, False], [False, False], [True, True]])
    assert q.active_parameters() == 3 + 2  # three weights, two neurons left
    assert ZeroMeanGaussian(torch.ones(2)).active_parameters() == 2


def test_vmap_over_the_noise_sees_the_mask():
    model = network()
    lb.prune_(model, fraction=0.6)
    x = torch.randn(3, 1, 4, 4)
    answers = [lb.predict(model, x, samples=4, task="classification", strategy=s).probs for s in ("vmap", "loop")]
    torch.testing.assert_close(*answers)


def test_reports():
    report = lb.prune_(network(), fraction=0.6)
    assert report.to_dict()["kept"] == 30
    assert report.to_dict()["tensors"][0]["name"] == "0.weight"
    assert "0.weight" in str(report)
    assert "60.0%" in str(report)


def test_an_emptied_layer_warns():
    with pytest.warns(LeanBayesWarning, match=r"nothing is left of 0.weight, 4.weight"):
        report = lb.prune_(model := network(), fraction=1.0)
    assert report.kept == 0
    assert model(torch.randn(2, 1, 4, 4)).isfinite().all()
    with pytest.warns(LeanBayesWarning):
        lb.prune_(model, fraction=1.0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fraction": 0.5, "threshold": 1.0},
        {"fraction": -0.1},
        {"fraction": 1.1},
        {"fraction": math.nan},
        {"fraction": "half"},
        {"fraction": True},
        {"threshold": math.nan},
        {"threshold": -1.0},
        {"threshold": math.inf, "by": "log_alpha"},
        {"fraction": 0.5, "by": "size"},
        {"fraction": 0.5, "scope": "channel"},
    ],
    ids=str,
)
def test_bad_settings_touch_nothing(options):
    model = network()
    with pytest.raises(ConfigError):
        lb.prune_(model, **options)
    assert all(q.keep is None for q in posteriors(model).values())


def test_models_that_cannot_be_pruned():
    with pytest.raises(ConversionError, match="Gaussian weights"):
        lb.prune_(nn.Sequential(nn.Linear(2, 2)), fraction=0.5)
    with pytest.raises(ConversionError):
        lb.prune_("model", fraction=0.5)  # type: ignore[arg-type]
    dropout = nn.Sequential(nn.Linear(2, 2))
    lb.bayesianize_(dropout, lb.Dropout())
    with pytest.raises(ConversionError):
        lb.prune_(dropout, fraction=0.5)
    model = network()
    model[4].posteriors["weight"] = ZeroMeanGaussian(torch.ones(4, 12))
    for by in ("snr", "log_alpha"):
        with pytest.raises(ConfigError, match=r"4.weight: all its means are zero by construction"):
            lb.prune_(model, fraction=0.5, by=by)
    model[4].posteriors["weight"] = Gaussian.from_tensor(torch.zeros(4, 12))
    with pytest.raises(ConfigError, match="all its means are zero"):
        lb.prune_(model, fraction=0.5)
    model[4].posteriors["weight"] = Gaussian.from_tensor(torch.full((4, 12), math.nan))
    with pytest.raises(ConfigError, match="finite"):
        lb.prune_(model, fraction=0.5)
    assert model[0].posteriors["weight"].keep is None
