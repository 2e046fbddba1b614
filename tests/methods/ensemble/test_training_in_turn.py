"""Members of an ensemble that take turns: in training loops, in `fit`, and in several processes."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.kl import kl_sum
from leanbayes.methods.ensemble.layer import layers, member
from leanbayes.training.callbacks import State, notify

from .helpers import INNER, OPTIMISERS, batches, small, train


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("inner", INNER)
def test_training_in_turn_is_training_apart(inner, optimiser):
    model, members = small(), 3
    lb.bayesianize_(model, lb.Ensemble(members, method=INNER[inner]))
    alone = [member(model, k) for k in range(members)]
    data = list(enumerate(batches(10)))
    train(model, data, OPTIMISERS[optimiser])
    for k, network in enumerate(alone):
        train(network, data[k::members], OPTIMISERS[optimiser])
        trained = member(model, k).state_dict()
        assert trained.keys() == network.state_dict().keys()
        assert all(torch.equal(trained[name], value) for name, value in network.state_dict().items())


def test_without_callbacks_an_own_loop_trains_in_turn_too():
    model = small()
    lb.bayesianize_(model, lb.Ensemble(2))
    optimiser, before = torch.optim.Adam(model.parameters(), lr=0.01), copy.deepcopy(model.state_dict())
    (x, y), *_ = batches(1)
    for step in range(2):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
        moved = {name.split(".")[2] for name, v in model.state_dict().items() if not torch.equal(v, before[name])}
        assert moved == {"0", "1"} if step else {"0"}


def test_the_optimiser_knows_nothing_of_the_others():
    model = small()
    lb.bayesianize_(model, lb.Ensemble(3))
    optimiser = train(model, list(enumerate(batches(2))), OPTIMISERS["adamw"])
    for k in range(3):
        known = [optimiser.state.get(p) for layer in layers(model) for p in layer.members[k].parameters()]
        assert all(known) if k < 2 else not any(known)


def test_the_kl_is_that_of_the_member_that_was_trained():
    model, (x, _) = small(), batches(1)[0]
    lb.bayesianize_(model, lb.Ensemble(3, method=lb.MeanField(prior=lb.Normal()), init="perturb", perturbation=1.0))
    seen = []
    for k in range(3):
        model(x)
        seen.append(kl_sum(model))
        assert torch.equal(seen[-1], kl_sum(member(model, k)))
    assert len({value.item() for value in seen}) == 3


def test_several_passes_of_a_step_are_one_members():
    model, (x, _) = small(), batches(1)[0]
    lb.bayesianize_(model, lb.Ensemble(3))
    hooks, state = lb.callbacks(model), State(model, torch.optim.SGD(model.parameters(), 0.1))
    notify(hooks, "before_step", state)
    assert torch.equal(model(x), model(x))
    notify(hooks, "after_step", state)
    assert not torch.equal(model(x), model(x))


@pytest.mark.parametrize("count", [1, 3, 4, 6])
def test_every_member_meets_every_place_in_the_order_of_the_data(count):
    model, met = small(), {}
    lb.bayesianize_(model, lb.Ensemble(3))

    def note(module, inputs):
        if module.training:
            met.setdefault(model[0].turn.member, []).append(int(inputs[0][0, 0]))

    model[0].register_forward_pre_hook(note)
    x = torch.arange(count).repeat_interleave(5).float().unsqueeze(1).expand(-1, 4)
    loader = list(zip(x.split(5), torch.zeros(count, 5, dtype=torch.long), strict=True))
    lb.fit(model, loader, epochs=6, num_data=5 * count, progress=False)
    for k in range(3):
        assert sorted(met[k]) == sorted(2 * list(range(count)))


class Stop(lb.Callback):
    def __init__(self, at):
        self.at = at

    def after_step(self, state):
        if state.step == self.at:
            raise KeyboardInterrupt


def test_fit_validates_over_all_members_and_goes_on_after_an_interruption(tmp_path):
    data = (torch.randn(40, 4), torch.randint(3, (40,)))
    options = {"val": data, "batch_size": 8, "progress": False, "val_samples": 6}
    results = []
    for interrupted in (False, True):
        torch.manual_seed(0)
        model = small()
        lb.bayesianize_(model, lb.Ensemble(3))
        kept = {"checkpoint": tmp_path / f"{interrupted}", "checkpoint_every": 1}
        if interrupted:
            with pytest.raises(KeyboardInterrupt):
                lb.fit(model, data, epochs=3, callbacks=[Stop(7)], **kept, **options)
            torch.manual_seed(0)
            model = small()
            lb.bayesianize_(model, lb.Ensemble(3))
            kept["resume"] = True
        history = lb.fit(model, data, epochs=3, callbacks=[Stop(None)], **kept, **options)
        results.append((model.state_dict(), history))
    (first, whole), (second, resumed) = results
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert [row["val_nll"] for row in whole.rows] == [row["val_nll"] for row in resumed.rows]
    said = lb.predict(model, data[0], samples=3)
    assert whole.rows[-1]["val_nll"] == pytest.approx(
        float(-said.probs[torch.arange(40), data[1]].log().mean()), rel=1e-4
    )


DISTRIBUTED = """
import sys, torch, torch.distributed as dist
from torch import nn
import leanbayes as lb
from leanbayes.convert.implementation import implementation, implements
from leanbayes.methods.ensemble.layer import member
from leanbayes.training.callbacks import State, notify
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
lb.bayesianize_(model, lb.Ensemble(3))
start = [member(model, k).state_dict() for k in range(3)]
wrapped = nn.parallel.DistributedDataParallel(model)
optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
hooks, state = lb.callbacks(model), State(model, optimiser)
data = torch.randn(7, 2, 6, 4), torch.randint(3, (7, 2, 6))
for x, y in zip(*data):
    notify(hooks, "before_step", state)
    optimiser.zero_grad()
    nn.functional.cross_entropy(wrapped(x[rank]), y[rank]).backward()
    notify(hooks, "after_backward", state)
    optimiser.step()
    notify(hooks, "after_step", state)
torch.save((start, data, model.state_dict(), [member(model, k).state_dict() for k in range(3)]), f"{folder}/{rank}.pt")
dist.destroy_process_group()
"""


def test_two_processes_train_as_one_would_on_the_joint_batches(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", DISTRIBUTED]
    ranks = [subprocess.Popen([*command, str(rank), str(tmp_path)], env=environment) for rank in range(2)]
    try:
        assert [process.wait(timeout=120) for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
    (start, (xs, ys), first, networks), (_, _, second, _) = (torch.load(Path(tmp_path, f"{r}.pt")) for r in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    for k in range(3):
        alone = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        alone.load_state_dict(start[k])
        optimiser = OPTIMISERS["sgd"](alone.parameters())
        for x, y in zip(xs[k::3], ys[k::3], strict=True):
            optimiser.zero_grad()
            nn.functional.cross_entropy(alone(x.flatten(0, 1)), y.flatten()).backward()
            optimiser.step()
        for name, value in alone.state_dict().items():
            assert torch.allclose(networks[k][name], value, atol=1e-6), name
