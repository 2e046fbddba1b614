"""Masks at the consumers: a masked network is a sliced one, and the KL is paid by keep probability."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.convert.channels import channel_graph
from leanbayes.kl import kl, kl_sum, unscaled_sum
from leanbayes.methods.nested.layer import Begin, InputMask, OrderedLayer
from leanbayes.models import mobilenet_v2, resnext_cifar, vgg11_bn
from leanbayes.ordering import ordered_masks
from leanbayes.ordering.unit import units
from leanbayes.sampling import noise_of, sites, using

from ...convert.slicing import randomised, sliced


class Mixed(nn.Module):
    """Branches, a concatenation, grouped, depthwise and transposed convolutions, GroupNorm."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(2, 6, 1)
        self.norm, self.wide = nn.GroupNorm(4, 8), nn.Conv2d(14, 12, 1)
        self.grouped = nn.Conv2d(12, 12, 3, padding=1, groups=3)
        self.depth = nn.Conv2d(12, 24, 3, padding=1, groups=12)
        self.up = nn.ConvTranspose2d(24, 8, 2, stride=2)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = torch.cat((self.norm(self.left(x)).relu(), self.right(x).tanh()), 1)
        x = self.depth(self.grouped(self.wide(x).relu()).relu())
        return self.head(self.up(x).relu().mean((2, 3)))


MODELS = {
    "vgg11_bn": (lambda: vgg11_bn(width=0.125), (2, 3, 32, 32)),
    "resnext": (lambda: resnext_cifar(depth=11, cardinality=2, base_width=16, width=0.25), (2, 3, 8, 8)),
    "mobilenet": (lambda: mobilenet_v2(width=0.1), (2, 3, 8, 8)),
    "mixed": (Mixed, (2, 2, 6, 6)),
}


@pytest.mark.parametrize("name", MODELS)
def test_masked_equals_sliced(name):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    plain = randomised(make())  # BatchNorm statistics and biases that are not zero, in eval mode
    x = torch.randn(shape, dtype=torch.double)
    graph = channel_graph(plain, x)
    model = copy.deepcopy(plain)
    lb.bayesianize_(model, lb.Nested(groups=8, base_groups=1))
    draws = {id(site): noise_of(site, 3, i, 0) for i, site in enumerate(sites(model).values())}
    for layer in [m for m in model.modules() if isinstance(m, OrderedLayer)]:  # the plain twin has the drawn weights
        name = next(n for n, m in model.named_modules() if m is layer)
        plain.get_submodule(name).weight.data = (
            layer.posteriors["weight"].sample(draws[id(layer.posteriors["weight"])]).detach()
        )
    full = plain(x)
    for width in (0.1, 0.6, 1.0):
        lb.set_width_(model, width)
        keep = {unit.name: unit.kept_channels(unit.width) for unit in units(model)}
        with using(estimator="weight", draws=draws):
            masked = model(x)
        assert torch.allclose(masked, sliced(plain, graph, keep)(x), rtol=1e-9, atol=1e-9)
        assert torch.allclose(masked, full, rtol=1e-9) == (width == 1.0)


def small(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    lb.bayesianize_(model, lb.Nested(**{"groups": 6, "base_groups": 1, **options}))
    return model.double()


@pytest.mark.parametrize("weights", [lb.MeanField(), lb.VariationalDropout(approximation="molchanov"), lb.Variance()])
def test_the_kl_is_the_expectation_over_masks(weights):
    """Equation 9 by brute force: every mask, with its probability, pays for the weights that it keeps."""
    model = small(weights=weights, tail_weight=0.5)
    with torch.no_grad():
        for unit in units(model):
            unit.logits.normal_()
    total = 0.0
    for number, unit in ((0, units(model)[0]), (3, units(model)[1]), (5, None)):
        for name, q in model[number].posteriors.items():
            each = kl(q, model[number].priors[name], model[number].approximation).detach()
            each = each.flatten(1).sum(1) if name == "weight" else each
            if unit is None:
                total += each.sum()
                continue
            for mask, log_beta in zip(ordered_masks(unit.nodes), unit.tails().detach(), strict=True):
                total += log_beta.exp() * (mask[list(unit.steps.node_of)] * each).sum()
    assert torch.allclose(kl_sum(model), total, rtol=1e-6)
    expected = sum(
        0.5 * (b * (b.log() + torch.tensor(float(len(b))).log())).sum() for b in lb.importance(model).values()
    )
    assert torch.allclose(unscaled_sum(model), expected)
    elbo = lb.ELBO("classification", num_data=10, kl_weight=0.3)
    terms = elbo(model, model(torch.randn(4, 3).double()), torch.tensor([0, 1, 0, 1]))
    assert torch.allclose(terms.loss, terms.nll + 0.03 * kl_sum(model).double() + expected, rtol=1e-6)
    assert torch.allclose(terms.unscaled.double(), expected)


def test_kappa_multiplies_the_kl_of_the_weights():
    assert torch.allclose(kl_sum(small(kappa=0.1)), 0.1 * kl_sum(small()))


def test_outputs_of_transposed_depthwise_and_embedding_layers_are_weighed_too():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(5, 8, padding_idx=0)
            self.up = nn.ConvTranspose1d(8, 6, 2, groups=2, bias=False)
            self.depth = nn.Conv1d(6, 12, 1, groups=6, bias=False)
            self.head = nn.Conv1d(12, 2, 1)

        def forward(self, x):
            return self.head(self.depth(self.up(self.words(x).transpose(-1, -2)))).mean(-1)

    torch.manual_seed(0)
    model = Net()
    channels = ("words > up", "up > depth > head")  # a transposition of unknown dimensions is not followed
    weights = lb.MeanField(random_bias=False)
    lb.bayesianize_(model, lb.Nested(groups=4, base_groups=1, weights=weights, channels=channels))
    with torch.no_grad():
        for unit in units(model):
            unit.logits.normal_()
    for name in ("words", "up", "depth", "head"):
        layer = getattr(model, name)
        q = layer.posteriors["weight"]
        each = kl(q, layer.priors["weight"]).detach()
        expected = torch.zeros(())
        found = {unit.name: unit for unit in units(model)}
        for index in torch.cartesian_prod(*(torch.arange(n) for n in each.shape)).tolist():
            out = {"words": index[1], "up": index[0] // 4 * 3 + index[1], "depth": index[0], "head": 0}[name]
            unit = {"words": found["words"], "up": found["up"], "depth": found["up"], "head": None}[name]
            channel = out // 2 if name == "depth" else out
            keep = 1.0 if unit is None else unit.keep()[unit.steps.node_of[channel]].detach()
            padding = name == "words" and index[0] == 0
            expected = expected + (0.0 if padding else keep * each[tuple(index)])
        assert torch.allclose(layer._term("weight", q)(), expected, rtol=1e-5), name
    assert model(torch.tensor([[1, 2, 3]])).shape == (1, 2)


def seen(model, x, calls=1):
    """How many features of each consumer's input are not masked, call by call."""
    counts = []
    handles = [
        m.register_forward_pre_hook(lambda m, args: counts.append(int((args[0].abs().sum(0) > 0).sum())))
        for m in (model[3], model[5])
    ]
    for _ in range(calls):
        model(x)
    for handle in handles:
        handle.remove()
    return list(zip(counts[::2], counts[1::2], strict=True))


def wide(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 60), nn.Tanh(), nn.Identity(), nn.Linear(60, 60), nn.Tanh(), nn.Linear(60, 2))
    lb.bayesianize_(model, lb.Nested(**{"groups": 12, "base_groups": 2, **options}))
    return model


def test_layers_share_one_draw_unless_told_otherwise():
    x = torch.randn(4, 3)
    torch.manual_seed(1)
    pairs = seen(wide(), x, 30)
    assert all(a == b for a, b in pairs)
    assert len(set(pairs)) > 5  # a new pass draws anew
    apart = seen(wide(share=False), x, 30)
    assert any(a != b for a, b in apart)
    assert len(sites(wide(share=False))) == len(sites(wide())) + 1


def test_layers_of_several_sizes_vary_together():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Identity(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 2))
    lb.bayesianize_(model, lb.NestedDropout(groups=64, base_groups=1))
    pairs = torch.tensor(seen(model, torch.randn(4, 3), 200)).double()
    assert torch.corrcoef(pairs.T)[0, 1] > 0.99
    assert torch.equal(pairs[:, 1], (pairs[:, 0] / 4).ceil())  # equal stretches: the coarse width is the fine one


def test_predict_samples_widths_and_a_seed_repeats_them():
    model, x = wide(weights=lb.MeanField(std=1e-6)), torch.randn(4, 3)
    lb.set_width_(model, "sampled")
    first = lb.predict(model, x, samples=16, task="classification", keep_samples=True)
    again = lb.predict(model, x, samples=16, task="classification", keep_samples=True, strategy="loop")
    assert torch.allclose(first.samples, again.samples, atol=1e-5)
    assert len({tuple(s.flatten().tolist()) for s in first.samples.mul(1e4).round()}) > 4
    lb.set_width_(model, 0.5)
    fixed = lb.predict(model, x, samples=16, task="classification", keep_samples=True)
    assert fixed.samples.std(0).max() < 1e-4


def test_deterministic_weights_at_a_set_width_need_one_pass():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    lb.bayesianize_(model, lb.NestedDropout())
    passes = []
    model[2].register_forward_hook(lambda *_: passes.append(1))
    lb.set_width_(model, 0.5)
    lb.predict(model, torch.randn(4, 3), samples=16, task="classification", strategy="loop")
    assert len(passes) == 1
    lb.set_width_(model, None)
    lb.predict(model, torch.randn(4, 3), samples=16, task="classification", strategy="loop")
    assert len(passes) == 17


def test_consumers_of_any_kind_mask_their_inputs():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    rules = {"0": lb.Nested(groups=8), "2": lb.Nested(groups=8), "4": lb.MeanField()}
    lb.bayesianize_(model, rules)
    lb.set_width_(model, 0.5)
    inputs = []
    handle = model[4].register_forward_pre_hook(lambda m, args: inputs.append(args[0]))
    model(torch.randn(5, 3))
    handle.remove()
    assert inputs[0][:, 4:].abs().max() == 0
    assert inputs[0][:, :4].abs().max() > 0
    by_keyword = model[4](input=torch.ones(5, 8))
    assert by_keyword.shape == (5, 2)
    lb.restore_(model)
    assert not any(isinstance(h, (InputMask, Begin)) for m in model.modules() for h in m._forward_pre_hooks.values())
    assert {type(m) for m in model} == {nn.Linear, nn.ReLU}


def test_copies_and_pickles_have_masks_of_their_own():
    model, x = wide(), torch.randn(4, 3)
    for other in (copy.deepcopy(model), pickle.load(io.BytesIO(pickle.dumps(model)))):
        lb.set_width_(other, 0.25)
        assert units(model)[0].width == 0
        assert seen(other, x) == [(15, 15)]
        assert all(a == b for a, b in seen(model, x, 5))


def test_legacy_masks_the_producers_and_norm_layers_fill_the_gap():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    lb.bayesianize_(model, lb.Nested(groups=8, legacy=True, share=False, prior_keep=0.95))
    model[1].bias.data.fill_(1.0)
    inputs = []
    model[3].register_forward_pre_hook(lambda m, args: inputs.append(args[0]))
    lb.set_width_(model, 0.5)
    model.eval()(torch.randn(5, 3))
    assert torch.equal(inputs[0][:, 4:], torch.ones(5, 4))  # relu(bias), where a sliced network has nothing


def test_soft_masks_are_slopes():
    model, x = wide(hard=False, temperature=1.0), torch.randn(4, 3)
    model(x)
    unit = units(model)[0]
    z = unit.mask(torch.ones(4, 60), unit.group.consumers[0])[::5]
    assert z[0] == 1
    assert (z.diff() <= 0).all()
    assert 0 < z[-1] < 1
