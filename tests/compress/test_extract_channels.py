"""Channels that `extract` cuts out: pruned ones, and those beyond a width."""

import copy
import random

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.compress.extract import unread
from leanbayes.convert.channels import channel_graph
from leanbayes.convert.slicing import slice_
from leanbayes.errors import ConversionError
from leanbayes.layers.bayes import FixedLayer
from leanbayes.layers.contract import BayesianLayer
from leanbayes.methods.structured_pruning import prune_channels_

from ..convert.networks import NETWORKS as ALL_KINDS
from ..convert.slicing import half, masked, randomised
from .extracting import at_means, of


@pytest.mark.parametrize("name", ALL_KINDS)
def test_slices_equal_masks(name):
    make, shape, _ = ALL_KINDS[name]
    torch.manual_seed(2)
    model, rng = randomised(make()), random.Random(2)
    x = torch.rand(shape, dtype=torch.double)
    graph = channel_graph(model, x)
    for keep in [*({g.name: half(g, rng)} for g in graph.free), {g.name: half(g, rng) for g in graph.free}]:
        expected = masked(model, graph, keep)(x)
        got = slice_(copy.deepcopy(model), graph, keep)
        torch.testing.assert_close(got(x), expected, rtol=1e-10, atol=1e-10)
        if any(len(c) < graph[n].size for n, c in keep.items()):
            assert sum(p.numel() for p in got.parameters()) < sum(p.numel() for p in model.parameters())


def test_slicing_is_refused_before_anything_is_cut():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    graph = channel_graph(model)
    shapes = {name: t.shape for name, t in model.state_dict().items()}
    for keep in ({"0": [1], "2": []}, {"0": [1], "2": [3, 1]}, {"0": [1], "4": [0]}):
        with pytest.raises(ConversionError):
            slice_(model, graph, keep)
    model[2].weight = model[0].weight
    with pytest.raises(ConversionError, match="tied"):
        slice_(model, graph, {"0": [1, 2]})
    assert {name: t.shape for name, t in model.state_dict().items()} == shapes


class TestChannels:
    def structured(self, model, share=0.5, threshold=1.0):
        torch.manual_seed(0)
        for p in model.parameters():
            p.data += 0.05 * torch.randn_like(p)
        lb.bayesianize_(model, lb.StructuredPruning())
        for layer in model.modules():
            if hasattr(layer, "scale"):
                layer.scale.log_std.data[torch.rand(layer.scale.shape) < share] = 3.0  # more noise than signal
        prune_channels_(model, threshold)
        return model

    def test_channels_that_noise_drowns_are_cut_out(self):
        model = self.structured(nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 3)))
        kept = int(model[3].scale.keep.sum())
        small = lb.extract(model)
        assert (small[0].out_features, small[1].num_features, small[3].in_features) == (kept, kept, kept)
        x = torch.randn(7, 6)
        assert torch.allclose(of(small, x), at_means(model, x), atol=1e-6)

    @pytest.mark.parametrize(("name", "options"), [("lenet5", {"batch_norm": True}), ("resnet18_cifar", {"width": 8})])
    def test_of_real_networks(self, name, options):
        model = self.structured(lb.models.build(name, num_classes=10, **options), share=0.9).eval()
        x = torch.randn(2, 1, 28, 28) if name == "lenet5" else torch.randn(2, 3, 32, 32)
        small = lb.extract(model, example_input=x)
        whole = sum(p.numel() for p in lb.extract(model, sparse=False, graph=channel_graph(model, x)).parameters())
        assert sum(p.numel() for p in small.parameters()) == whole
        assert whole < 0.4 * sum(p.numel() for p in lb.restore_(copy.deepcopy(model)).parameters())
        assert not any(isinstance(m, BayesianLayer) for m in small.modules())
        torch.testing.assert_close(of(small, x), at_means(model, x), rtol=1e-5, atol=1e-5)

    def test_a_channel_stays_while_one_of_its_readers_needs_it(self):
        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2)

            def forward(self, x):
                x = torch.relu(self.a(x))
                return self.b(x) + self.c(x)

        model = Two()
        lb.bayesianize_(model, {"b": lb.StructuredPruning(), "c": lb.StructuredPruning()})
        for layer, gone in ((model.b, [0, 1]), (model.c, [1, 2])):
            layer.scale.log_std.data[gone] = 3.0
        prune_channels_(model)
        assert unread(model, channel_graph(model)) == {"a": [0, 2, 3]}
        x = torch.randn(3, 4)
        assert torch.allclose(of(lb.extract(model), x), at_means(model, x), atol=1e-6)

    def test_sparse_layers_are_cut_too_and_what_feeds_only_the_cut_goes(self):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(8, 30), nn.ReLU(), nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 3))
        lb.bayesianize_(model, {"2": lb.SparseSubspace(density=0.05), "4": lb.StructuredPruning()})
        model[4].scale.log_std.data[:15] = 3.0
        prune_channels_(model)
        small = lb.extract(model)
        read = (model[2].posteriors["weight"].mean[15:] != 0).any(0)  # by the five that are left
        assert small[0].out_features == int(read.sum()) < 30
        assert small[2].posteriors["weight"].shape == (5, int(read.sum()))
        assert isinstance(small[2], FixedLayer)
        x = torch.randn(4, 8)
        assert torch.allclose(of(small, x), at_means(model, x), atol=1e-6)
        assert small[2].method.density == small[2].posteriors["weight"].density


class TestWidth:
    def nested(self, model, rules=None, **options):
        torch.manual_seed(0)
        lb.bayesianize_(model, rules or lb.Nested(**{"groups": 8, "base_groups": 2, **options}))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
                module.bias.data.normal_()
        return model.eval()

    @pytest.mark.parametrize("width", [0.25, 0.5, 1.0])
    @pytest.mark.parametrize("method", [lb.Nested, lb.NestedDropout])
    def test_equals_the_masked_network_and_is_smaller(self, method, width):
        model = self.nested(lb.models.build("vgg11_bn", width=0.25), {"conv1": None, "*": method(groups=8)})
        x = torch.randn(2, 3, 32, 32)
        before = copy.deepcopy(model.state_dict())
        small = lb.extract(model, width=width)
        assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())  # widths are part of it
        lb.set_width_(model, width)
        expected = at_means(model, x)
        torch.testing.assert_close(of(small, x), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(of(lb.extract(model), x), expected, rtol=1e-5, atol=1e-5)  # as it is set
        whole = sum(p.numel() for p in lb.models.build("vgg11_bn", width=0.25).parameters())
        share = sum(p.numel() for p in small.parameters()) / whole
        assert share == 1 if width == 1 else share < 1.5 * width
        assert not any(isinstance(m, BayesianLayer) for m in small.modules())
        assert not any(m._forward_pre_hooks or m._forward_hooks for m in small.modules())

    def test_a_width_by_name_and_skip_connections(self):
        model = self.nested(lb.models.build("resnet18_cifar", width=8), groups=4, base_groups=1)
        x = torch.randn(2, 3, 16, 16)
        names = list(lb.set_width_(copy.deepcopy(model), 0.5))
        widths = {name: (0.25, 0.5, 0.75)[i % 3] for i, name in enumerate(names)}
        small = lb.extract(model, width=widths)
        lb.set_width_(model, widths)
        torch.testing.assert_close(of(small, x), at_means(model, x), rtol=1e-5, atol=1e-5)

    def test_rescaled_widths_and_truncation(self):
        model = self.nested(nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 4)))
        x = torch.randn(5, 3, 8, 8)
        lb.set_width_(model, 0.5, rescale=True)
        small = lb.extract(model)
        assert small[0].out_channels == 8
        torch.testing.assert_close(of(small, x), at_means(model, x), rtol=1e-5, atol=1e-5)
        lb.set_width_(model, None)
        lb.truncate_(model, 0.75)
        assert lb.extract(model)[0].out_channels == 12

    def test_pruned_weights_stay_away_and_hooks_too(self):
        model = self.nested(nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)))
        for layer in (model[0], model[2], model[4]):
            layer.posteriors["weight"].log_alpha.data.normal_()  # all the same at the start: the first rows would go
        lb.prune_(model, fraction=0.8, scope="layer")
        x = torch.randn(3, 40)
        small = lb.extract(model, width=0.5)
        lb.set_width_(model, 0.5)
        assert all(isinstance(small[i], FixedLayer) for i in (0, 2, 4))
        assert small[2].posteriors["weight"].shape == (32, 32)
        torch.testing.assert_close(of(small, x), at_means(model, x), rtol=1e-5, atol=1e-5)

    def test_a_layer_of_which_nothing_is_left(self):
        model = self.nested(nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 4)))
        model[2].posteriors["weight"].keep = torch.arange(64).expand(4, 64) >= 50
        small, x = lb.extract(model, width=0.25), torch.randn(3, 40)
        lb.set_width_(model, 0.25)
        assert type(small[2]) is nn.Linear
        torch.testing.assert_close(of(small, x), at_means(model, x), rtol=1e-5, atol=1e-5)

    def test_refusals(self):
        plain = nn.Sequential(nn.Linear(4, 2))
        with pytest.raises(ConversionError, match="ordered channels"):
            lb.extract(plain, width=0.5)
        model = self.nested(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))
        for bad in (0, 1.5, float("nan"), "half"):
            with pytest.raises(ConversionError, match="width"):
                lb.extract(model, width=bad)
        zero = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        lb.bayesianize_(zero, lb.Nested(groups=4, base_groups=1, weights=lb.Variance(parameterisation="zero")))
        with pytest.raises(ConversionError, match="zero by construction"):
            lb.extract(zero, width=0.5)
        legacy = self.nested(
            nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 4, 3)),
            legacy=True, share=False, prior_keep=0.95,
        )  # fmt: skip
        with pytest.raises(ConversionError, match="legacy"):
            lb.extract(legacy, width=0.5)
