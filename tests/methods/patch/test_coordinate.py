"""Coordinate descent: one group moves, the other stays exactly where it is."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import ConfigError, TrainingError
from leanbayes.methods.patch.coordinate import CoordinateDescent, parameter_groups
from leanbayes.training.callbacks import Callback, State


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    lb.bayesianize_(model, lb.Patch(3))
    return model


class Moves(Callback):
    """Which parameters a step has moved."""

    def before_step(self, state):
        self.before = {n: p.detach().clone() for n, p in state.model.named_parameters()}

    def __init__(self):
        self.seen = []

    def after_step(self, state):
        moved = {n for n, p in state.model.named_parameters() if not torch.equal(p, self.before[n])}
        self.seen.append((state.epoch, moved))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("first", ["shared", "patch"])
def test_groups_take_turns_and_nothing_moves_what_is_held(first, optimizer):
    model, moves = network(), Moves()
    options = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
    descent = optimizer(model.parameters(), lr=0.05, weight_decay=0.1, **options)
    data = torch.randn(32, 4), torch.randint(2, (32,))
    turns = [CoordinateDescent(first=first), moves]
    lb.fit(model, data, epochs=4, batch_size=16, optimizer=descent, callbacks=turns, progress=False)
    names = {id(p): n for n, p in model.named_parameters()}
    patches, shared = ({names[id(p)] for p in group} for group in parameter_groups(model))
    assert patches == {n for n in names.values() if n.endswith("loc")}
    assert patches | shared == set(names.values())
    for epoch, moved in moves.seen:
        assert moved == (shared if (epoch % 2 == 0) == (first == "shared") else patches)


def test_turns_by_steps():
    turns = CoordinateDescent(every=2, unit="step", first="patch")
    states = [State(network(), None, step=s) for s in range(6)]
    assert [turns.turn(s) for s in states] == ["patch", "patch", "shared", "shared", "patch", "patch"]


@pytest.mark.parametrize("options", [{"every": 0}, {"every": 1.5}, {"unit": "batch"}, {"first": "both"}])
def test_bad_options_are_refused(options):
    with pytest.raises(ConfigError, match="CoordinateDescent"):
        CoordinateDescent(**options)


def test_a_model_without_patches_is_refused_before_anything_moves():
    model, data = nn.Sequential(nn.Linear(4, 2)), (torch.randn(8, 4), torch.randint(2, (8,)))
    before = model[0].weight.detach().clone()
    with pytest.raises(TrainingError, match=r"lb\.Patch"):
        lb.fit(model, data, epochs=1, callbacks=[CoordinateDescent()], progress=False, task="classification")
    assert torch.equal(model[0].weight, before)


def test_turns_by_epochs_in_a_loop_of_ones_own():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    lb.bayesianize_(model, {nn.BatchNorm1d: lb.Patch(3)})
    elbo = lb.ELBO("classification", num_data=30)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    following = lb.follow(model, optimizer, elbo, callbacks=[CoordinateDescent()])
    patches, shared = parameter_groups(model)
    moved = []
    for _ in range(4):
        before = [[p.clone() for p in group] for group in (patches, shared)]
        for x, y in zip(torch.randn(30, 4).split(8), torch.randint(2, (30,)).split(8), strict=True):
            elbo(model=model, outputs=model(x), targets=y).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        groups = zip((patches, shared), before, strict=True)
        moved.append([any(not torch.equal(p, q) for p, q in zip(g, b, strict=True)) for g, b in groups])
    assert moved == [[False, True], [True, False]] * 2
    assert following.state.epoch == 4


def test_the_one_value_of_drop_connect_is_shared():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    lb.bayesianize_(model, {nn.Linear: lb.DropConnect(0.2), nn.BatchNorm1d: lb.Patch(3)})
    assert [len(group) for group in parameter_groups(model)] == [2, 4]
