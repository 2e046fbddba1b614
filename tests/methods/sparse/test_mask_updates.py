"""The alternation: counts, survivors, newcomers and the choice of places, against dense twins and brute force."""

import copy
import math
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from leanbayes.errors import TrainingError
from leanbayes.methods.sparse import growth, optimizer_state
from leanbayes.methods.sparse.growth import Activation
from leanbayes.methods.sparse.mask_updates import replacement_rate
from leanbayes.posteriors.scale import std_from_rho
from leanbayes.sampling import using
from leanbayes.training.callbacks import State, notify

ROOT = Path(__file__).parents[3]
X, Y = torch.randn(40, 12, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3))


def converted(method, model=None):
    model = model or network()
    lb.bayesianize_(model, method)
    return model


def weights(model):
    return [m.posteriors["weight"] for m in model.modules() if getattr(m, "subspace", None)]


class Loop:
    """A user's own loop, which can be looked into between the optimiser's step and the update."""

    def __init__(self, model, optimizer, total=None, x=X, y=Y, kl_weight=1.0):
        self.model, self.optimizer, self.x, self.y = model, optimizer, x, y
        self.hooks = lb.callbacks(model)
        self.state = State(model, optimizer, total_steps=total)
        self.elbo = lb.ELBO("classification", num_data=len(x), kl_weight=kl_weight)
        self.state.closure = lambda: self.elbo(model, model(x), y).loss
        notify(self.hooks, "fit_start", self.state)

    def step(self, look=lambda: None):
        notify(self.hooks, "before_step", self.state)
        self.optimizer.zero_grad()
        self.elbo(self.model, self.model(self.x), self.y).loss.backward()
        notify(self.hooks, "after_backward", self.state)
        self.optimizer.step()
        self.state.step += 1
        look()
        notify(self.hooks, "after_step", self.state)


def always(**options):
    return {"density": 0.1, "interval": 1, "schedule": "constant", "until": 1.0, **options}


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.001, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, initial_accumulator_value=0.1),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", [lb.SparseSubspace, lb.Rigl])
def test_counts_stay_and_survivors_keep_value_and_state_bit_for_bit(method, optimizer):
    model = converted(method(**always(keep_returning=False)))
    loop = Loop(model, OPTIMIZERS[optimizer](model.parameters()))
    counts = [len(q.index) for q in weights(model)]
    objects = [(p, p.data_ptr()) for p in model.parameters()]
    for _ in range(3):
        before = []

        def look(before=before):
            for q in weights(model):
                for name, p in q.named_parameters():
                    state = {k: v.clone() for k, v in loop.optimizer.state[p].items() if isinstance(v, torch.Tensor)}
                    before.append((q, q.index.clone(), name, p.detach().clone(), state))

        loop.step(look)
        assert [len(q.index) for q in weights(model)] == counts
        assert all(len(q.index.unique()) == len(q.index) for q in weights(model))
        for q, index, name, value, state in before:
            stays, p = q.index == index, getattr(q, name)
            assert int((~stays).sum()) == int(0.3 * len(index))
            assert not set(q.index[~stays].tolist()) & set(index.tolist())
            assert torch.equal(p[stays], value[stays])
            start = 0.0 if name == "loc" else std_from_rho(value[stays].double()).mean()
            new = p[~stays] if name == "loc" else std_from_rho(p[~stays])
            assert torch.allclose(new.double(), torch.as_tensor(start, dtype=torch.double), rtol=1e-5)
            for key, old in state.items():
                now = loop.optimizer.state[p][key]
                if old.shape != p.shape:
                    assert torch.equal(now, old)
                    continue
                assert torch.equal(now[stays], old[stays])
                assert (now[~stays] == (0.1 if key == "sum" else 0.0)).all()
    assert [(p, p.data_ptr()) for p in model.parameters()] == objects


def dense_twin(model, draws):
    """The model with dense weights that hold the same values, and their gradients at every place."""
    twin = network()
    for layer, other in zip(model, twin, strict=True):
        if isinstance(other, nn.Linear):
            q = layer.posteriors["weight"]
            other.weight.data = q.sample(draws.get(id(q))).detach()
            other.bias.data = layer.bias.detach().clone()
    F.cross_entropy(twin(X), Y).backward()
    return [m.weight.grad.flatten() for m in twin if isinstance(m, nn.Linear)]


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


def convolutional():
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3)
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3))


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


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_updates_follow_the_schedule(schedule):
    model = converted(lb.SparseSubspace(**always(schedule=schedule, interval=2, until=0.5, keep_returning=False)))
    loop = Loop(model, torch.optim.SGD(model.parameters(), lr=0.05), total=16)
    for _ in range(16):
        loop.step()
    rates = [
        {"cosine": 0.15 * (1 + math.cos(math.pi * t / 8)), "linear": 0.3 * (1 - t / 8)}.get(schedule, 0.3)
        for t in (2, 4, 6)
    ]
    counts = [sum(int(r * len(q.index)) for q in weights(model)) for r in rates]
    assert loop.hooks[0].updates == list(zip((2, 4, 6), counts, strict=True))
    assert replacement_rate(schedule, 0.3, 8, 8) == 0


def test_the_mean_over_steps_is_what_it_says(monkeypatch):
    monkeypatch.setattr(growth, "PIECE", 50)
    model = converted(lb.Rigl(**always(interval=3, keep_returning=False)))
    method = lb.SparseSubspace(**always(interval=3, addition="steps", addition_steps=2, keep_returning=False))
    loop = Loop(model, torch.optim.SGD(model.parameters(), lr=0.3))
    loop.hooks[0].addition, method_of = "steps", loop.hooks[0].method
    object.__setattr__(method_of, "addition_steps", method.addition_steps)  # deterministic, so that a twin can follow
    totals = [0.0] * 3
    for step in range(3):
        if step:
            totals = [t + g.abs() for t, g in zip(totals, dense_twin(model, {}), strict=True)]
        before = [set(q.index.tolist()) for q in weights(model)]
        loop.step()
        assert bool(loop.hooks[0].sums) == (step == 1)
    for q, total, old in zip(weights(model), totals, before, strict=True):
        ranked = [i for i in total.argsort(descending=True).tolist() if i not in old]
        assert set(q.index.tolist()) - old == set(ranked[: int(0.3 * len(old))])


def test_addition_at_the_means_leaves_no_other_trace():
    method = lb.SparseSubspace(**always(addition="mean", keep_returning=False, std=0.5, prior=lb.Normal()))
    model = converted(method, convolutional())
    x = torch.randn(40, 2, 6, 6, generator=torch.Generator().manual_seed(1))
    twin = convolutional()
    for name, other in twin.named_children():
        if getattr(model[int(name)], "subspace", None):
            other.weight.data = model[int(name)].posteriors["weight"].mean.detach()
    F.cross_entropy(twin(x), Y).backward()
    reference = copy.deepcopy(model)
    loop, plain = (Loop(m, torch.optim.SGD(m.parameters(), lr=0.05), x=x) for m in (model, reference))
    plain.hooks = []
    for one in (plain, loop):
        torch.manual_seed(5)
        moments = []
        one.step(lambda moments=moments, one=one: moments.append([t.clone() for t in one.model.state_dict().values()]))
        one.moments = moments[0]
    assert all(torch.equal(a, b) for a, b in zip(loop.moments, plain.moments, strict=True))
    for q, old, other in zip(weights(model), weights(reference), (twin[0], twin[3], twin[7]), strict=True):
        new = set(q.index.tolist()) - set(old.index.tolist())
        ranked = other.weight.grad.flatten().abs().index_fill(0, old.index.long(), -1.0).topk(len(new)).indices
        assert new == set(ranked.tolist())


def test_addition_at_the_means_needs_a_closure():
    model = converted(lb.SparseSubspace(**always(addition="mean")))
    loop = Loop(model, torch.optim.SGD(model.parameters(), lr=0.05))
    loop.state.closure = None
    with pytest.raises(TrainingError, match="closure"):
        loop.step()


def test_frozen_pruned_and_full_layers_stay():
    model = converted(
        {"0": lb.SparseSubspace(**always()), "2": lb.SparseSubspace(**always()), "4": lb.Rigl(**always(density=1.0))}
    )
    frozen, pruned, full = weights(model)
    frozen.loc.requires_grad_(False)
    pruned.keep = torch.ones(pruned.shape, dtype=torch.bool)
    before = [q.index.clone() for q in weights(model)]
    loop = Loop(model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05))
    loop.step()
    assert all(torch.equal(q.index, old) for q, old in zip((frozen, pruned, full), before, strict=True))


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


class Factored(torch.optim.SGD):
    """Keeps a matrix for a vector, as second-order optimisers do."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["preconditioner"] = torch.outer(p.grad.flatten(), p.grad.flatten())


@pytest.mark.parametrize("kind", [Factored, torch.optim.LBFGS])
def test_optimisers_with_other_state_are_refused_at_the_start(kind):
    model = converted(lb.SparseSubspace(**always()))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TrainingError, match=kind.__name__):
        lb.fit(model, (X, Y), optimizer=kind, epochs=1, progress=False)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("name", ["Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop"])
def test_other_optimisers_of_torch_are_fine_and_the_question_leaves_no_trace(name):
    model = converted(lb.SparseSubspace(**always()))
    optimizer = getattr(torch.optim, name)(model.parameters())
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # binds the step to the optimiser
    before = copy.deepcopy(model.state_dict())
    optimizer_state.check_optimizer(optimizer, weights(model)[0].loc)
    assert not optimizer.state
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_training_of_unknown_length_is_refused_unless_it_does_not_matter():
    model = converted(lb.SparseSubspace())
    with pytest.raises(TrainingError, match="total_steps"):
        Loop(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_layers_that_no_hook_reaches_are_an_error():
    model = converted(lb.Rigl(**always()))
    loop = Loop(model, torch.optim.SGD(model.parameters(), lr=0.1))
    notify(loop.hooks, "before_step", loop.state)
    notify(loop.hooks, "after_backward", loop.state)
    loop.state.step += 1
    with pytest.raises(TrainingError, match="compiled"):
        notify(loop.hooks, "after_step", loop.state)


class Killed(Exception):
    pass


class KillAt:
    def __init__(self, step):
        self.step = step

    def before_step(self, state):
        if state.step == self.step:
            raise Killed


@pytest.mark.parametrize("addition", ["sample", "steps"])
def test_a_resumed_run_is_bit_identical(addition, tmp_path):
    method = lb.SparseSubspace(density=0.1, interval=4, addition=addition, addition_steps=3, until=1.0)

    def run(path, stop, resume=False):
        model = converted(method)
        options = {"epochs": 3, "batch_size": 8, "checkpoint": path, "checkpoint_every": 1, "resume": resume}
        lb.fit(model, (X, Y), callbacks=[KillAt(stop)], progress=False, **options)
        return model

    whole = run(tmp_path / "a", stop=-1)
    with pytest.raises(Killed):
        run(tmp_path / "b", stop=7)  # in the middle of what "steps" sums up
    resumed = run(tmp_path / "b", stop=-1, resume=True)
    for (name, a), b in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_two_processes_choose_the_same_places(tmp_path):
    command = [sys.executable, "-m", "tests.methods.sparse.mask_updates_gloo"]
    processes = [subprocess.Popen([*command, str(rank), str(tmp_path)], cwd=ROOT) for rank in range(2)]
    try:
        assert [process.wait(timeout=120) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2))
    assert first["moved"] == second["moved"] > 0
    assert all(torch.equal(first["model"][name], second["model"][name]) for name in first["model"])
    assert first["expected"] == first["found"]
