"""Samples laid out, paired and grouped: each has the law of an independent one, and says the same however computed."""

import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import PredictionError
from leanbayes.methods.patch import norms, norms_and_output
from leanbayes.methods.patch.assignment import Assignment, BalancedAssignment, random_orders
from leanbayes.prediction import draws
from leanbayes.prediction.probe import Probe, probe

KINDS = {"emp": lb.Patch(3, cross=False), "ecmp": lb.Patch(3), "independent": lb.Patch(3, cross=False, balanced=False)}


class Residual(nn.Module):
    """Convolutions and BatchNorm with a shortcut past one of them."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.bn3, self.head = nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)) + x)
        return self.head(self.bn3(x).mean((2, 3)))


def residual(method, output=False):
    torch.manual_seed(0)
    model = Residual()
    model.train()(torch.randn(32, 2, 5, 5))  # statistics
    lb.bayesianize_(model, norms_and_output(model, method) if output else norms(method))
    return model.eval()


@pytest.mark.parametrize("output", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_says_what_it_says_alone(kind, output):
    model, x = residual(KINDS[kind], output), torch.randn(3, 2, 5, 5)
    ask = {"samples": 16, "seed": 2, "task": "regression"}
    alone = lb.predict(model, x, strategy="loop", **ask)
    for options in ({}, {"strategy": "vmap", "chunk": 7}, {"settle": 1e-9}):
        other = lb.predict(model, x, **ask, **options)
        assert torch.allclose(other.samples, alone.samples, atol=1e-5)  # in the same order
        assert torch.allclose(other.mean, alone.mean, atol=1e-5)
    assert lb.predict(model, x, **ask).engine == "vmap"


def batched_rows(module):
    """How many samples each pass through a module had, after the counting and the trial: 1 where it shares them."""
    functorch, found = torch._C._functorch, []

    def note(module, args, output):
        found.append(len(functorch.get_unwrapped(output)) if functorch.is_batchedtensor(output) else 1)

    module.register_forward_hook(note)
    return found


def test_shared_prefixes_are_computed_once():
    model = residual(lb.Patch(3, cross=False))
    rows = batched_rows(model.conv2)
    said = lb.predict(model, torch.randn(4, 2, 5, 5), samples=60, task="regression")
    assert 20 < len(said.samples.unique(dim=0)) <= 27
    assert rows[2:] == [1, 1, 1]  # the components of bn1, not 60 samples; what follows bn2 is cheap


def test_equal_networks_are_asked_once():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    lb.bayesianize_(model, norms(lb.Patch(3, cross=False)))
    rows = batched_rows(model[3])
    said = lb.predict(model, torch.randn(9, 4), samples=60, task="regression")
    assert rows[2:] == [1, 1, 1]
    assert len(said.samples.unique(dim=0)) == 3
    assert said.counts.tolist() == [60] * 9


def test_the_tree_is_cut_where_the_arithmetic_is_least():
    table = torch.cartesian_prod(*[torch.arange(3)] * 3)  # 27 samples, all different
    found = Probe(0.1, (1, 2, 3), (0.1, 0.2, 0.9), (0.9, 0.8, 0.1))
    for depth, passes in enumerate((1, 3, 9)):
        groups = draws.groups(table, depth, 27)
        assert len(groups) == passes
        assert all(len({tuple(table[i, :depth].tolist()) for i in group}) == 1 for group in groups)
        assert sorted(i for group in groups for i in group) == list(range(27))
    cost, groups = draws.arranged(found, table, 27, rows=lambda samples: 1000)
    assert len(groups) == 9
    assert cost == pytest.approx(9 * 0.9 + 27 * 0.1 + 9 * 3 / 1000)
    assert len(draws.arranged(found, table, 27, rows=lambda samples: 1)[1]) == 1  # few data: passes are dear
    assert max(map(len, draws.arranged(found, table, 4, rows=lambda samples: 1)[1])) <= 4


def test_the_probe_knows_what_comes_before_each_draw():
    model = residual(lb.Patch(3, cross=False))
    with torch.no_grad():
        found = probe(model, torch.randn(1, 2, 5, 5))
    first, second = 2 * 4 * 9 * 25, 4 * 4 * 9 * 25
    total = first + second + 12
    assert found.before == pytest.approx((first / total, (first + second) / total, (first + second) / total))
    assert found.after == pytest.approx(((second + 12) / total, 12 / total, 12 / total))
    assert found.largest == 100
    assert found.sites == tuple(id(m.posteriors["weight"].assignment) for m in (model.bn1, model.bn2, model.bn3))


@pytest.mark.parametrize("chunk", [1, 5, 12])
def test_memory_is_bounded_by_the_chunk(chunk):
    model, seen = residual(lb.Patch(3)), []

    def pairs(module, args, output):
        functorch = torch._C._functorch
        inner = functorch.get_unwrapped(output) if functorch.is_batchedtensor(output) else output
        seen.append(inner.numel() // 100)

    model.bn2.register_forward_hook(pairs)
    lb.predict(model, torch.randn(6, 2, 5, 5), samples=9, chunk=chunk, strategy="vmap", task="regression")
    assert max(seen[2:]) <= chunk


def test_antithetic_pairs_cancel_what_is_odd():
    model = nn.Sequential(nn.Linear(3, 2))
    lb.bayesianize_(model, lb.MeanField(std=0.7))
    x = torch.randn(5, 3)
    said = lb.predict(model, x, samples=2, balanced=True, task="regression")
    with lb.using(mean_only=True):
        assert torch.allclose(said.mean, model(x), atol=1e-6)
    loop = lb.predict(model, x, samples=6, balanced=True, task="regression", strategy="loop")
    vmap = lb.predict(model, x, samples=6, balanced=True, task="regression", strategy="vmap")
    assert torch.allclose(loop.samples, vmap.samples, atol=1e-6)
    plain = lb.predict(model, x, samples=6, task="regression")
    assert torch.allclose(loop.samples[::2], plain.samples[::2], atol=1e-6)


def test_either_sample_of_a_pair_has_the_law_of_the_posterior():
    model, x = nn.Sequential(nn.Linear(3, 2)), torch.randn(4, 3)
    lb.bayesianize_(model, lb.MeanField(std=0.4))
    q, n = model[0].posteriors, 3000
    said = lb.predict(model, x, samples=n, balanced=True, task="regression", chunk=10**5).samples
    mean = x @ q["weight"].mean.T + q["bias"].mean
    variance = x.square() @ q["weight"].variance.T + q["bias"].variance
    for half in (said[::2], said[1::2]):
        assert ((half.mean(0) - mean).abs() < 5 * (variance / len(half)).sqrt()).all()
        assert ((half.var(0) / variance - 1).abs() < 5 * math.sqrt(2 / len(half))).all()


def test_balanced_can_be_asked_for_and_refused_whatever_the_method_says():
    balanced, plain = BalancedAssignment((2,), (0.25,) * 4), Assignment((2,), (0.25,) * 4)
    numbers = list(range(8))
    for site in (balanced, plain):
        laid = draws.noise(site, 3, 0, numbers, True)
        assert (laid.reshape(2, 4, 2).sort(1).values == torch.arange(4).reshape(1, 4, 1)).all()
    assert torch.equal(draws.noise(balanced, 3, 0, numbers, None), draws.noise(plain, 3, 0, numbers, True))
    independent = draws.noise(balanced, 3, 0, numbers, False)
    assert torch.equal(independent, draws.noise(plain, 3, 0, numbers, None))
    assert torch.equal(independent[5:6], draws.noise(plain, 3, 0, [5], False))
    counts = draws.noise(balanced, 3, 0, list(range(2000)), False).reshape(-1).bincount() / 4000
    assert ((counts - 0.25).abs() < 5 * math.sqrt(0.25 / 4000)).all()


@pytest.mark.parametrize("count", [3, 8])
def test_all_orders_are_as_likely(count):
    orders = random_orders((20000,), count, torch.Generator().manual_seed(0))
    assert (orders.sort(-1).values == torch.arange(count)).all()
    for place in (0, count - 1):
        share = orders[:, place].long().bincount(minlength=count) / 20000
        assert ((share - 1 / count).abs() < 5 * math.sqrt(1 / count / 20000)).all()


@pytest.mark.parametrize("method", [lb.Patch(4, perturbation=0.5), lb.Patch(4, cross=False, perturbation=0.5)])
def test_balanced_is_never_worse_than_independent(method):
    """One-sided, over 20 repeats: the error of the predictive mean at equal S, against very many samples."""
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(16, 4)
    lb.bayesianize_(model, method)
    ask = {"task": "classification", "strategy": "vmap", "chunk": 10**5}
    truth = lb.predict(model, x, samples=3000, seed=99, balanced=False, **ask).probs

    def errors(balanced):
        said = (lb.predict(model, x, samples=8, seed=s, balanced=balanced, **ask).probs for s in range(20))
        return torch.stack([(probs - truth).square().mean() for probs in said])

    gain = errors(False) - errors(True)
    assert gain.mean() > 1.73 * gain.std() / math.sqrt(20)  # t with 19 degrees of freedom, 5 %


@pytest.mark.parametrize(
    ("options", "message"), [({"balanced": 1}, "True, False"), ({"balanced": True, "estimator": "local"}, "weight")]
)
def test_bad_options_are_refused(options, message):
    model = nn.Sequential(nn.Linear(2, 2))
    lb.bayesianize_(model, lb.MeanField())
    with pytest.raises(PredictionError, match=message):
        lb.predict(model, torch.ones(1, 2), task="classification", **options)
