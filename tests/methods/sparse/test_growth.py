"""Where new weights of a sparse layer come in: the places with the largest gradients of the dense weight."""

import copy
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from leanbayes.kernels import library
from leanbayes.kernels.blocked import blocked
from leanbayes.methods.sparse import growth, optimizer_state
from leanbayes.methods.sparse.growth import Activation
from leanbayes.sampling import using

from .loops import Loop, X, Y, always, converted, convolutional, dense_twin, weights

compiled = pytest.mark.skipif(library.reason() is not None, reason=str(library.reason()))


@pytest.mark.parametrize("keep_returning", [True, False])
@pytest.mark.parametrize("method", [lb.SparseSubspace, lb.Rigl])
def test_growth_takes_the_largest_dense_gradients(method, keep_returning, monkeypatch):
    monkeypatch.setattr(growth, "PIECE", 50)  # several pieces a layer
    model = converted(method(**always(keep_returning=keep_returning, replacement=0.5)))
    loop = Loop(model, torch.optim.SGD(model.parameters(), lr=0.1))
    draws = {id(q): q.noise() for q in weights(model)}
    expected = dense_twin(model, draws)
    scores = []
    with using(estimator="weight", draws=draws):
        loop.step(lambda: scores.extend((q.index.clone(), loop.hooks[0].rules.keep_scores(q)) for q in weights(model)))
    for q, gradient, (index, keep) in zip(weights(model), expected, scores, strict=True):
        count = int(0.5 * len(index))
        kept = set(index[keep.argsort(descending=True)[: len(index) - count]].tolist())
        barred = kept if keep_returning else set(index.tolist())
        ranked = [i for i in gradient.abs().argsort(descending=True).tolist() if i not in barred]
        assert set(q.index.tolist()) == kept | set(ranked[:count])


def test_a_weight_that_returns_keeps_its_values():
    index, keep = torch.tensor([4, 7, 9]), torch.tensor([3.0, 1.0, 2.0])
    candidates = torch.tensor([5.0, 1.0]), torch.tensor([0, 1])
    assert optimizer_state.renewed(index, keep, candidates, torch.tensor([0.0, 6.0, 0.5]), 2).tolist() == [4, 7, 0]
    assert optimizer_state.renewed(index, keep, candidates, torch.tensor([0.0, 9.0, 8.0]), 2).tolist() == [4, 7, 9]
    assert sorted(optimizer_state.renewed(index, keep, candidates, None, 2).tolist()) == [0, 1, 4]
    assert optimizer_state.renewed(index, keep, (candidates[0][:1], candidates[1][:1]), None, 3).tolist() == [4, 0, 9]


CONVOLUTIONS = {
    "plain": nn.Conv2d(4, 6, 3),
    "strided": nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0)),
    "dilated": nn.Conv2d(4, 6, 3, dilation=2, padding=2),
    "grouped": nn.Conv2d(4, 6, 3, groups=2, padding=1),
    "depthwise": nn.Conv2d(4, 8, 3, groups=4),
    "same": nn.Conv2d(4, 6, (2, 3), padding="same"),
    "valid": nn.Conv2d(4, 6, 3, padding="valid"),
    "circular": nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"),
    "reflected": nn.Conv2d(4, 6, 3, padding=(2, 1), padding_mode="reflect", stride=2),
    "1d": nn.Conv1d(4, 6, 3, padding=1),
    "3d": nn.Conv3d(4, 6, 2),
    "linear": nn.Linear(7, 6),
}


@pytest.mark.parametrize("piece", [1, 40, 10**6])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_the_dense_gradient_in_pieces_is_autograds(kind, piece, monkeypatch):
    monkeypatch.setattr(growth, "PIECE", piece)
    torch.manual_seed(0)
    module = CONVOLUTIONS[kind]
    x = torch.randn(3, 7) if kind == "linear" else torch.randn(3, 4, *(7,) * (module.weight.ndim - 2))
    outputs = [module(part) for part in (x, 2 * x)]  # a layer that is used twice
    grads = [torch.randn_like(y) for y in outputs]
    expected = sum(torch.autograd.grad(y, module.weight, g)[0] for y, g in zip(outputs, grads, strict=True))
    uses = [growth.Use(module, part, g) for part, g in zip((x, 2 * x), grads, strict=True)]
    pieces = list(growth.gradient_pieces(uses, module.weight.shape, torch.float32))
    assert [start for start, _ in pieces] == [0, *torch.tensor([len(p) for _, p in pieces]).cumsum(0)[:-1].tolist()]
    assert torch.allclose(torch.cat([p for _, p in pieces]).view_as(expected), expected, atol=1e-4)


def test_best_places_by_brute_force():
    scores = torch.rand(60, generator=torch.Generator().manual_seed(0))
    index = torch.tensor([59, 3, 20, 21, 40])
    for count in (1, 10, 55, 100):
        pieces = [(start, scores[start : start + 17]) for start in range(0, 60, 17)]
        (best, places), own = growth.best_places(pieces, index, count)
        free = [i for i in scores.argsort(descending=True).tolist() if i not in index.tolist()][:count]
        assert places.tolist() == free
        assert torch.equal(best, scores[places])
        assert torch.equal(own, scores[index])


@pytest.mark.parametrize("count", [1, 50, 900, 20_000, 30_000])
@pytest.mark.parametrize("values", [2, 10**6], ids=["ties", "hardly any"])
def test_the_highest_of_many_scores(count, values):
    scores = torch.randint(values, (30_000,), generator=torch.Generator().manual_seed(count)).float()
    best, places = growth._highest(scores, count)
    assert torch.equal(best, scores.topk(count).values)
    assert torch.equal(best, scores[places])
    assert len(places.unique()) == count


@pytest.mark.skipif(not growth.bfloat16_is_fast(), reason="the processor has no instructions for bfloat16")
@pytest.mark.parametrize("options", [{"padding": 1}, {"stride": 2, "padding": 1}, {"groups": 2, "padding": "valid"}])
@pytest.mark.parametrize("is_blocked", [False, pytest.param(True, marks=compiled)])
def test_large_convolutions_are_ranked_by_gradients_in_half_precision(options, is_blocked, monkeypatch):
    """The error of a sum of products that are rounded to 8 bits: a hundredth of its size at most."""
    monkeypatch.setattr(growth, "MANY", 0)
    torch.manual_seed(0)
    conv = nn.Conv2d(64, 64, 3, **options)
    x = torch.randn(37, 64, 9, 8)
    y = conv(x)
    grad = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, conv.weight, grad)
    given = [Activation.of(blocked(t) if is_blocked else t) for t in (x, grad)]
    use = growth.Use.of(conv, *given)
    assert use.half
    found = torch.cat([piece for _, piece in growth.gradient_pieces([use], conv.weight.shape, torch.float32)])
    assert found.dtype == torch.float32
    assert (found.view_as(expected) - expected).square().mean().sqrt() < 0.01 * expected.square().mean().sqrt()
    monkeypatch.setattr(growth, "MANY", 2**40)
    assert not growth.Use.of(conv, *given).half


def test_blocked_activations_give_the_same_places_as_dense_ones(monkeypatch):
    """Local reparameterisation of tiny variances: the two paths then differ by rounding alone."""
    x = torch.randn(40, 2, 6, 6, generator=torch.Generator().manual_seed(1))
    found = []
    for dense_above in (1.0, 0.0):
        monkeypatch.setattr("leanbayes.layers.sparse.DENSE_ABOVE", dense_above)
        model = converted(lb.SparseSubspace(**always(std=1e-12)), convolutional())
        Loop(model, torch.optim.SGD(model.parameters(), lr=0.05), x=x, kl_weight=0.1).step()
        found.append([set(q.index.tolist()) for q in weights(model)])
    assert found[0] == found[1]


@pytest.mark.parametrize("addition", ["sample", "mean", "steps"])
@pytest.mark.parametrize("dense_above", [1.0, 0.0])
def test_an_update_lets_the_activations_go(dense_above, addition, monkeypatch):
    """Those of the pass were once kept by hooks that held the tensors they were on, more with every update."""
    monkeypatch.setattr("leanbayes.layers.sparse.DENSE_ABOVE", dense_above)
    model = converted(lb.SparseSubspace(**always(addition=addition, addition_steps=1)), convolutional())
    seen = []
    for layer in model:
        layer.register_forward_hook(lambda layer, args, output: seen.append(weakref.ref(Activation.of(output).values)))
    Loop(model, torch.optim.SGD(model.parameters(), lr=0.05), x=torch.randn(40, 2, 6, 6)).step()
    assert len(seen) >= 8
    assert not any(ref() is not None for ref in seen)


def test_nothing_of_a_layers_size_is_stored():
    model = converted(lb.SparseSubspace(**always(interval=2)))
    loop = Loop(model, torch.optim.Adam(model.parameters()))
    for _ in range(4):
        loop.step()
        kept = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())]
        kept += [v for s in loop.optimizer.state.values() for v in s.values()]
        assert max(t.numel() for t in kept) == 160  # a tenth of 40 x 40
        assert not loop.hooks[0].sums
        assert not any(m._forward_hooks for m in model.modules())
    assert [step for step, _ in loop.hooks[0].updates] == [2, 4]
    assert loop.hooks[0].updates[0][1] > 0


def test_a_layer_that_is_used_twice_is_judged_by_both_uses():
    torch.manual_seed(0)
    shared = nn.Linear(12, 12)
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.ReLU(), nn.Linear(12, 30))
    twin = copy.deepcopy(model)
    converted(lb.Rigl(**always(keep_returning=False)), model)
    for layer, other in zip(model, twin, strict=True):
        if isinstance(other, nn.Linear):
            other.weight.data = layer.posteriors["weight"].mean.detach()
    F.cross_entropy(twin(X), Y).backward()
    old = model[0].posteriors["weight"].index.clone()
    Loop(model, torch.optim.SGD(model.parameters(), lr=0.05)).step()
    new = set(model[0].posteriors["weight"].index.tolist()) - set(old.tolist())
    ranked = twin[0].weight.grad.flatten().abs().index_fill(0, old.long(), -1.0).topk(len(new)).indices
    assert new == set(ranked.tolist())
    assert new
