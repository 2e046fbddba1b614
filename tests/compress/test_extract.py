"""`extract`: the network at the means, really small, for every method or with the reason why not."""

import copy
import random

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.convert.channels import channel_graph
from leanbayes.convert.record import conversions
from leanbayes.convert.slicing import slice_
from leanbayes.data.dataset import Part
from leanbayes.errors import ConversionError
from leanbayes.layers.bayes import FixedLayer
from leanbayes.layers.contract import BayesianLayer
from leanbayes.registry import methods
from leanbayes.sampling import has_means, sites

from ..contract.networks import NETWORKS, data
from ..convert.networks import NETWORKS as ALL_KINDS
from ..convert.slicing import half, randomised
from ..snapshots import snapshot
from .extracting import at_means, bytes_of, of


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", sorted(methods()))
def test_every_method_has_a_network_at_the_means_or_says_why_not(method, network):
    torch.manual_seed(1)
    model = NETWORKS[network]()
    lb.bayesianize_(model, methods()[method]())
    x, _ = data(network)
    model(x)  # statistics of BatchNorm that are not those of a new one
    before = snapshot(model)
    if not has_means(model):
        with pytest.raises(ConversionError, match="mean"):
            lb.extract(model)
        assert snapshot(model) == before
        return
    small = lb.extract(model)
    assert snapshot(model) == before
    assert not sites(small)
    assert not any(m.training for m in small.modules())
    assert torch.allclose(of(small, x), at_means(model, x), atol=1e-6)
    assert {id(p) for p in small.parameters()}.isdisjoint({id(p) for p in model.parameters()})
    layers = [m for m in small.modules() if isinstance(m, BayesianLayer)]
    assert bool(layers) == (method in ("SparseSubspace", "Rigl"))
    plain = lb.extract(model, sparse=False)
    assert {type(m) for m in plain.modules()} == {type(m) for m in NETWORKS[network]().modules()}
    assert torch.allclose(of(plain, x), at_means(model, x), atol=1e-6)


def test_weights_without_a_mean_raise_with_the_reason():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    lb.bayesianize_(model, {"1": lb.Variance(parameterisation="zero")})
    with pytest.raises(ConversionError, match=r"1.weight: its mean is zero by construction"):
        lb.extract(model)
    with pytest.raises(ConversionError, match=r"member\(model"):
        lb.extract(_ensemble())


def _ensemble():
    model = nn.Sequential(nn.Linear(4, 4))
    lb.bayesianize_(model, lb.Ensemble(3))
    return model


def test_a_member_of_an_ensemble_can_be_extracted():
    from leanbayes.methods.ensemble.layer import member

    assert type(lb.extract(member(_ensemble(), 1))[0]) is nn.Linear


@pytest.mark.parametrize("bad", [None, "model", 3])
def test_not_a_model(bad):
    with pytest.raises(ConversionError, match=r"expected an nn.Module"):
        lb.extract(bad)


def test_a_layer_alone_has_to_stand_in_something():
    model = nn.Sequential(nn.Linear(2, 2))
    lb.bayesianize_(model, lb.MeanField())
    with pytest.raises(ConversionError, match="Sequential"):
        lb.extract(model[0])


def test_the_task_is_known_and_a_plain_model_is_copied():
    x, y = torch.randn(20, 6), torch.arange(20) % 3
    model = NETWORKS["perceptron"]()
    lb.bayesianize_(model, lb.SparseSubspace())
    lb.fit(model, (x, y), epochs=1, progress=False)
    assert lb.predict(lb.extract(model), x).probs.shape == (20, 3)  # no task given
    plain = NETWORKS["perceptron"]()
    assert torch.equal(of(lb.extract(plain), x), of(plain, x))


class TestSparse:
    def make(self, density=0.05):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 10)), lb.SparseSubspace(density=density)

    def test_takes_the_bytes_of_the_active_weights(self, tmp_path):
        model, method = self.make()
        lb.bayesianize_(model, method)
        small = lb.extract(model)
        active, biases = 3000 + 150, 310
        assert bytes_of(small) == 8 * active + 4 * biases  # an index and a value each
        path = lb.save(small, tmp_path / "small.safetensors")
        assert path.stat().st_size < bytes_of(small) + 3000  # the header
        fresh, _ = self.make()
        loaded = lb.load(path, into=fresh)
        x = torch.randn(5, 200)
        assert torch.equal(of(loaded.eval(), x), of(small, x))
        assert conversions(loaded) == conversions(small)

    def test_runs_through_the_kernels_where_the_model_did(self):
        model, method = self.make()
        lb.bayesianize_(model, method)
        x = torch.randn(2, 200)
        assert [r.path for r in lb.cost(model, x).layers] == [r.path for r in lb.cost(lb.extract(model), x).layers]
        assert lb.cost(lb.extract(model), x).macs == 3150

    def test_training_goes_on_at_the_same_places(self):
        model, method = self.make()
        lb.bayesianize_(model, method)
        small = lb.extract(model)
        before = small[0].posteriors["weight"].index.clone()
        lb.fit(small, (torch.randn(64, 200), torch.arange(64) % 10), epochs=150, progress=False)
        assert torch.equal(small[0].posteriors["weight"].index, before)

    @pytest.mark.parametrize("method", [lb.MeanField(), lb.VariationalDropout(), lb.SparseSubspace(density=0.4)])
    def test_what_prune_left_is_what_is_stored(self, method, tmp_path):
        torch.manual_seed(0)
        model, _ = self.make()
        lb.bayesianize_(model, method)
        lb.prune_(model, fraction=0.9, scope="layer")
        small = lb.extract(model)
        left = sum(len(m.index) for m in small.modules() if hasattr(m, "index"))
        share = 0.04 if method.__class__.__name__ == "SparseSubspace" else 0.1
        assert left == pytest.approx(share * 63_000, rel=1e-3)
        x = torch.randn(4, 200)
        assert torch.allclose(of(small, x), at_means(model, x), atol=1e-6)
        fresh, _ = self.make()
        again = lb.load(lb.save(small, tmp_path / "a.safetensors"), into=fresh).eval()
        assert torch.equal(of(again, x), of(small, x))

    def test_many_weights_or_none_make_a_plain_layer(self):
        for method in (lb.SparseSubspace(density=0.6), lb.MeanField()):
            model, _ = self.make()
            lb.bayesianize_(model, method)
            if isinstance(method, lb.MeanField):
                with pytest.warns(lb.LeanBayesWarning):
                    lb.prune_(model, fraction=1.0)
            assert type(lb.extract(model)[0]) is nn.Linear

    def test_tied_weights_stay_tied(self):
        model = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 20))
        model[2].weight = model[0].weight
        lb.bayesianize_(model, lb.SparseSubspace(density=0.1))
        small = lb.extract(model)
        assert isinstance(small[0], FixedLayer)
        assert small[0].posteriors["weight"] is small[2].posteriors["weight"]

    def test_convolutions_and_double_precision(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3)).double()
        lb.bayesianize_(model, lb.SparseSubspace(density=0.2))
        x = torch.randn(2, 3, 9, 9, dtype=torch.double)
        assert torch.allclose(of(lb.extract(model), x), at_means(model, x), atol=1e-12)

    def test_hooks_come_along(self):
        model, method = self.make()
        lb.bayesianize_(model, {"0": method})
        seen = []
        model[0].register_forward_hook(lambda *_: seen.append(1))
        lb.extract(model)(torch.zeros(1, 200))
        assert seen == [1]


class TestFiles:
    @pytest.mark.parametrize("name", ALL_KINDS)
    def test_a_network_of_the_whole_size_is_cut_to_what_was_saved(self, name, tmp_path):
        make, shape, _ = ALL_KINDS[name]
        torch.manual_seed(2)
        model, rng = randomised(make()), random.Random(2)
        x = torch.rand(shape, dtype=torch.double)
        graph = channel_graph(model, x)
        small = slice_(copy.deepcopy(model), graph, {g.name: half(g, rng) for g in graph.free})
        path = lb.save(small, tmp_path / "small.safetensors")
        for fresh in (make().double(), copy.deepcopy(small)):
            assert torch.equal(lb.load(path, into=fresh).eval()(x), small(x))
        assert lb.load(path, into=make().double()).state_dict().keys() == small.state_dict().keys()

    def test_nested_and_sparse(self, tmp_path):
        def make():
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

        model = make()
        lb.bayesianize_(model, {"0": lb.Nested(groups=8), "2": lb.SparseSubspace(density=0.1)})
        small, x = lb.extract(model, width=0.5), torch.randn(3, 40)
        assert small[2].posteriors["weight"].shape == (64, 32)
        again = lb.load(lb.save(small, tmp_path / "a.safetensors"), into=make()).eval()
        assert torch.equal(of(again, x), of(small, x))

    def test_what_does_not_fit_is_refused_and_nothing_changes(self, tmp_path):
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        path = lb.save(slice_(copy.deepcopy(model), channel_graph(model), {"0": [1, 2, 3]}), tmp_path / "a.safetensors")
        for wrong in (
            nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 2)),  # smaller than what was cut
            nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)),
            nn.Sequential(nn.Conv1d(4, 8, 1), nn.ReLU(), nn.Linear(8, 2)),
            nn.Sequential(nn.Linear(4, 8)),
        ):
            before = snapshot(wrong)
            with pytest.raises(lb.LeanBayesError):
                lb.load(path, into=wrong)
            assert snapshot(wrong) == before


def test_task_temperature_width_and_class_names_travel(tmp_path):
    """What the outputs mean goes with extract, save and load, and nobody has to say it again."""

    def build():
        return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))

    model, x = build(), torch.randn(300, 4)
    data = Part(x, x[:, :3].argmax(1), classes=("cat", "dog", "owl"))
    lb.bayesianize_(model, lb.Nested(groups=8, base_groups=2))
    lb.fit(model, data, task="classification", epochs=3, lr=1e-2, progress=False)
    temperatures = {}
    for width in (1.0, 0.5):
        lb.set_width_(model, width)
        temperatures[width] = lb.calibrate_(model, (x[:50], data.tensors[1][:50]), mean_only=True, progress=False)
    assert temperatures[0.5] != temperatures[1.0]
    lb.save(model, tmp_path / "nested.safetensors")
    again = lb.load(tmp_path / "nested.safetensors", into=build())
    wanted = lb.predict(model, x, mean_only=True)
    small = lb.extract(again)  # at the width that was set
    lb.save(small, tmp_path / "small.safetensors")
    for other in (again, small, lb.load(tmp_path / "small.safetensors", into=build())):
        found = lb.predict(other, x, mean_only=True)
        torch.testing.assert_close(found.probs, wanted.probs)
        assert found.classes == ("cat", "dog", "owl")
        assert found.class_names == wanted.class_names
    assert small[0].out_features < 32
    wide = lb.extract(again, width=1.0)  # with the temperature of that width
    logits = lb.predict(wide, x, task=lb.Classification()).probs.log() / temperatures[1.0]
    torch.testing.assert_close(lb.predict(wide, x).probs, logits.softmax(1))
