from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import leanbayes as lb
from leanbayes.config import from_dict, to_dict
from leanbayes.convert.implementation import implementation, implements
from leanbayes.convert.record import conversions
from leanbayes.errors import ConfigError, ConversionError
from leanbayes.methods.ensemble.layer import EnsembleLayer, layers, member

from .helpers import INNER, OPTIMISERS, batches, small, train


def test_parameters_and_memory_are_k_fold_and_the_work_is_not():
    plain, model, x = small(), small(), torch.randn(2, 4)
    done = lb.bayesianize_(model, lb.Ensemble(7))
    before, after = lb.cost(plain, x), lb.cost(model, x)
    assert done.growth == 7
    assert after.parameters == 7 * before.parameters
    assert after.bytes == 7 * before.bytes
    assert after.macs == before.macs
    assert after.sites == 1
    lb.bayesianize_(random := small(), lb.Ensemble(7, method=lb.MeanField()))
    assert lb.cost(random, x).sites == 1 + 4
    assert "EnsembleLayer(Linear)" in str(after)


def test_the_first_member_is_the_model_as_it_was():
    model, x = small().eval(), torch.randn(3, 4)
    before, weight = model(x), model[0].weight
    lb.bayesianize_(model, lb.Ensemble(3))
    assert model[0].members[0].weight is weight
    assert torch.equal(member(model, 0)(x), before)
    assert not torch.equal(model[0].members[1].weight, weight)
    restored = lb.restore_(model)
    assert restored[0].weight is weight
    assert torch.equal(restored(x), before)
    assert [type(m) for m in restored] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]


@pytest.mark.parametrize("inner", [lb.MeanField(), lb.Dropout(0.2)])
def test_restoring_undoes_the_method_of_the_members_too(inner):
    model, x = small().eval(), torch.randn(3, 4)
    before = model(x)
    lb.bayesianize_(model, lb.Ensemble(3, method=inner))
    assert torch.allclose(lb.restore_(model)(x), before)
    assert {type(m) for m in model.modules()} == {nn.Sequential, nn.Linear, nn.BatchNorm1d, nn.ReLU}


def test_what_has_no_mean_cannot_be_restored_and_is_left_as_it_is():
    model = small()
    lb.bayesianize_(model, lb.Ensemble(2, method=lb.Variance(parameterisation="zero")))
    with pytest.raises(ConversionError, match="no mean to restore"):
        lb.restore_(model)
    assert len(layers(model)) == 3


def test_members_start_afresh_by_their_own_initialisation():
    model = nn.Sequential(nn.Linear(100, 200))
    nn.init.constant_(model[0].weight, 3.0)
    lb.bayesianize_(model, lb.Ensemble(3, init="fresh"))
    other = model[0].members[1].weight.detach()
    assert other.abs().max() <= 0.1  # U(+-1/sqrt(fan-in))
    assert other.std() == pytest.approx(0.1 / 3**0.5, rel=0.05)
    assert model[0].members[0].weight.unique().tolist() == [3.0]
    assert not torch.equal(other, model[0].members[2].weight)


def test_a_trained_network_is_perturbed_and_a_fresh_one_is_not():
    torch.manual_seed(0)
    for trained in (False, True):
        model = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 2))
        if trained:
            with torch.no_grad():
                model[0].weight.mul_(1.5)
        lb.bayesianize_(model, lb.Ensemble(2))
        first, other = (member.weight.detach() for member in model[0].members)
        assert float(torch.corrcoef(torch.stack([first.flatten(), other.flatten()]))[0, 1] > 0.9) == trained


def test_perturbed_members_stay_close():
    model = nn.Sequential(nn.Linear(100, 200), nn.BatchNorm1d(200))
    lb.bayesianize_(model, lb.Ensemble(3, init="perturb", perturbation=0.2))
    first, second, _ = (m.weight.detach() for m in model[0].members)
    gap = (second - first).square().mean().sqrt() / first.square().mean().sqrt()
    assert gap == pytest.approx(0.2, rel=0.03)
    assert (model[1].members[1].weight.detach() - 1).std() == pytest.approx(0.2, rel=0.2)
    assert torch.equal(model[1].members[1].running_var, torch.ones(200))


def test_frozen_layers_keep_their_pretrained_weights_in_every_member():
    model = small()
    model[0].requires_grad_(False)
    lb.bayesianize_(model, lb.Ensemble(2))
    assert torch.equal(model[0].members[0].weight, model[0].members[1].weight)
    assert not any(p.requires_grad for p in model[0].parameters())
    assert not torch.equal(model[3].members[0].weight, model[3].members[1].weight)


def test_the_method_takes_the_layers_it_would_take_on_its_own():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 8), nn.BatchNorm1d(8))
    config = lb.Ensemble(3, method=lb.Dropout())
    lb.bayesianize_(model, config)
    plain = lb.Ensemble(3)
    assert conversions(model) == {"0": plain, "2": lb.Dropout(), "3": plain, "4": plain}
    assert len(lb.callbacks(model)) == 1
    model = small()
    lb.bayesianize_(model, config)
    assert conversions(model) == {"0": plain, "1": plain, "3": config}


def test_rules_give_some_layers_a_method():
    model = small()
    lb.bayesianize_(model, {"3": lb.Ensemble(3, method=lb.Variance()), "*": lb.Ensemble(3)})
    assert [type(m).__name__ for m in model[3].members] == 3 * ["BayesLayer"]
    assert [type(m).__name__ for m in model[0].members] == 3 * ["Linear"]
    assert len({id(layer.turn) for layer in layers(model)}) == 1
    assert len(lb.callbacks(model)) == 1


def test_a_method_sees_all_layers_of_each_member_together():
    @dataclass(frozen=True)
    class Counting(lb.MeanField):
        pass

    @implements(Counting)
    class _Counting(type(implementation(lb.MeanField()))):
        def prepare(self, modules, conversion):
            found = {name: id(module.weight) for name, module in modules.items()}
            seen.append(conversion.scratch("seen", lambda: found))

        def convert(self, module, conversion):
            assert id(module.weight) in conversion.scratch("seen", dict).values()
            return super().convert(module, conversion)

    model, seen = small(), []
    weights = {"0": id(model[0].weight), "3": id(model[3].weight)}
    lb.plan(model, lb.Ensemble(3, method=Counting()))
    lb.bayesianize_(model, lb.Ensemble(3, method=Counting()))
    planned, done = seen[:3], seen[3:]
    assert [list(one) for one in planned] == [list(one) for one in done] == 3 * [["0", "3"]]
    assert done[0] == weights
    assert len({one["0"] for one in done}) == 3


def test_pruning_reaches_every_member(tmp_path):
    model = small()
    lb.bayesianize_(model, lb.Ensemble(2, method=lb.MeanField()))
    report = lb.prune_(model, fraction=0.5)
    assert report.total == 2 * (4 * 8 + 8 * 3)
    assert report.kept == report.total // 2
    active = lb.cost(model, torch.randn(2, 4)).active_parameters
    assert active == sum(p.numel() for p in model.parameters()) - 2 * report.kept  # a mean and a rho for each
    fresh = lb.load(lb.save(model, tmp_path / "m.safetensors"), into=small())
    x = torch.randn(3, 4)
    said = [lb.predict(m, x, task="classification").probs for m in (model, fresh)]
    assert torch.equal(*said)


@pytest.mark.parametrize("inner", INNER)
def test_save_and_load(inner, tmp_path):
    model, x = small(), torch.randn(5, 4)
    lb.bayesianize_(model, lb.Ensemble(3, method=INNER[inner]))
    train(model, list(enumerate(batches(4))), OPTIMISERS["sgd"])
    loaded = lb.load(lb.save(model, tmp_path / "m.safetensors"), into=small())
    assert conversions(loaded) == conversions(model)
    a, b = (lb.predict(m, x, task="classification", samples=6).probs for m in (model, loaded))
    assert torch.equal(a, b)
    model.train(), loaded.train()
    model[0].turn.next = loaded[0].turn.next = 1
    torch.manual_seed(0)
    first = model(x)
    torch.manual_seed(0)
    assert torch.equal(first, loaded(x))


def test_what_members_have_to_share_is_said_in_the_plan():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.body = nn.Parameter(torch.zeros(1, 4)), nn.Linear(4, 2)

        def forward(self, x):
            return self.body(x + self.token)

    model = nn.ModuleDict({"tokens": Tokens(), "spectral": parametrizations.weight_norm(nn.Linear(2, 2))})
    model["lazy"] = nn.LazyLinear(2)
    done = lb.plan(model, lb.Ensemble(2, init="fresh"))
    assert done.converted == ["tokens.body"]
    assert "Tokens has no reset_parameters()" in done.left_alone["tokens"]
    assert "all members share it" in done.left_alone["spectral"]
    assert "run one batch" in done.left_alone["lazy"]
    with pytest.raises(ConversionError, match="strict: tokens"):
        lb.plan(model, lb.Ensemble(2, init="fresh"), strict=True)
    # perturbed, a module with parameters of its own is copied with all that it holds
    assert lb.plan(model, lb.Ensemble(2, init="perturb")).converted == ["tokens"]
    lb.bayesianize_(model, lb.Ensemble(2, init="perturb"))
    assert isinstance(model["tokens"], EnsembleLayer)
    # but the model itself cannot be replaced: members share its own parameters, unless a rule asks for them
    alone = lb.plan(Tokens(), lb.Ensemble(2, init="perturb"))
    assert alone.converted == ["body"]
    assert "wrap it" in alone.left_alone[""]
    lb.bayesianize_(model := Tokens(), lb.Ensemble(2, init="perturb"))
    assert isinstance(model.body, EnsembleLayer)
    with pytest.raises(ConversionError, match=r"strict: the model.*wrap it"):
        lb.bayesianize_(Tokens(), lb.Ensemble(2, init="perturb"), strict=True)
    with pytest.raises(ConversionError, match="wrap it"):
        lb.bayesianize_(Tokens(), {Tokens: lb.Ensemble(2, init="perturb")})


def test_weight_norm_by_hook_is_refused():
    with pytest.warns(FutureWarning):
        model = nn.Sequential(nn.utils.weight_norm(nn.Linear(2, 2)), nn.Linear(2, 2))
    assert lb.plan(model, lb.Ensemble(2)).converted == ["1"]


def test_layers_that_are_random_already_are_not_made_several():
    model = small()
    lb.bayesianize_(model, {nn.Linear: lb.MeanField()})
    assert lb.plan(model, lb.Ensemble(2)).converted == ["1"]
    assert "already Bayesian" in lb.plan(model, lb.Ensemble(2)).left_alone["0"]
    lb.bayesianize_(done := small(), lb.Ensemble(2))
    with pytest.raises(ConversionError, match="nothing in this Sequential"):
        lb.bayesianize_(done, lb.Ensemble(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"members": 0}, "from 2 to 1000, received 0"),
        ({"members": 1}, "one network is no ensemble"),
        ({"members": True}, "received True"),
        ({"members": 2.0}, "received 2.0"),
        ({"members": 10**9}, "from 2 to 1000"),
        ({"members": 2, "method": lb.Ensemble(3)}, r"lb.Ensemble\(members=6\)"),
        ({"method": "mean-field"}, "lb.MeanField"),
        ({"method": lb.MeanField}, "lb.MeanField"),
        ({"init": "zeros"}, "'fresh', 'perturb'"),
        ({"perturbation": 0.0}, "above 0"),
    ],
)
def test_bad_configs_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        lb.Ensemble(**options)


def test_the_config_with_its_method_survives_json():
    config = lb.Ensemble(3, method=lb.MeanField(prior=lb.StudentT(), std=0.1), init="perturb")
    assert from_dict(to_dict(config)) == config
    with pytest.raises(ConfigError, match=r"Ensemble.method"):
        from_dict({**to_dict(config), "method": to_dict(lb.Normal())})


def test_what_has_nothing_to_copy_is_refused():
    with pytest.raises(ConversionError, match="nothing in this Sequential"):
        lb.bayesianize_(nn.Sequential(nn.ReLU()), lb.Ensemble())
    with pytest.raises(ConversionError, match="no parameters or buffers"):
        lb.bayesianize_(small(), {nn.ReLU: lb.Ensemble()})
