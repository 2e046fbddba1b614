"""Nested and NestedDropout as methods: what they are given, refuse, learn and keep."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import ConfigError, ConversionError
from leanbayes.kl import unscaled_sum
from leanbayes.methods.nested import config as nested_config, rules as nested_rules
from leanbayes.models import mobilenet_v2, resnext_cifar, vgg11_bn
from leanbayes.ordering.unit import units
from leanbayes.training.callbacks import State, notify


def mlp(width=32):
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": 1}, "groups"),
        ({"groups": 2.0}, "groups"),
        ({"base_groups": 0}, "base_groups"),
        ({"groups": 4, "base_groups": 4}, "fewer than the 4 groups"),
        ({"groups": 4, "base_groups": 5}, "fewer than the 4 groups"),
        ({"tails": "normal"}, "tails"),
        ({"tails": "geometric", "rate": 1.0}, "rate"),
        ({"tails": "categorical"}, "31 of them"),
        ({"probabilities": (0.5, 0.5)}, "none otherwise"),
        ({"groups": 3, "base_groups": 1, "tails": "categorical", "probabilities": (0.5, 0.5)}, "3 numbers"),
        ({"groups": 3, "base_groups": 1, "tails": "categorical", "probabilities": (0.5, -0.5, 1.0)}, "3 numbers"),
        ({"tail_weight": -1.0}, "tail_weight"),
        ({"temperature": 0.0}, "temperature"),
        ({"final_temperature": -1.0}, "final_temperature"),
        ({"prior_keep": 1.0}, "prior_keep"),
        ({"order": "conv*"}, "tuple of names"),
        ({"input_shape": (3, -1)}, "input_shape"),
        ({"channels": ("conv1",)}, "producers > consumers"),
    ],
)
@pytest.mark.parametrize("method", [lb.Nested, lb.NestedDropout])
def test_bad_settings_are_refused(method, options, message):
    with pytest.raises(ConfigError, match=message):
        method(**options)


def test_what_is_no_gaussian_method_is_refused():
    with pytest.raises(ConfigError, match=r"Nested\.weights"):
        lb.Nested(weights=lb.Dropout())
    with pytest.raises(ConfigError, match="kappa"):
        lb.Nested(kappa=0.0)


def test_models_that_cannot_be_followed_say_what_to_do():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)

        def forward(self, x):
            if x.sum() > 0:  # no tracer knows which way
                x = x * 2
            return self.c(self.b(self.a(x)).relu())

    model = Branching()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ConversionError, match=r"input_shape.*channels="):
        lb.bayesianize_(model, lb.Nested())
    assert type(model.a) is nn.Linear
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    lb.bayesianize_(model, lb.Nested(groups=8, base_groups=1, channels=("a > b > c",)))
    assert lb.set_width_(model, 0.5) == {"a": 0.5}
    assert model(torch.randn(2, 4)).shape == (2, 3)
    with pytest.raises(ConversionError, match="cannot run on the example"):
        lb.plan(mlp(), lb.Nested(input_shape=(5,)))
    assert lb.plan(mlp(), lb.Nested(input_shape=(4,))).converted == ["0", "3"]


def test_nothing_to_order_is_an_error_with_the_reasons():
    with pytest.raises(ConversionError, match="is a model output"):
        lb.bayesianize_(nn.Sequential(nn.Linear(4, 3)), lb.Nested())
    with pytest.raises(ConversionError, match="nothing to order"):
        lb.bayesianize_(nn.Sequential(nn.Linear(4, 3)), lb.NestedDropout())
    plan = lb.bayesianize_(nn.Sequential(nn.Linear(4, 3)), lb.Nested(order=()))  # random weights alone
    assert plan.converted == ["0"]
    with pytest.raises(ConversionError, match="whole network"):
        lb.bayesianize_(mlp(), lb.Ensemble(2, method=lb.Nested()))


NETWORKS = {
    "vgg11_bn": (lambda: vgg11_bn(width=0.125), [f"conv{n}" for n in range(2, 9)], "conv1"),
    "resnext_cifar": (
        lambda: resnext_cifar(depth=11, cardinality=2, base_width=16, width=0.25),
        [f"stage{s}.0.{layer}" for s in (1, 2, 3) for layer in ("reduce", "grouped")],
        "conv1",
    ),
    "mobilenet_v2": (
        lambda: mobilenet_v2(width=0.1),
        [
            f"stage{s}.{b}.expand"
            for s, blocks in zip(range(2, 8), (2, 3, 4, 3, 3, 1), strict=True)
            for b in range(blocks)
        ],
        "conv1",
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_papers_rules(name):
    make, ordered, first = NETWORKS[name]
    model = make()
    plan = lb.bayesianize_(model, nested_rules.RULES[name]())
    assert [unit.name for unit in units(model)] == ordered
    weighted = [n for n, m in make().named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    assert sorted(plan.converted) == sorted(set(weighted) - {first})  # all others are random
    plain = make()
    assert lb.bayesianize_(plain, nested_rules.RULES[name](lb.NestedDropout())).growth == 1.0
    assert [unit.name for unit in units(plain)] == ordered


def test_the_plan_says_what_is_ordered_and_how_coarsely():
    notes = {e.name: e.why for e in lb.plan(mlp(6), lb.Nested()).entries}
    assert notes["0"] == "Nested(); orders 6 channels in 6 groups, 1 always on"
    assert notes["3"] == "Nested(); outputs not ordered: is a model output"


def test_fixed_tails_are_what_they_are_called():
    for tails, options, expected in (
        ("uniform", {}, [0.25, 0.25, 0.25, 0.25]),
        ("geometric", {"rate": 0.5}, [0.5, 0.25, 0.125, 0.125]),
        ("categorical", {"probabilities": (1.0, 2.0, 3.0, 4.0)}, [0.1, 0.2, 0.3, 0.4]),
    ):
        model = mlp()
        lb.bayesianize_(model, lb.Nested(groups=5, base_groups=2, tails=tails, **options))
        assert torch.allclose(lb.importance(model)["0"], torch.tensor(expected))
        assert unscaled_sum(model) is None
        assert not any("logits" in name for name, _ in model.named_parameters())
    narrow = mlp(2)
    lb.bayesianize_(narrow, lb.NestedDropout(groups=4, base_groups=1, tails="geometric", rate=0.5))
    assert torch.allclose(lb.importance(narrow)["0"], torch.tensor([0.75, 0.25]))  # two nodes a channel


def test_the_temperature_falls_with_the_steps():
    model = mlp()
    lb.bayesianize_(model, lb.Nested(temperature=4.0, final_temperature=1.0, anneal_steps=2))
    hooks = lb.callbacks(model)
    state = State(model, torch.optim.SGD(model.parameters(), 0.1))
    seen = []
    for state.step in range(4):
        notify(hooks, "before_step", state)
        seen.append(float(units(model)[0].temperature))
    assert seen == pytest.approx([4.0, 2.0, 1.0, 1.0])
    plain = mlp()
    lb.bayesianize_(plain, lb.Nested())
    assert lb.callbacks(plain) == []


def informative(n=600):
    """Three classes, told apart by the first inputs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, generator=generator)
    return x, (x[:, 0] > 0.3).long() + (x[:, 1] > 0).long()


def test_training_orders_the_channels_and_learns_the_tails():
    torch.manual_seed(0)
    model = mlp()
    lb.bayesianize_(model, lb.Nested(groups=16, base_groups=1))
    start = lb.importance(model)["0"]
    x, y = informative()
    lb.fit(model, (x, y), epochs=12, lr=0.02, batch_size=50, kl_weight=0.01, progress=False)
    assert 0.5 * (lb.importance(model)["0"] - start).abs().sum() > 0.01
    accuracy = {}
    for width in (1 / 16, 0.25, 1.0):
        lb.set_width_(model, width)
        lb.recalibrate_(model, (x,))
        accuracy[width] = float((lb.predict(model, x, samples=8).probs.argmax(1) == y).float().mean())
    assert accuracy[0.25] > 0.8
    assert accuracy[1 / 16] < accuracy[0.25] <= accuracy[1.0] + 0.05


@pytest.mark.parametrize("penalty", [0.0, 0.3])
def test_the_ordered_penalty_prefers_narrow_networks(penalty):
    """Equation 13: lambda sum_j j beta_j with plain weights, the deterministic relative of BN3."""
    torch.manual_seed(0)
    model = mlp()
    method = lb.NestedDropout(groups=8, base_groups=1, tails="learned", tail_weight=0.0, width_penalty=penalty)
    lb.bayesianize_(model, method)
    lb.fit(model, informative(), epochs=5, lr=0.05, batch_size=50, progress=False)
    beta = lb.importance(model)["0"]
    mean = float((beta * torch.arange(1, 9)).sum())
    assert mean < 3.5 if penalty else mean > 4.0


def test_a_mask_a_datum_trains_too():
    torch.manual_seed(0)
    model = mlp()
    lb.bayesianize_(model, lb.Nested(per_sample=True, hard=False))
    lb.fit(model, informative(), epochs=1, batch_size=50, progress=False)
    assert units(model)[0].logits.grad.abs().max() > 0


def _trained(sizes=(6, 40, 3)):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(sizes[0], sizes[1]), nn.ReLU(), nn.Linear(sizes[1], sizes[2]))
    with torch.no_grad():
        model[0].weight.mul_(3.0)  # beyond torch's own initialisation
    return model


def test_predictions_are_at_full_width_until_another_is_asked_for(tmp_path):
    model, x = _trained(), torch.randn(5, 6)
    plain = model(x).softmax(1)
    lb.bayesianize_(model, lb.Nested(groups=8, base_groups=1, weights=lb.MeanField(std=1e-6)))
    full = lb.predict(model, x, samples=8, task="classification", keep_samples=True)
    assert torch.allclose(full.probs, plain, atol=1e-4)
    drawn = {float(model.train()(x).sum()) for _ in range(30)}
    assert len(drawn) > 2  # training draws widths
    model.eval()
    lb.set_width_(model, "sampled")
    assert float(lb.predict(model, x, samples=8, task="classification", keep_samples=True).samples.std(0).max()) > 1e-3
    again = lb.load(lb.save(model, tmp_path / "sampled.safetensors"), into=_trained())
    assert (again[0].orders[0].free, again[0].orders[0].steps) == (False, model[0].orders[0].steps)


def test_the_channels_of_a_trained_network_are_ordered_by_importance():
    model = _trained()
    score = model[0].weight.detach().norm(dim=1) * model[2].weight.detach().norm(dim=0)
    lb.bayesianize_(model, lb.Nested(groups=8, base_groups=1))
    first = model[0].orders[0].kept_channels(1)
    assert sorted(first) == sorted(score.topk(len(first)).indices.tolist())
    fresh = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3))
    lb.bayesianize_(fresh, lb.Nested(groups=8, base_groups=1))
    assert fresh[0].orders[0].kept_channels(1) == [0, 1, 2, 3, 4]
    x = torch.randn(4, 6)
    lb.set_width_(model, 0.5)
    masked = lb.predict(model, x, mean_only=True, task="classification").probs
    cut = lb.extract(model, width=0.5)
    assert torch.allclose(cut(x).softmax(1), masked, atol=1e-5)


def test_layers_of_several_sizes_are_equally_wide_under_given_tails():
    shares = [0.0] * 27
    for groups in (6, 15, 26, 32):
        shares[groups - 6] = 0.25
    model = lb.models.unet(widths=(8, 16, 32, 48))
    lb.bayesianize_(model, lb.Nested(base_groups=6, tails="categorical", probabilities=tuple(shares)))
    every = units(model)
    torch.manual_seed(0)
    drawn = {tuple(unit.drawn(noise) for unit in every) for noise in (every[0].draw.noise() for _ in range(60))}
    shares = sorted([unit.fraction(nodes) for unit, nodes in zip(every, one, strict=True)] for one in drawn)
    assert [round(min(one), 2) for one in shares] == [0.19, 0.44, 0.81, 1.0]
    assert all(max(one) - min(one) <= 1 / 8 for one in shares)  # a channel of the narrowest layers


def test_a_nested_network_pays_for_its_weights_as_often_as_they_are_kept():
    """Equation 12: under uniform tails a middle layer pays for its weights half of the time, a plain one always."""
    sizes = []
    for method in (nested_config.WEIGHTS, lb.Nested(tails="uniform", groups=32, base_groups=1)):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(3)))
        lb.bayesianize_(model, method)
        sizes.append(float(lb.kl_sum(model).detach()))
    keep = sum(range(1, 33)) / 32**2  # the mean over groups of the probability that a group is kept
    assert sizes[1] / sizes[0] == pytest.approx((2 * keep + 1) / 3, rel=1e-3)  # the last layer's outputs are all kept
