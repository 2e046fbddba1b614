"""Pruning whole channels, cutting them out, keeping the smaller network random, folding its norms."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.compress.candidates import SCORES
from leanbayes.convert.folding import fold_batchnorm_
from leanbayes.errors import ConfigError, ConversionError, EvaluationError
from leanbayes.models import build
from leanbayes.posteriors import Gaussian

CRITERIA = ("magnitude", "expected_magnitude", "snr", "log_alpha", "kappa")
SMALL = {
    "vgg11_bn": ({"width": 0.125, "hidden": 16}, (3, 32, 32)),
    "resnext_cifar": ({"depth": 11, "cardinality": 2, "base_width": 8}, (3, 16, 16)),
    "mobilenet_v2": ({"width": 0.125}, (3, 32, 32)),
    "resnet18_cifar": ({"width": 8, "stem_stride": 2}, (3, 16, 16)),
    "unet": ({"widths": (8, 16), "norm": "batch"}, (1, 16, 16)),
    "mlp": ({"in_features": 8, "hidden": [32, 32], "out_features": 3}, (8,)),
}


def small(name):
    options, shape = SMALL[name]
    torch.manual_seed(0)
    model = build(name, **options)
    x = torch.randn(4, *shape)
    with torch.no_grad():
        for _ in range(3):
            model.train()(x)  # statistics that are not those of a new network
    return model.eval(), x


def at_means(model, x):
    with torch.no_grad(), lb.using(mean_only=True):
        return model.eval()(x)


@pytest.mark.parametrize("name", SMALL)
def test_extracted_is_masked_at_five_widths(name):
    model, x = small(name)
    lb.bayesianize_(model, lb.Nested(groups=8, base_groups=1, input_shape=tuple(x.shape[1:])))
    sizes = []
    for width in (0.125, 0.25, 0.5, 0.75, 1.0):
        lb.set_width_(model, width)
        cut = lb.extract(model)
        torch.testing.assert_close(at_means(cut, x), at_means(model, x), rtol=1e-5, atol=1e-5)
        sizes.append(sum(p.numel() for p in cut.parameters()))
    assert sizes == sorted(set(sizes))


class TestChannels:
    @pytest.mark.parametrize(("name", "by"), [*(("vgg11_bn", by) for by in CRITERIA), ("resnet18_cifar", "magnitude")])
    def test_what_is_pruned_is_cut_out(self, name, by):
        model, x = small(name)
        lb.bayesianize_(model, lb.MeanField())
        if by == "kappa":
            scores = {f"{n}.weight": torch.rand(m.posteriors["weight"].shape) for n, m in model.named_modules()
                      if "posteriors" in m._modules}  # fmt: skip
            report = lb.prune_(model, fraction=0.5, by=by, channels=True, scores=scores)
        else:
            report = lb.prune_(model, fraction=0.5, by=by, channels=True)
        kept, total = sum(c.kept for c in report.channels), sum(c.total for c in report.channels)
        assert total / 2 <= kept < 0.6 * total  # a group that would be emptied keeps one
        whole, cut = lb.cost(model, x), lb.extract(model)
        torch.testing.assert_close(at_means(cut, x), at_means(model, x), rtol=1e-5, atol=1e-5)
        found = lb.cost(cut, x)
        assert found.macs < 0.9 * whole.macs
        assert found.parameters < 0.5 * whole.parameters

    def test_the_channels_with_the_lowest_scores_go(self):
        model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))
        lb.bayesianize_(model, lb.MeanField())
        with torch.no_grad():
            model[0].posteriors["weight"].loc.copy_(torch.tensor([5, 1, 4, 2, 6, 3.0])[:, None].expand(6, 3))
            model[2].posteriors["weight"].loc.fill_(1.0)
        report = lb.prune_(model, fraction=0.5, by="magnitude", channels=True)
        assert [(c.name, c.kept, c.total) for c in report.channels] == [("0", 3, 6)]
        keep = model[0].posteriors["weight"].keep.any(1)
        assert keep.tolist() == [True, False, True, False, True, False]
        assert torch.equal(model[2].posteriors["weight"].keep.any(0), keep)
        assert lb.extract(model)[0].out_features == 3

    @pytest.mark.parametrize("scope", ["global", "layer"])
    def test_multiples_of_eight(self, scope):
        model, _ = small("vgg11_bn")
        lb.bayesianize_(model, lb.MeanField())
        report = lb.prune_(model, fraction=0.4, channels=True, round_to=8, scope=scope)
        assert {c.kept % 8 for c in report.channels} == {0}
        assert any(c.kept < c.total for c in report.channels)
        assert "channels of" in str(report)

    def test_channels_that_may_not_go_stay(self):
        model = nn.Sequential(nn.Linear(3, 4))
        lb.bayesianize_(model, lb.MeanField())
        with pytest.raises(ConversionError, match="found none"):
            lb.prune_(model, fraction=0.5, channels=True)
        with pytest.raises(ConfigError, match="channels=True only"):
            lb.prune_(model, fraction=0.5, round_to=8)

    def test_expected_magnitude_tells_weights_without_means_apart(self):
        model = nn.Sequential(nn.Linear(50, 10))
        lb.bayesianize_(model, lb.Variance("zero"))
        lb.prune_(model, fraction=0.5, by="expected_magnitude")
        q = model[0].posteriors["weight"]
        std = q.whole().std.detach()
        assert std[q.keep].min() >= std[~q.keep].max()

    def test_expected_magnitude_is_that_of_draws(self):
        q = Gaussian.from_tensor(torch.tensor([0.0, 0.5, -2.0]), std=1.0)
        generator = torch.Generator().manual_seed(0)
        drawn = (q.mean + q.std * torch.randn(20_000, 3, generator=generator)).abs().mean(0)
        torch.testing.assert_close(SCORES["expected_magnitude"](q).float(), drawn.detach(), rtol=0, atol=0.03)


class TestStochastic:
    @pytest.mark.parametrize("weights", [lb.MeanField(), lb.VariationalDropout(parameterisation="multiplicative",
                                                                                granularity="neuron")])  # fmt: skip
    def test_a_width_stays_random(self, weights, tmp_path):
        model, x = small("vgg11_bn")
        lb.bayesianize_(model, lb.Nested(groups=8, base_groups=1, weights=weights, by_importance=False))
        lb.set_width_(model, 0.25)
        cut = lb.extract(model, stochastic=True)
        torch.testing.assert_close(at_means(cut, x), at_means(model, x), rtol=1e-5, atol=1e-5)
        q, part = model.conv2.posteriors["weight"], cut.conv2.posteriors["weight"]
        torch.testing.assert_close(part.std, q.std[: part.shape[0], : part.shape[1]])
        path = lb.save(cut, tmp_path / "cut.safetensors", task="classification")
        again = lb.load(path, into=build("vgg11_bn", **SMALL["vgg11_bn"][0]))
        same = [lb.predict(m, x, samples=3, task="classification").probs for m in (cut, again)]
        assert torch.equal(*same)
        assert float(lb.predict(cut, x, samples=8, task="classification").epistemic.max()) > 0

    def test_it_can_be_trained_on(self):
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        lb.bayesianize_(model, lb.Nested(groups=4, base_groups=1))
        cut = lb.extract(model, width=0.5, stochastic=True)
        lb.fit(cut, (torch.randn(20, 4), torch.randint(2, (20,))), epochs=1, progress=False)

    def test_pruned_channels(self):
        model, x = small("resnet18_cifar")
        lb.bayesianize_(model, lb.MeanField())
        lb.prune_(model, fraction=0.5, channels=True, by="magnitude")
        cut = lb.extract(model, stochastic=True)
        torch.testing.assert_close(at_means(cut, x), at_means(model, x), rtol=1e-5, atol=1e-5)
        assert sum(p.numel() for p in cut.parameters()) < 0.5 * sum(p.numel() for p in model.parameters())

    def test_what_cannot_be_cut_is_refused(self):
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
        lb.bayesianize_(
            model, {"0": lb.Nested(groups=4, base_groups=1), "2": lb.SparseSubspace(density=0.5), "4": None}
        )
        with pytest.raises(ConversionError, match="stochastic=False"):
            lb.extract(model, width=0.5, stochastic=True)


class TestFolding:
    @pytest.mark.parametrize("name", [name for name in SMALL if name != "mlp"])
    def test_the_function_is_the_same_without_norms(self, name, tmp_path):
        model, x = small(name)
        for norm in model.modules():
            if isinstance(norm, nn.BatchNorm2d):
                nn.init.uniform_(norm.weight, 0.5, 2)
                nn.init.uniform_(norm.bias, -1, 1)
        folded = lb.extract(model, fold_batchnorm=True, example_input=x)
        torch.testing.assert_close(at_means(folded, x), at_means(model, x), rtol=1e-4, atol=1e-4)
        left = sum(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in folded.modules())
        assert left == 0
        path = lb.save(folded, tmp_path / "folded.safetensors")
        again = lb.load(path, into=build(name, **SMALL[name][0]))
        assert torch.equal(at_means(again, x), at_means(folded, x))

    def test_norms_that_something_else_shares_stay(self):
        class Shared(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.norm = nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2)

            def forward(self, x):
                y = self.conv(x)
                return self.norm(y) + y

        assert fold_batchnorm_(Shared().eval()) == {}


class TestCurve:
    def test_a_point_for_every_criterion_and_fraction(self, tmp_path):
        model, x = small("vgg11_bn")
        y = torch.randint(10, (4,))
        lb.bayesianize_(model, lb.MeanField())
        before = copy.deepcopy(model.state_dict())
        options = {"by": ("snr", "magnitude"), "fractions": (0, 0.5), "samples": 2, "task": "classification"}
        curve = lb.pruning_curve(model, (x, y), **options)
        assert [(p.by, round(p.removed, 3)) for p in curve.points] == [
            ("snr", 0.0), ("snr", 0.5), ("magnitude", 0.0), ("magnitude", 0.5)
        ]  # fmt: skip
        assert curve.points[0].accuracy == curve.points[2].accuracy
        assert "removed" in str(curve)
        assert "<svg" in curve.plot(tmp_path / "curve.svg").read_text()
        channels = lb.pruning_curve(model, (x, y), **options, channels=True, train=(x, y))
        assert channels.points[1].macs < channels.points[0].macs
        assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))

    def test_bad_arguments(self):
        model = nn.Sequential(nn.Linear(2, 2))
        lb.bayesianize_(model, lb.MeanField())
        x, y = torch.randn(4, 2), torch.randint(2, (4,))
        with pytest.raises(ConfigError, match="train="):
            lb.pruning_curve(model, (x, y), by="kappa", task="classification")
        with pytest.raises(EvaluationError, match="at least one"):
            lb.pruning_curve(model, (x[:0], y[:0]), task="classification")
        with pytest.raises(ConfigError, match="one of"):
            lb.pruning_curve(model, (x, y), by="size", task="classification")
