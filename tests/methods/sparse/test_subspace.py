"""SparseSubspace and Rigl: what they allot, start from, refuse, save and cost."""

import math

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import leanbayes as lb
from leanbayes import container
from leanbayes.convert.conversion import Conversion
from leanbayes.convert.implementation import implementation
from leanbayes.errors import ArtifactError, ConfigError, ConversionError
from leanbayes.methods.sparse.allocation import erdos_renyi, uniform
from leanbayes.methods.sparse.posterior import SparseGaussian
from leanbayes.posteriors.scale import std_from_rho
from leanbayes.posteriors.sparse import SparsePoint

METHODS = [lb.SparseSubspace, lb.Rigl]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 64), nn.ReLU(), nn.Linear(64, 10))


def counts(model):
    return [len(m.posteriors["weight"].index) for m in model if getattr(m, "subspace", None)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("density", [0, 0.0, -0.1, 1.01, math.nan, math.inf, "0.1", True, None])
def test_bad_densities_are_refused(method, density):
    with pytest.raises(ConfigError, match="density"):
        method(density=density)


@pytest.mark.parametrize(
    "bad",
    [
        {"allocation": "kernel"},
        {"interval": 0},
        {"interval": 2.5},
        {"replacement": 1.5},
        {"schedule": "step"},
        {"until": 0.0},
        {"until": 1.1},
        {"removal": "magnitude"},
        {"addition": "gradient"},
        {"addition": "steps", "addition_steps": 101},
        {"lam": 0.0},
        {"std": -1.0},
        {"new_std": 0.0},
        {"new_std": "median"},
        {"new_std": torch.ones(2)},
        {"init_std": 0.1},
        {"init_std": 0.0, "keep_weights": False},
        {"prior": 1.0},
        {"estimator": "lrt"},
        {"keep_returning": 1},
    ],
    ids=str,
)
def test_bad_options_are_refused(bad):
    with pytest.raises(ConfigError, match=f"SparseSubspace.{list(bad)[-1]}|init_std"):
        lb.SparseSubspace(**bad)


@pytest.mark.parametrize("method", METHODS)
def test_a_layer_too_small_for_one_weight_is_refused_and_nothing_changes(method):
    model = nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 2))
    before, kinds = {k: v.clone() for k, v in model.state_dict().items()}, [type(m) for m in model]
    for allocation in ("uniform", "erdos-renyi"):
        with pytest.raises(ConversionError, match=r'^0: .*at least one active.*"0": None'):
            lb.bayesianize_(model, method(density=0.001, allocation=allocation))
    with pytest.raises(ConversionError, match=r"^1: expected a layer"):
        lb.plan(model, method(density=0.01))
    assert [type(m) for m in model] == kinds
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert lb.bayesianize_(model, {nn.Linear: method(density=0.01), "1": None}).converted == ["0"]


def test_uniform_allocation_is_the_same_share_of_every_layer():
    model = network()
    lb.bayesianize_(model, lb.SparseSubspace(density=0.1))
    assert counts(model) == [uniform(s, 0.1) for s in ((72,), (64 * 288,), (640,))] == [7, 1843, 64]


@pytest.mark.parametrize("density", [0.01, 0.03, 0.1, 0.5, 0.9, 1.0])
def test_erdos_renyi_meets_the_total_exactly_and_favours_small_layers(density):
    shapes = [(16, 3, 3, 3), (16, 16, 3, 3), (64, 16, 3, 3), (10, 64), (500, 64)]
    found, sizes = erdos_renyi(shapes, density), [math.prod(s) for s in shapes]
    assert sum(found) == round(density * sum(sizes))
    assert all(0 < n <= size for n, size in zip(found, sizes, strict=True))
    wanted = [sum(s) / size for s, size in zip(shapes, sizes, strict=True)]
    scale = {round(n / size / w, 2) for n, size, w in zip(found, sizes, wanted, strict=True) if n < size - 1}
    assert max(scale, default=0) - min(scale, default=0) <= 0.02 * max(scale, default=0) + 0.05  # but for rounding


def test_erdos_renyi_looks_at_all_layers_of_a_rule_together():
    model = network()
    method = lb.SparseSubspace(density=0.05, allocation="erdos-renyi")
    planned = lb.plan(model, {nn.Linear: method})
    done = lb.bayesianize_(model, {nn.Linear: method})
    assert planned == done
    assert counts(model) == erdos_renyi([(64, 288), (10, 64)], 0.05)
    assert sum(counts(model)) == round(0.05 * (64 * 288 + 640))
    with pytest.raises(ConversionError, match="uniform"):  # by hand: nobody has told it of the other layers
        implementation(method).convert(nn.Linear(20, 20), Conversion())
    lb.bayesianize_(ensemble := network(), {nn.Linear: lb.Ensemble(members=2, method=method)})
    each = [len(m.index) for m in ensemble.modules() if isinstance(m, SparseGaussian)]
    assert each == [n for count in counts(model) for n in (count, count)]


def test_tied_weights_are_one_weight():
    model = nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, 8))
    model[1].weight = model[0].weight
    lb.bayesianize_(model, lb.SparseSubspace(density=0.1, allocation="erdos-renyi"))
    assert model[0].posteriors["weight"] is model[1].posteriors["weight"]
    assert counts(model)[0] + counts(model)[2] == round(0.1 * (400 + 160))


@pytest.mark.parametrize("method", METHODS)
def test_pretrained_weights_start_from_the_largest(method):
    model, plain = network(), network()
    lb.bayesianize_(model, method(density=0.1))
    for layer, old in zip(model, plain, strict=True):
        if getattr(layer, "subspace", None):
            q, w = layer.posteriors["weight"], old.weight
            assert type(q) is (SparseGaussian if method is lb.SparseSubspace else SparsePoint)
            assert torch.equal(q.mean, torch.where(q.mean != 0, w, 0.0))
            assert w[q.mean == 0].abs().max() <= w[q.mean != 0].abs().min()
            assert torch.equal(layer.bias, old.bias)


@pytest.mark.parametrize("method", METHODS)
def test_fresh_weights_are_at_random_places_with_the_variance_of_the_dense_layer(method):
    model = nn.Sequential(nn.Linear(300, 300))
    plain = model[0].weight.detach().clone()
    lb.bayesianize_(model, method(density=0.1, keep_weights=False))
    q = model[0].posteriors["weight"]
    n = len(q.index)
    assert n == 9000
    assert abs(q.index.double().mean() / 90000 - 0.5) < 5 / math.sqrt(12 * n)
    ratio = q.mean.square().mean() / plain.square().mean()
    assert abs(ratio - 1) < 0.05  # 5 standard errors of a mean of 9000 squares of uniform numbers
    lb.bayesianize_(other := nn.Sequential(nn.Linear(300, 300)), method(density=0.1, keep_weights=False, init_std=0.01))
    assert abs(other[0].posteriors["weight"].loc.std() / 0.01 - 1) < 5 / math.sqrt(2 * n)


def test_frozen_weights_have_frozen_means():
    model = nn.Sequential(nn.Linear(20, 20))
    model[0].weight.requires_grad_(False)
    for options in ({}, {"keep_weights": False}):
        lb.bayesianize_(model, lb.SparseSubspace(density=0.1, **options))
        assert not model[0].posteriors["weight"].loc.requires_grad
        lb.restore_(model)


def test_what_is_not_linear_or_a_convolution_is_left_alone_with_the_reason():
    model = nn.Sequential(nn.Embedding(50, 20), nn.Linear(20, 20), nn.ConvTranspose1d(20, 20, 3))
    left = lb.plan(model, lb.SparseSubspace()).left_alone
    with pytest.raises(ConversionError, match="Linear and convolutions"):
        lb.plan(model, {nn.Embedding: lb.SparseSubspace()})
    assert set(left) == {"0", "2"}
    tied = nn.Sequential(nn.Embedding(50, 20), nn.Linear(20, 20), nn.Linear(20, 50))
    tied[2].weight = tied[0].weight
    assert lb.plan(tied, lb.SparseSubspace()).converted == ["1"]


def test_new_weights_get_the_sigma_that_was_asked_for():
    model = nn.Sequential(nn.Linear(40, 40))
    lb.bayesianize_(model, lb.SparseSubspace(density=0.1, new_std=0.25))
    q = model[0].posteriors["weight"]
    values = implementation(model[0].subspace).newcomers(q, torch.ones(160, dtype=torch.bool))
    assert values["loc"] == 0.0
    assert std_from_rho(values["rho"]).item() == pytest.approx(0.25)


@pytest.mark.parametrize("method", METHODS)
def test_training_learns_and_moves_weights(method):
    torch.manual_seed(0)
    x = torch.randn(256, 20)
    y = (x[:, :3].sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    lb.bayesianize_(model, method(density=0.1, interval=10))
    before = model[0].posteriors["weight"].index.clone()
    lb.fit(model, (x, y), epochs=15, lr=0.02, batch_size=32, progress=False)
    said = lb.predict(model, x, samples=8, seed=0)
    assert (said.probs.argmax(1) == y).float().mean() > 0.9
    assert not torch.equal(model[0].posteriors["weight"].index, before)
    if method is lb.Rigl:
        assert torch.equal(lb.predict(model, x, samples=8, seed=1).probs, said.probs)
        assert lb.kl_sum(model) == 0


@pytest.mark.parametrize("method", METHODS)
def test_a_file_holds_what_the_active_weights_need(method, tmp_path):
    model = nn.Sequential(nn.Linear(300, 300, bias=False))
    lb.bayesianize_(model, method(density=0.05))
    path = lb.save(model, tmp_path / "a.safetensors")
    numbers = 3 if method is lb.SparseSubspace else 2  # mean, (sigma,) place: four bytes each
    assert sum(t.numel() * t.element_size() for t in load_file(path).values()) == numbers * 4 * 4500
    assert path.stat().st_size < numbers * 4 * 4500 + 2048
    other = lb.load(path, into=nn.Sequential(nn.Linear(300, 300, bias=False)))
    assert torch.equal(other[0].posteriors["weight"].mean, model[0].posteriors["weight"].mean)


@pytest.mark.parametrize("wrong", ["out of range", "twice"])
def test_a_file_with_bad_places_is_refused_and_nothing_changes(wrong, tmp_path):
    model = nn.Sequential(nn.Linear(40, 40))
    lb.bayesianize_(model, lb.SparseSubspace(density=0.05))
    path = lb.save(model, tmp_path / "a.safetensors")
    tensors, document = container.read(path)
    document = {k: v for k, v in document.items() if k not in ("digest", "format", "version")}
    index = tensors["0.posteriors.weight.index"].clone()
    index[0] = 1600 if wrong == "out of range" else index[1]
    path.write_bytes(container.pack({**tensors, "0.posteriors.weight.index": index}, document))
    plain = nn.Sequential(nn.Linear(40, 40))
    for into in (plain, model):
        before, kind = {k: v.clone() for k, v in into.state_dict().items()}, type(into[0])
        with pytest.raises(ArtifactError, match="index"):
            lb.load(path, into=into)
        assert type(into[0]) is kind
        assert all(torch.equal(v, before[k]) for k, v in into.state_dict().items())


@pytest.mark.parametrize("method", METHODS)
def test_cost_counts_what_is_stored(method):
    model = nn.Sequential(nn.Linear(300, 100, bias=False))
    lb.bayesianize_(model, method(density=0.05))
    found = lb.cost(model, torch.zeros(2, 300))
    per_weight = 2 if method is lb.SparseSubspace else 1
    assert found.parameters == found.active_parameters == per_weight * 1500
    assert found.bytes == (per_weight + 1) * 4 * 1500


def test_an_ensemble_of_sparse_networks_trains():
    model = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 4))
    lb.bayesianize_(model, lb.Ensemble(members=2, method=lb.SparseSubspace(density=0.2, interval=2)))
    lb.fit(model, (torch.randn(32, 20), torch.arange(32) % 4), epochs=4, batch_size=8, progress=False)
    q = [m for m in model.modules() if isinstance(m, SparseGaussian)]
    assert [len(one.index.unique()) for one in q] == [80, 80, 16, 16]


def _trained():
    torch.manual_seed(0)
    sizes = (20, 40), (40, 40), (40, 3)
    layers = [part for size in sizes for part in (nn.Linear(*size), nn.ReLU())]
    model = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        model[2].weight.mul_(2.0)  # beyond torch's own initialisation
    return model


def _counts(model):
    return [len(model[i].posteriors["weight"].index) for i in (0, 2, 4)]


def test_a_trained_network_is_thinned_out_over_the_run(tmp_path):
    x, y = torch.randn(64, 20), torch.randint(3, (64,))
    method = lb.SparseSubspace(density=0.1, fewest=4)
    model = _trained()
    plain = model(x).detach()
    lb.bayesianize_(model, method)
    assert _counts(model) == [800, 1600, 120]
    with lb.using(mean_only=True):
        assert torch.allclose(model(x), plain, atol=1e-5)
    seen = []

    class Watch(lb.Callback):
        def after_step(self, state):
            seen.append(_counts(state.model)[1])

    lb.fit(model, (x, y), epochs=10, batch_size=16, callbacks=[Watch()], progress=False)
    assert seen == sorted(seen, reverse=True)
    assert seen[len(seen) // 4] > 160
    assert seen[len(seen) // 2 + 1] == 160
    assert _counts(model) == [800, 160, 120]  # the ends stay dense
    again = lb.load(lb.save(model, tmp_path / "thin.safetensors"), into=_trained())
    assert torch.equal(lb.predict(again, x, samples=4).probs, lb.predict(model, x, samples=4).probs)
    lb.fit(again, (x, y), epochs=1, progress=False)
    assert _counts(again) == [800, 160, 120]


class _Stop(lb.Callback):
    """Ends a run before a step, as Control-C would."""

    def __init__(self, at):
        self.at = at

    def before_step(self, state):
        if state.step == self.at:
            raise KeyboardInterrupt


def test_thinning_goes_on_from_a_checkpoint(tmp_path):
    x, y = torch.randn(64, 20), torch.randint(3, (64,))

    def run(stop, name, resume=False):
        model = _trained()
        lb.bayesianize_(model, lb.SparseSubspace(density=0.1, fewest=4))
        options = {"epochs": 6, "batch_size": 16, "progress": False, "seed": 1, "checkpoint_every": 1}
        lb.fit(model, (x, y), callbacks=[_Stop(stop)], checkpoint=tmp_path / name, resume=resume, **options)
        return model.state_dict()

    whole = run(None, "whole.ckpt")
    with pytest.raises(KeyboardInterrupt):
        run(7, "cut.ckpt")
    continued = run(None, "cut.ckpt", resume=True)
    assert all(torch.equal(whole[name], continued[name]) for name in whole)


@pytest.mark.parametrize("method", [lb.SparseSubspace(), lb.Rigl()])
def test_small_layers_of_a_trained_network_keep_their_weights_and_large_ones_do_not(method):
    sizes = (20, 100), (100, 40), (40, 200), (200, 500), (500, 3)
    model = nn.Sequential(*(part for size in sizes for part in (nn.Linear(*size), nn.ReLU())))
    with torch.no_grad():
        model[2].weight.mul_(2.0)  # beyond torch's own initialisation
    plan = lb.bayesianize_(model, method)
    said = {entry.name: entry.why for entry in plan.entries}
    assert "keeps all its weights" in said["0"]  # the first
    assert "keeps all its weights" in said["2"]  # 4,000
    assert "training thins it out to 51% of its weights" in said["4"]  # 4,096 of 8,000
    assert "training thins it out to 5% of its weights" in said["6"]
    lb.fit(model, (torch.randn(32, 20), torch.arange(32) % 3), epochs=8, batch_size=8, progress=False)
    left = [len(model[i].posterior("weight").index) for i in (0, 2, 4, 6, 8)]
    assert left == [2000, 4000, 4096, 5000, 1500]


def test_a_network_that_was_not_trained_starts_at_its_density():
    model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3))
    lb.bayesianize_(model, lb.SparseSubspace(density=0.1))
    assert _counts(model) == [80, 160, 12]
