"""Patched layers against the plain modules that hold the components drawn."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.kl import kl_sum
from leanbayes.methods.patch.layer import Patched, refusal
from leanbayes.methods.patch.mixture import Assignment, Mixture
from leanbayes.sampling import using

MODULES = {
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), (6, 4)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), (5, 3, 2, 2)),
    "BatchNorm2d average": (lambda: nn.BatchNorm2d(3, momentum=None), (5, 3, 2, 2)),
    "BatchNorm2d no statistics": (lambda: nn.BatchNorm2d(3, track_running_stats=False), (5, 3, 2, 2)),
    "LayerNorm": (lambda: nn.LayerNorm((2, 4)), (6, 2, 4)),
    "LayerNorm no bias": (lambda: nn.LayerNorm(4, bias=False), (6, 4)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (6, 4, 3)),
    "Linear": (lambda: nn.Linear(4, 3), (6, 4)),
    "Conv2d": (lambda: nn.Conv2d(2, 3, 3, padding=1), (2, 2, 4, 4)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(2, 3, 3, stride=2), (2, 2, 4)),
    "Embedding": (lambda: nn.Embedding(5, 3, padding_idx=1), (4,)),
}
K = 3


def inputs(name):
    shape = MODULES[name][1]
    return torch.randint(5, shape) if name == "Embedding" else torch.randn(shape)


def patched(name, cross, seed=0, **options):
    """A layer with components of its own, and the module it came from."""
    torch.manual_seed(seed)
    module = MODULES[name][0]()
    together = Assignment((), (1 / K,) * K)
    posteriors = {
        n: Mixture(torch.randn(K, *p.shape), Assignment(tuple(p.shape), (1 / K,) * K) if cross else together)
        for n, p in module.named_parameters()
    }
    return Patched(module, posteriors, dict.fromkeys(posteriors, lb.Normal()), **options), module


def draws(layer):
    return {id(site): site.noise() for site in layer.assignments()}


def plain_with(module, layer, noise):
    """The plain module with what is drawn for its parameters."""
    other = copy.deepcopy(module)
    with torch.no_grad():
        for name, q in layer.posteriors.items():
            z = noise[id(q.assignment)].expand(q.shape)
            each = sum(torch.where(z == k, q.loc[k], 0.0) for k in range(K))
            getattr(other, name).copy_(each)
    return other


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("cross", [False, True], ids=["emp", "ecmp"])
@pytest.mark.parametrize("name", MODULES)
def test_it_is_the_module_with_the_components_drawn(name, cross, training):
    layer, module = patched(name, cross)
    layer.train(training)
    module.train(training)
    for _ in range(3):
        x, noise = inputs(name), draws(layer)
        before = {n: b.clone() for n, b in layer.named_buffers()}
        plain = plain_with(module, layer, noise)
        for n, b in plain.named_buffers():  # a copy: the module's own buffers are the layer's
            b.copy_(before[n])
        with using(draws=noise):
            assert torch.allclose(layer(x), plain(x), atol=1e-6)
        for n, b in plain.named_buffers():
            assert torch.allclose(b.double(), layer.get_buffer(n).double())
            assert training != torch.equal(b, before[n])


@pytest.mark.parametrize("cross", [False, True], ids=["emp", "ecmp"])
@pytest.mark.parametrize("name", MODULES)
def test_vmap_is_a_loop_with_shared_inputs_and_with_own_ones(name, cross):
    layer, _ = patched(name, cross)
    layer.eval()
    each = [draws(layer) for _ in range(4)]
    stacked = {key: torch.stack([noise[key] for noise in each]) for key in each[0]}
    x = inputs(name)
    own = torch.stack([inputs(name) for _ in range(4)])

    def one(noise, x):
        with using(draws=noise):
            return layer(x)

    if name == "BatchNorm2d no statistics":  # the batch's own statistics: vmap knows them too
        assert layer.running_mean is None
    loop = torch.stack([one(noise, x) for noise in each])
    assert torch.allclose(torch.func.vmap(one, (0, None))(stacked, x), loop, atol=1e-5)
    loop = torch.stack([one(noise, y) for noise, y in zip(each, own, strict=True)])
    assert torch.allclose(torch.func.vmap(one)(stacked, own), loop, atol=1e-5)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_statistics_of_each_component_are_those_of_a_batchnorm_of_its_own(momentum):
    torch.manual_seed(0)
    module = nn.BatchNorm1d(2, momentum=momentum)
    site = Assignment((), (1 / K,) * K)
    layer = Patched(
        module,
        {"weight": Mixture(torch.randn(K, 2), site), "bias": Mixture(torch.randn(K, 2), site)},
        {},
        statistics="component",
    )
    own = [copy.deepcopy(module) for _ in range(K)]
    for k, norm in enumerate(own):
        norm.weight.data, norm.bias.data = layer.posteriors["weight"].loc.data[k], layer.posteriors["bias"].loc.data[k]
    for step in range(8):
        k, x = (0, 1, 1)[step % 3], torch.randn(5, 2) * (step + 1)
        with using(draws={id(site): torch.tensor(k)}):
            assert torch.allclose(layer(x), own[k](x), atol=1e-6)
    for k, norm in enumerate(own):  # the third was never drawn, and is as it was
        for name, buffer in norm.named_buffers():
            assert torch.allclose(layer.get_buffer(name)[k], buffer), name
    layer.eval()
    before = copy.deepcopy(layer.state_dict())
    x = torch.randn(5, 2)
    with using(draws={id(site): torch.tensor(1)}):
        assert torch.allclose(layer(x), own[1].eval()(x), atol=1e-6)
    with using(mean_only=True):
        mean = layer(x)
    assert all(torch.equal(before[n], b) for n, b in layer.state_dict().items())
    plain = layer.restored()
    assert torch.allclose(plain(x), mean, atol=1e-6)
    assert plain.running_mean.shape == plain.running_var.shape == (2,)
    pooled = layer.running_var.mean(0) + layer.running_mean.var(0, unbiased=False)
    assert torch.allclose(plain.running_var, pooled)


def test_weight_and_bias_of_a_layer_are_drawn_together_or_apart():
    for cross in (False, True):
        layer, _ = patched("LayerNorm", cross)
        for q in layer.posteriors.values():
            q.loc.data = torch.arange(K).reshape(-1, 1, 1).expand(K, 2, 4).float()
        x = torch.zeros(1, 2, 4)
        seen = {tuple(layer(x).flatten().tolist()) for _ in range(30)}
        assert (len(seen) <= K) != cross
        together = all(layer._value("weight", s := {}).equal(layer._value("bias", s)) for _ in range(10))
        assert together != cross


def test_a_gradient_reaches_what_was_drawn_and_nothing_else():
    layer, _ = patched("BatchNorm1d", cross=True)
    noise = draws(layer)
    with using(draws=noise):
        layer(torch.randn(6, 4)).pow(2).sum().backward()
    for q in layer.posteriors.values():
        drawn = torch.zeros(K, 4).scatter(0, noise[id(q.assignment)].unsqueeze(0), 1.0)
        assert torch.equal(q.loc.grad != 0, drawn.bool())


@pytest.mark.parametrize("name", MODULES)
def test_restored_is_the_module_at_the_means(name):
    layer, module = patched(name, cross=True)
    layer.eval()
    plain, x = layer.restored(), inputs(name)
    assert type(plain) is type(module)
    assert list(plain.state_dict()) == list(module.state_dict())
    with using(mean_only=True):
        assert torch.allclose(layer(x), plain(x), atol=1e-6)
        assert torch.equal(layer.weight, plain.weight)


def test_it_reads_like_the_module():
    layer, _ = patched("Conv2d", cross=False)
    assert (layer.in_channels, layer.stride, layer.weight.shape) == (2, (1, 1), (3, 2, 3, 3))
    assert "Conv2d(2, 3" in repr(layer)
    with pytest.raises(AttributeError):
        layer.nothing


def test_the_kl_is_equation_6_once_for_what_is_tied_and_without_the_padding():
    layer, _ = patched("Embedding", cross=True)
    rows = torch.tensor([True, False, True, True, True])
    loc = layer.posteriors["weight"].loc
    expected = (loc[:, rows].square().sum() / K / 2).item()
    assert kl_sum(layer).item() == pytest.approx(expected, rel=1e-5)
    other = Patched(MODULES["Embedding"][0](), {"weight": layer.posteriors["weight"]}, layer.priors)
    assert kl_sum(nn.Sequential(layer, other)).item() == pytest.approx(expected, rel=1e-5)


def test_parameters_that_stay_may_have_a_prior_too():
    module = nn.Linear(3, 2)
    layer = Patched(module, {}, {"weight": lb.Normal(std=0.5)})
    assert kl_sum(layer).item() == pytest.approx(2 * module.weight.square().sum().item(), rel=1e-5)
    assert torch.equal(layer(torch.ones(1, 3)), module(torch.ones(1, 3)))


class Own(nn.LayerNorm):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.BatchNorm2d(3, affine=False), "no weight"),
        (nn.GroupNorm(1, 3, affine=False), "no weight"),
        (nn.LazyBatchNorm1d(), "not known yet"),
        (Own(3), "forward of its own"),
        (nn.InstanceNorm2d(3, affine=True), "no operation"),
        (nn.ReLU(), "no operation"),
        (nn.utils.parametrizations.weight_norm(nn.LayerNorm(3), dim=None), "parametrised"),
    ],
)
def test_what_cannot_be_patched_is_refused_with_the_reason(module, reason):
    assert reason in refusal(module)
