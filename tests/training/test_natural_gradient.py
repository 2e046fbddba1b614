"""Natural-gradient SGD: the recursion against dense matrices, the limits, and what it is for."""

from __future__ import annotations

import copy
import io
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from leanbayes.errors import ConfigError, TrainingError
from leanbayes.training.natural_gradient import NaturalGradientSGD, precondition, start, update


def _gradients(count: int, rows: int = 20, d: int = 12, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.logspace(0, -2, d, dtype=torch.float64)
    return [torch.randn(rows, d, dtype=torch.float64, generator=generator) * scales for _ in range(count)]


def test_an_update_is_one_round_of_subspace_iteration() -> None:
    """The paper's way: Z = R T^2 R^T = U C U^T, R' = C^{-1/2} U^T R T, D' = C^{1/2} - rho'."""
    first, second = _gradients(2)
    before = start(first, rank=5)
    target = 0.1 * second.T @ second / 20 + 0.9 * before.dense()
    y = before.basis @ target
    c, u = torch.linalg.eigh(y @ y.T)
    rho = (target.trace() - c.sqrt().sum()) / (12 - 5)
    basis = (u / c.sqrt()).T @ y
    after = update(before, second, eta=0.1)
    expected = basis.T @ torch.diag(c.sqrt() - rho) @ basis + rho * torch.eye(12).double()
    torch.testing.assert_close(after.dense(), expected)
    torch.testing.assert_close(after.dense().trace(), target.trace())
    torch.testing.assert_close(after.basis @ after.basis.T, torch.eye(5).double())


def test_the_estimate_finds_the_fisher_matrix() -> None:
    """Fed the same second moment again and again, it becomes its best approximation of this form."""
    x = _gradients(1)[0]
    fisher = start(x, rank=5)
    for _ in range(200):
        fisher = update(fisher, x, eta=0.1)
    values, vectors = torch.linalg.eigh(x.T @ x / 20)
    rest = values[:-5].mean()
    best = (vectors[:, -5:] * (values[-5:] - rest)) @ vectors[:, -5:].T + rest * torch.eye(12).double()
    torch.testing.assert_close(fisher.dense(), best, rtol=1e-6, atol=1e-6 * float(values[-1]))


def test_preconditioning_is_a_solve() -> None:
    x, other = _gradients(2)
    fisher = start(x, rank=5)
    dense = fisher.dense()
    smoothed = dense + 4 * dense.trace() / 12 * torch.eye(12).double()
    expected = torch.linalg.solve(smoothed, other.T).T
    got = precondition(fisher, other, alpha=4.0)
    torch.testing.assert_close(got / got.norm(), expected / expected.norm())


def test_a_step_is_the_two_sided_solve_at_the_norm_of_the_gradient() -> None:
    torch.manual_seed(0)
    p = nn.Parameter(torch.zeros(6, 2, 3, dtype=torch.float64))
    optimizer = NaturalGradientSGD([p], lr=0.5, momentum=0)
    for step in range(14):
        x = torch.randn(6, 6, dtype=torch.float64) * torch.logspace(0, -3, 6)
        if step == 13:
            state = optimizer.state[p]
            rows, columns = (
                (state[f"{s}_basis"].T * state[f"{s}_values"]) @ state[f"{s}_basis"]
                + state[f"{s}_rest"] * torch.eye(6).double()
                for s in ("rows", "columns")
            )
        before = p.detach().clone()
        p.grad = x.view(6, 2, 3).clone()
        optimizer.step()
        moved = (before - p.detach()).flatten(1) / 0.5
        torch.testing.assert_close(moved.norm(), x.norm())
        assert torch.equal(p.grad.flatten(1), x)  # the gradient itself is left alone
    a, b = (m + 4 * m.trace() / 6 * torch.eye(6).double() for m in (rows, columns))
    natural = torch.linalg.solve(a, x) @ torch.linalg.inv(b)
    torch.testing.assert_close(moved, natural * x.norm() / natural.norm())
    assert not torch.allclose(moved, x, rtol=0.1)
    assert state["rows_basis"].shape == (3, 6)


def _train(model: nn.Module, optimizer: Optimizer, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        torch.manual_seed(step)
        x, y = torch.randn(16, 1, 6, 6), torch.randint(3, (16,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


@pytest.mark.parametrize(("alpha", "tolerance"), [(math.inf, 0.0), (1e7, 1e-4)])
def test_infinite_smoothing_is_sgd(alpha: float, tolerance: float) -> None:
    ours, theirs = _network(), _network()
    _train(ours, NaturalGradientSGD(ours.parameters(), lr=0.1, weight_decay=0.01, alpha=alpha), 15)
    _train(theirs, SGD(theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01), 15)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    finite = _network()
    _train(finite, NaturalGradientSGD(finite.parameters(), lr=0.1, weight_decay=0.01), 15)
    assert (finite[4].weight - theirs[4].weight).abs().max() > 0.01


def test_vectors_and_scalars_take_plain_steps() -> None:
    grads = [torch.randn(5), torch.tensor(2.0), torch.zeros(0, 3)]
    ours, theirs = ([nn.Parameter(torch.zeros_like(g)) for g in grads] for _ in range(2))
    for params, kind in ((ours, NaturalGradientSGD), (theirs, SGD)):
        optimizer = kind(params, lr=0.1, momentum=0.9)
        for _ in range(3):
            for p, g in zip(params, grads, strict=True):
                p.grad = g.clone()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_state_dict_goes_on_exactly() -> None:
    through = _network()
    optimizer = NaturalGradientSGD(through.parameters(), lr=0.1)
    _train(through, optimizer, 13)
    resumed = copy.deepcopy(through)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    again = NaturalGradientSGD(resumed.parameters(), lr=0.3)
    again.load_state_dict(torch.load(file, weights_only=True))
    _train(through, optimizer, 6, first=13)
    _train(resumed, again, 6, first=13)
    for a, b in zip(through.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
    for p, q in zip(through.parameters(), resumed.parameters(), strict=True):
        kept, loaded = optimizer.state[p], again.state[q]
        assert kept.keys() == loaded.keys()
        assert all(torch.equal(torch.as_tensor(kept[key]), torch.as_tensor(loaded[key])) for key in kept)


def _steps_to(target: float, loss: Callable[[Tensor], Tensor], optimizer: Optimizer, most: int) -> int:
    """How many steps an optimiser of one matrix needs; ``most`` if it needs more, or diverges."""
    (w,) = optimizer.param_groups[0]["params"]
    for step in range(most):
        value = loss(w)
        if value.item() <= target:
            return step
        if not value.item() < 1e9:
            return most
        (w.grad,) = torch.autograd.grad(value, w)
        optimizer.step()
    return most


@pytest.mark.parametrize(("momentum", "accuracy", "factor"), [(0.0, 1e-2, 3), (0.9, 1e-4, 4)])
def test_an_ill_conditioned_quadratic_is_solved_faster_than_by_sgd(
    momentum: float, accuracy: float, factor: float
) -> None:
    """1/2 tr((W - W*)^T B (W - W*) A), eigenvalues of A and B from 1 to 1e-4, each at its own best step length."""
    torch.manual_seed(0)
    eigenvalues = torch.logspace(0, -4, 32, dtype=torch.float64)
    a, b = ((q * eigenvalues) @ q.T for q in (torch.linalg.qr(torch.randn(32, 32).double())[0] for _ in range(2)))
    star = torch.randn(32, 32).double()

    def loss(w: Tensor) -> Tensor:
        return 0.5 * ((b @ (w - star) @ a) * (w - star)).sum()

    target = accuracy * loss(torch.zeros(32, 32).double()).item()
    rates = [2 ** (k / 2) for k in range(-1, 8)]
    best, at = {}, {}
    for kind in (SGD, NaturalGradientSGD):
        best[kind] = 1500
        for rate in reversed(rates):  # from those that diverge at once
            w = torch.zeros(32, 32, dtype=torch.float64, requires_grad=True)
            steps = _steps_to(target, loss, kind([w], lr=rate, momentum=momentum), most=best[kind])
            if steps < best[kind]:
                best[kind], at[kind] = steps, rate
        assert rates[0] < at[kind] < rates[-1], "the best step length should lie within the grid"
    assert best[NaturalGradientSGD] * factor <= best[SGD], best


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (1, 1), (2, 2)])
def test_thin_matrices(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    p = nn.Parameter(torch.zeros(shape))
    optimizer = NaturalGradientSGD([p], lr=1.0, momentum=0, rank=7)  # more than there is
    p.grad = torch.randn(shape)
    optimizer.step()
    torch.testing.assert_close(p.norm(), p.grad.norm())


def test_zero_and_tiny_gradients_do_no_harm() -> None:
    p = nn.Parameter(torch.ones(4, 3))
    optimizer = NaturalGradientSGD([p], lr=1.0, momentum=0)
    for scale in (0.0, 0.0, 1e-12, 1.0):
        torch.manual_seed(0)
        p.grad = scale * torch.randn(4, 3)
        before = p.detach().double()
        optimizer.step()
        torch.testing.assert_close((p.detach().double() - before).norm(), p.grad.double().norm(), atol=1e-6, rtol=1e-5)


def test_a_broken_gradient_does_not_reach_the_estimates() -> None:
    p = nn.Parameter(torch.ones(4, 3))
    optimizer = NaturalGradientSGD([p], lr=0.1, momentum=0)
    for value, step in itertools.product((float("nan"), 1.0, float("inf")), range(2)):
        torch.manual_seed(step)
        p.grad = value * torch.randn(4, 3)
        optimizer.step()
    assert optimizer.state[p]["steps"] == 2
    assert all(torch.isfinite(torch.as_tensor(value)).all() for value in optimizer.state[p].values())


def test_a_closure_is_called_with_gradients() -> None:
    p = nn.Parameter(torch.ones(2, 2))
    optimizer = NaturalGradientSGD([p], lr=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4
    assert (p < 1).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, r"lr: expected a finite number of at least 0, received -1.0"),
        ({"lr": "fast"}, r"lr: .*received 'fast'"),
        ({"momentum": 1.0}, r"momentum: expected a finite number of at least 0 and below 1, received 1.0"),
        ({"weight_decay": float("nan")}, r"weight_decay: .*received nan"),
        ({"alpha": 0.0}, r"alpha: expected a finite number above 0"),
        ({"eta": 1.0}, r"eta: expected a finite number above 0 and below 1, received 1.0"),
        ({"rank": 0}, r"rank: expected a whole number of at least 1, received 0"),
        ({"rank": 2.5}, r"rank: .*received 2.5"),
        ({"update_period": True}, r"update_period: .*received True"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    p = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(ConfigError, match=message):
        NaturalGradientSGD([p], **options)
    fine = NaturalGradientSGD([nn.Parameter(torch.ones(1))])
    with pytest.raises(ConfigError, match=message):
        fine.add_param_group({"params": [p], **options})
    assert len(fine.param_groups) == 1


def test_what_it_cannot_train_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"float32 or float64, received torch.bfloat16; keep them in float32"):
        NaturalGradientSGD([nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))])
    embedding = nn.Embedding(5, 3, sparse=True)
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(TrainingError, match="dense gradients"):
        NaturalGradientSGD(embedding.parameters()).step()
