"""The alternation: counts, survivors, newcomers and the choice of places, against dense twins and brute force."""

import copy
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import leanbayes as lb
from leanbayes.errors import TrainingError
from leanbayes.methods.sparse import growth, optimizer_state
from leanbayes.methods.sparse.mask_updates import replacement_rate
from leanbayes.posteriors.scale import std_from_rho
from leanbayes.training.callbacks import notify

from .loops import Loop, X, Y, always, converted, convolutional, dense_twin, weights

ROOT = Path(__file__).parents[3]


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
