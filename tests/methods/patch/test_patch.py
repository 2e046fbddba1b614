"""Ensemble model patching: the paper's counts, its members, and training, asking, saving and restoring them."""

import copy
import json

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import data
from leanbayes.config import from_dict, to_dict
from leanbayes.errors import ConfigError, ConversionError
from leanbayes.kl import kl_sum
from leanbayes.methods import DropConnect, Patch, Point
from leanbayes.methods.patch import norms, norms_and_output, norms_input_output
from leanbayes.methods.patch.layer import Patched
from leanbayes.models import resnet18
from leanbayes.sampling import sites

KINDS = {
    "emp": Patch(cross=False),
    "ecmp": Patch(cross=True),
    "ensemble": Patch(cross=False, shared=True),
    "given": Patch(3, cross=True, probabilities=(0.5, 0.3, 0.2)),
    "own statistics": Patch(cross=False, statistics="component"),
    "independent": Patch(balanced=False),
    "dropconnect": DropConnect(0.3),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def ask(model, x, **options):
    return lb.predict(model, x, **{"samples": 10, "task": "classification", **options})


@pytest.fixture(scope="module")
def resnet():
    with torch.device("meta"):
        return resnet18()


def test_counts_are_the_papers(resnet):
    assert lb.plan(resnet, norms(Patch(5))).parameters_before == 11_689_512
    only = lb.plan(resnet, norms(Patch(5)))
    assert round(100 * (only.growth - 1), 3) == 0.328  # table 4
    assert len(only.converted) == 20
    both = lb.plan(resnet, norms_and_output(resnet, Patch(5, cross=False)))
    assert both.parameters_after == 13_779_912  # table 3
    assert both.converted[-1] == "fc"
    assert round(100 * (both.growth - 1), 1) == 17.9
    three = lb.plan(resnet, norms_input_output(resnet))
    assert three.parameters_after == 13_779_912 + 4 * 64 * 3 * 49
    assert lb.plan(resnet, {"*": Patch(5, cross=False, shared=True)}).parameters_after == 58_447_560
    assert lb.plan(resnet, DropConnect()).growth == 1


def test_the_multilayer_perceptrons_overhead_is_the_papers():
    hidden = [m for _ in range(99) for m in (nn.Linear(100, 100), nn.BatchNorm1d(100))]
    with torch.device("meta"):
        model = nn.Sequential(*hidden, nn.Linear(100, 100, bias=False))  # its count leaves the output's bias out
    plan = lb.plan(model, norms_and_output(model))
    assert plan.parameters_after - plan.parameters_before == 119_200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"components": 1}, "from 2 to 1000, received 1; one component is the layer as it is"),
        ({"components": 0}, "received 0"),
        ({"components": 2.0}, "whole number"),
        ({"components": 2, "probabilities": (0.5, 0.6)}, "sum to 1"),
        ({"components": 2, "probabilities": (0.5, 0.3, 0.2)}, "one for each of 2"),
        ({"components": 2, "probabilities": (1.0, 0.0)}, "above 0"),
        ({"probabilities": 0.2}, "tuple"),
        ({"cross": True, "shared": True}, "cross or shared"),
        ({"cross": True, "statistics": "component"}, "cross=False"),
        ({"prior": lb.LogUniform()}, "Normal"),
        ({"prior": None, "bias_prior": lb.Normal()}, "bias_prior"),
        ({"perturbation": 0.0}, "perturbation"),
        ({"divergence": "exact"}, "divergence"),
        ({"cross": 1}, "cross"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Patch(**options)


@pytest.mark.parametrize("rate", [0, 1.0, -0.1])
def test_bad_rates_are_refused(rate):
    with pytest.raises(ConfigError, match="rate"):
        DropConnect(rate)


def test_rules_that_find_nothing_say_so():
    bare = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    for rules in (norms(), norms_and_output(bare)):
        with pytest.raises(ConversionError, match=r"Linear|converted"):
            lb.plan(bare, rules)
    with pytest.raises(ConversionError, match="at least one rule"):
        lb.plan(bare, {})
    with pytest.raises(ConversionError, match="by hand"):
        norms_and_output(nn.Sequential(nn.ReLU()))
    with pytest.raises(ConversionError, match="no weight to patch"):
        lb.plan(nn.Sequential(nn.LayerNorm(2, elementwise_affine=False)), {nn.LayerNorm: Patch()})


@kinds
def test_the_config_survives_json(kind):
    assert from_dict(json.loads(json.dumps(to_dict(KINDS[kind])))) == KINDS[kind]


@pytest.mark.parametrize("p", [(), (0.4, 0.3, 0.2, 0.1)])
def test_one_component_is_the_pretrained_one_and_the_others_cancel_about_it(p):
    model = small()
    before = copy.deepcopy(model.state_dict())
    lb.bayesianize_(model, {"*": Patch(4, probabilities=p, perturbation=0.2)})
    for name in ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight"):
        layer, parameter = name.split(".")
        q, old = model[int(layer)].posteriors[parameter], before[name]
        assert torch.equal(q.loc[0], old)
        assert torch.allclose(q.mean, old, atol=1e-6)
        size = (old if old.any() else before[f"{layer}.weight"]).square().mean().sqrt()  # BatchNorm's bias is zero
        ratio = (q.loc[1:] - old).square().mean().sqrt() / (0.2 * size)
        assert 0.4 < ratio < 1.8


def test_two_components_are_apart_and_fresh_ones_are_the_layers_own():
    model = small()
    lb.bayesianize_(model, Patch(2, init="fresh"))
    head, norm = (model[i].posteriors["weight"].loc for i in (3, 1))
    assert head[1].abs().max() <= 1 / 8**0.5
    assert (head[0] - head[1]).square().mean() > 0.5 * head[0].square().mean()
    assert not torch.equal(norm[0], norm[1])


def test_padding_stays_constant_and_a_frozen_weight_frozen():
    model = nn.Sequential(nn.Embedding(4, 3, padding_idx=2))
    model[0].weight.requires_grad_(False)
    lb.bayesianize_(model, {nn.Embedding: Patch(3)})
    loc = model[0].posteriors["weight"].loc
    assert not loc.requires_grad
    assert (loc[:, 2] == 0).all()
    assert not loc[1, 0].equal(loc[0, 0])


def test_equation_6_with_a_precision_for_each_of_its_four_sums():
    model, (a, b, c, d) = small(), (0.5, 2.0, 3.0, 0.7)
    patch = Patch(3, prior=lb.Normal(std=a), bias_prior=lb.Normal(std=b))
    lb.bayesianize_(model, {**norms(patch), nn.Linear: Point(lb.Normal(std=c), lb.Normal(std=d))})
    q = model[1].posteriors
    expected = q["weight"].loc.square().sum() / 3 / (2 * a**2) + q["bias"].loc.square().sum() / 3 / (2 * b**2)
    for layer in (model[0], model[3]):
        expected = expected + layer.weight.square().sum() / (2 * c**2) + layer.bias.square().sum() / (2 * d**2)
    assert kl_sum(model).item() == pytest.approx(expected.item(), rel=1e-5)
    plain = small()
    lb.bayesianize_(plain, Patch(prior=None))
    assert kl_sum(plain) == 0


@kinds
def test_seeds_chunks_and_strategies_agree_and_leave_the_statistics_alone(kind):
    model, x = small(), torch.randn(7, 4)
    lb.bayesianize_(model, KINDS[kind])
    before = copy.deepcopy(model.state_dict())
    answer = ask(model, x, seed=3).probs
    for options in ({"chunk": 2}, {"strategy": "loop"}, {"strategy": "vmap"}):
        assert torch.allclose(ask(model, x, seed=3, **options).probs, answer, atol=1e-6)
    assert len(torch.stack([ask(model, x, seed=s, samples=2).probs for s in range(6)]).unique(dim=0)) > 1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@kinds
def test_saved_loaded_and_restored(kind, tmp_path):
    model, x = small(), torch.randn(7, 4)
    lb.bayesianize_(model, KINDS[kind])
    model.train()(x)
    path = lb.save(model, tmp_path / "a.safetensors")
    loaded = lb.load(path, into=nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)))
    assert torch.equal(ask(loaded, x).probs, ask(model, x).probs)
    assert torch.equal(ask(copy.deepcopy(model), x).probs, ask(model, x).probs)
    mean = ask(model, x, mean_only=True).probs
    plain = lb.restore_(model)
    assert [type(m) for m in plain] == [type(m) for m in small()]
    assert not sites(plain)
    assert not any(m._forward_pre_hooks for m in plain.modules())
    assert torch.allclose(ask(plain, x).probs, mean, atol=1e-6)


def test_balanced_prediction_uses_every_component_of_every_layer_equally_often():
    model, x = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False)), torch.zeros(1, 2)
    lb.bayesianize_(model, {"0": Patch(4, cross=False), "1": None})
    with torch.no_grad():
        model[0].posteriors["bias"].loc.copy_(torch.tensor([[1.0, 0], [2, 0], [3, 0], [4, 0]]))
        model[1].weight.copy_(torch.eye(2))
    said = lb.predict(model, x, samples=12, seed=5, task="regression").samples[:, 0, 0]
    assert [sorted(block) for block in said.reshape(3, 4).tolist()] == [[1, 2, 3, 4]] * 3


def test_balanced_prediction_is_unbiased_and_nearer_to_the_truth():
    model, x = small(), torch.randn(4, 4)
    lb.bayesianize_(model, Patch(4, perturbation=1.0))
    other = small()
    lb.bayesianize_(other, Patch(4, perturbation=1.0, balanced=False))
    other.load_state_dict(model.state_dict())
    truth = ask(other, x, samples=1500, seed=1).probs
    errors = {}
    for name, one in (("balanced", model), ("independent", other)):
        drawn = torch.stack([ask(one, x, samples=8, seed=s, strategy="loop").probs for s in range(40)])
        errors[name] = (drawn - truth).square().mean()
        spread = drawn.std(0) / 40**0.5 + truth.mul(1 - truth).div(1500).sqrt()
        assert ((drawn.mean(0) - truth).abs() < 5 * spread).all()
    assert errors["balanced"] < errors["independent"]


def test_an_ensemble_of_these_tensors_draws_once_a_pass_and_is_asked_once_a_member():
    model, x = small(), torch.randn(5, 4)
    lb.bayesianize_(model, Patch(3, cross=False, shared=True))
    assert len(sites(model)) == 1
    model.eval()
    with torch.no_grad():
        outputs = torch.stack([model(x) for _ in range(40)])
    assert len(outputs.unique(dim=0)) == 3
    said = ask(model, x, samples=50, keep_samples=True).samples
    assert said.shape[0] == 3
    assert len(said.unique(dim=0)) == 3


def test_layers_draw_by_themselves_otherwise():
    model, x = small(), torch.randn(5, 4)
    lb.bayesianize_(model, Patch(3, cross=False))
    said = ask(model, x, samples=60, keep_samples=True).samples
    assert len(said.unique(dim=0)) == 9


def test_tied_weights_share_a_mixture():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    model = nn.Sequential(first, nn.ReLU(), second)
    plan = lb.bayesianize_(model, {nn.Linear: Patch(2, cross=False)})
    assert plan.parameters_after == sum(p.numel() for p in model.parameters()) == 2 * (9 + 3 + 3)
    assert model[0].posteriors["weight"] is model[2].posteriors["weight"]
    assert ask(model, torch.randn(2, 3)).probs.shape == (2, 3)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch has no batching rule for attention
def test_transformers_layer_norms_are_found():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(24, 2))
    assert len(lb.bayesianize_(model, norms_and_output(model)).converted) == 5
    x = torch.randn(3, 3, 8)
    model.eval()
    with torch.no_grad():
        assert not torch.equal(model(x), model(x))
    loop = ask(model, x, strategy="loop").probs
    assert torch.allclose(loop, ask(model, x, strategy="vmap").probs, atol=1e-5)


@pytest.mark.parametrize("kind", ["emp", "ecmp", "ensemble", "own statistics"])
def test_fit_learns_the_digits(kind):
    torch.manual_seed(0)
    train, _, test = data.loaders(data.load("digits")).values()
    x, y = next(iter(test))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
    lb.bayesianize_(model, norms_and_output(model, KINDS[kind]))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    lb.fit(model, train, epochs=6, lr=0.01, progress=False)
    for layer in (m for m in model.modules() if isinstance(m, Patched)):
        assert all(q.loc.isfinite().all() for q in layer.posteriors.values())
    for name, p in model.named_parameters():
        assert not torch.equal(p, before[name])
        if name.endswith("loc"):
            assert all(not torch.equal(new, old) for new, old in zip(p, before[name], strict=True))
    said = lb.predict(model, x, samples=10)
    assert (said.probs.argmax(1) == y).float().mean() > 0.85
    assert (said.mutual_information > 0).all()
