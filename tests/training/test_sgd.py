"""SGD whose scales take normalised steps: against torch's own optimisers, schedulers, scalers and checkpoints."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from leanbayes.errors import ConfigError

X, Y = torch.randn(60, 6, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3


def network() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    lb.bayesianize_(model, lb.MeanField(std=0.05))
    return model


def train(model: nn.Module, *optimizers: torch.optim.Optimizer, steps: int = 12, begin: int = 0) -> None:
    for step in range(begin, begin + steps):
        torch.manual_seed(step)
        model.zero_grad()
        (F.cross_entropy(model(X), Y) + lb.kl_sum(model) / len(X)).backward()
        for optimizer in optimizers:
            optimizer.step()


def same(one: nn.Module, other: nn.Module, **tolerance: float) -> None:
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, **tolerance)


@pytest.mark.parametrize("nesterov", [False, True])
def test_means_as_torch_sgd_scales_as_torch_adam(nesterov: bool) -> None:
    ours, theirs = network(), network()
    options: dict[str, Any] = {"momentum": 0.8, "nesterov": nesterov}
    optimizer = lb.SGD(lb.parameter_groups(ours, lr=0.1, scale_lr=0.03, weight_decay=0.01), **options)
    train(ours, optimizer)
    means, scales = lb.parameter_groups(theirs)
    sgd = torch.optim.SGD(means["params"], lr=0.1, weight_decay=0.01, **options)
    adam = torch.optim.Adam(scales["params"], lr=0.03, betas=(0.9, 0.99), eps=1e-15)
    train(theirs, sgd, adam)
    same(ours, theirs, rtol=1e-5, atol=1e-6)


def test_without_scales_it_is_torch_sgd() -> None:
    torch.manual_seed(0)
    ours = nn.Linear(6, 3)
    theirs = copy.deepcopy(ours)
    train(ours, lb.SGD(ours.parameters(), lr=0.1, momentum=0.0))
    train(theirs, torch.optim.SGD(theirs.parameters(), lr=0.1))
    same(ours, theirs)


def test_state_goes_on_bit_for_bit() -> None:
    whole, cut = network(), network()
    train(whole, optimizer := lb.SGD(lb.parameter_groups(whole, lr=0.1)))
    train(cut, first := lb.SGD(lb.parameter_groups(cut, lr=0.1)), steps=5)
    again = lb.SGD(lb.parameter_groups(cut, lr=0.7))
    again.load_state_dict(copy.deepcopy(first.state_dict()))
    train(cut, again, steps=7, begin=5)
    same(whole, cut, rtol=0, atol=0)
    assert [group["lr"] for group in again.param_groups] == [group["lr"] for group in optimizer.param_groups]


def test_schedulers_move_both_rates() -> None:
    model = network()
    optimizer = lb.SGD(lb.parameter_groups(model, lr=0.1, scale_lr=0.02))
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2)
    train(model, optimizer, steps=1)
    cosine.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05, 0.01])
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.1, 0.02], total_steps=10)
    for _ in range(9):
        train(model, optimizer, steps=1)
        cycle.step()
    assert optimizer.param_groups[1]["lr"] < 1e-4


def test_grad_scaler_steps_and_skips() -> None:
    model = network()
    optimizer = lb.SGD(lb.parameter_groups(model, lr=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    before = copy.deepcopy(model.state_dict())
    scaler.scale(F.cross_entropy(model(X), Y)).backward()
    next(model.parameters()).grad[0, 0] = torch.inf  # type: ignore[index]
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    optimizer.zero_grad()
    scaler.scale(F.cross_entropy(model(X), Y)).backward()
    scaler.step(optimizer)
    assert not torch.equal(before["0.posteriors.weight.rho"], model.state_dict()["0.posteriors.weight.rho"])


def test_a_sparse_weight_renews_the_state_of_its_scales() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 30), nn.ReLU(), nn.Linear(30, 3))
    lb.bayesianize_(model, lb.SparseSubspace(density=0.3, interval=8, until=1.0, schedule="constant"))
    optimizer = lb.SGD(lb.parameter_groups(model, lr=0.1))
    lb.fit(model, (X, Y), optimizer=optimizer, epochs=9, batch_size=60, progress=False)
    q: Any = model[0].posteriors["weight"]  # type: ignore[index, union-attr]
    squares = optimizer.state[q.rho]["exp_avg_sq"]
    begun_anew = squares < 0.3 * squares.median()  # one step since the update, where the others have had nine
    assert 0 < int(begun_anew.sum()) < q.rho.numel() / 2


@pytest.mark.parametrize(
    "options", [{"lr": -1}, {"momentum": 1.0}, {"weight_decay": -1}, {"momentum": 0, "nesterov": True}]
)
def test_refuses_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(reversed(options))):
        lb.SGD(network().parameters(), **options)


def test_refuses_what_are_no_parameters() -> None:
    with pytest.raises(ConfigError, match="params: expected several parameters, received 3"):
        lb.SGD(3)  # type: ignore[arg-type]
