"""Natural-gradient SGD with an online low-rank estimate of the Fisher matrix (Povey, Zhang and Khudanpur, 2015).

The functions keep the estimate of one dimension of a matrix of gradients; the optimiser has two for every matrix-shaped
parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from .. import checks
from ..errors import ConfigError, TrainingError
from .sgd import SCALES, as_params, normalised_step_, with_momentum

_FLOOR = 5e-4  # eigenvalues are at least this fraction of the largest one (the paper's delta)
_TINY = 1e-30  # and at least this, where all gradients so far are zero
_EAGER = 10  # steps at the start that all update the estimate
_ROUNDS = 3  # of subspace iteration on the first gradient


class Fisher(NamedTuple):
    """F = basis^T diag(values) basis + rest I, of shape (d, d): low rank plus a multiple of the identity.

    Shapes: basis (rank, d) with orthonormal rows, values (rank,), rest ().
    """

    basis: Tensor
    values: Tensor
    rest: Tensor

    def dense(self) -> Tensor:
        """The matrix itself, shape (d, d)."""
        return (self.basis.T * self.values) @ self.basis + self.rest * torch.eye(self.basis.shape[1]).to(self.basis)


def start(x: Tensor, rank: int) -> Fisher:
    """The estimate from the first gradient alone: x^T x / N, compressed.

    Shapes: x (N, d).

    >>> x = torch.diag(torch.tensor([3.0, 2.0, 0.0, 0.0]))
    >>> start(x, rank=2).dense().diagonal().round(decimals=2).tolist()
    [2.25, 1.0, 0.0, 0.0]
    """
    d = x.shape[1]
    stripes = torch.arange(d, device=x.device) % rank == torch.arange(rank, device=x.device)[:, None]
    basis = stripes.to(x) * torch.where(torch.arange(d, device=x.device) < rank, 1.1, 1.0).to(x)
    fisher = Fisher(basis / basis.norm(dim=1, keepdim=True), x.new_zeros(rank), x.new_zeros(()))
    for _ in range(_ROUNDS):
        fisher = update(fisher, x, eta=1.0)
    return fisher


def update(fisher: Fisher, x: Tensor, eta: float) -> Fisher:
    """T = eta x^T x / N + (1 - eta) F, compressed to low rank plus identity by one round of subspace iteration.

    With basis T = U S V^T the new basis is V^T, its eigenvalues in T are about S, and what T's trace has besides is
    spread evenly over the other d - rank directions. (The paper takes S and V from an eigendecomposition of a rank by
    rank matrix; the singular values are the same numbers, and the basis stays orthonormal without repairs.)

    Shapes: x (N, d).
    """
    basis, values, rest = fisher
    rank, d = basis.shape
    projected = (eta / len(x)) * ((x @ basis.T).T @ x) + (1 - eta) * (values + rest)[:, None] * basis
    s, v = torch.linalg.svd(projected, full_matrices=False)[1:]
    trace = (eta / len(x)) * x.square().sum() + (1 - eta) * (values.sum() + d * rest)
    floor = (_FLOOR * s[0]).clamp(min=_TINY)
    rest = ((trace - s.sum()) / (d - rank)).maximum(floor)
    return Fisher(v, (s - rest).maximum(floor), rest)


def precondition(fisher: Fisher, x: Tensor, alpha: float) -> Tensor:
    """x G^{-1} up to a factor, where G = F + alpha tr(F) / d I is the smoothed Fisher matrix.

    G = basis^T diag(values) basis + beta I, so G^{-1} beta = I - basis^T diag(values / (values + beta)) basis.

    Shapes: x (N, d) -> (N, d).
    """
    basis, values, rest = fisher
    beta = rest + alpha * (values.sum() / basis.shape[1] + rest)
    return x - ((x @ basis.T) * (values / (values + beta))) @ basis


class NaturalGradientSGD(Optimizer):
    r"""SGD with momentum, where matrix-shaped parameters descend along an approximate natural gradient.

    A gradient X of shape (out, rest), convolutions flattened, becomes c A^{-1} X B^{-1}. B estimates E[X^T X], A
    estimates E[X X^T], each low rank plus identity, moving average over steps, smoothed by alpha times its mean
    eigenvalue; c keeps the norm of X (Povey et al., 2015, "Parallel training of DNNs with natural gradient and
    parameter averaging", the online method). The smoothing is heavy: it slows directions of large
    gradients rather than speeding up the others. Vectors (biases, norm layers) take plain steps, groups of scales
    (`parameter_groups`) those of `leanbayes.SGD`.

    The paper's estimates see a gradient per datum; an optimiser sees their mean only, so that here the rows of X stand
    for data of B and its columns for data of A. That is also how variational nested dropout's optimiser does it.

    lr, momentum, weight_decay: as in torch.optim.SGD (weight decay is part of the gradient). alpha: the smoothing;
    math.inf gives SGD. rank: of the estimates, by default min((d + 1) // 2, 80); d - 1 at most. update_period: how
    often the estimates change, after ten steps that all do. eta: how much of an estimate is new when it changes.

    >>> layer = torch.nn.Linear(3, 2)
    >>> optimizer = NaturalGradientSGD(layer.parameters(), lr=0.1)
    >>> layer(torch.ones(4, 3)).square().mean().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        alpha: float = 4.0,
        rank: int | None = None,
        update_period: int = 4,
        eta: float = 0.1,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        fisher = {"alpha": alpha, "rank": rank, "update_period": update_period, "eta": eta}
        super().__init__(as_params(params), {**options, **fisher, **SCALES})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own, which are checked first."""
        _check({**self.defaults, **param_group})
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            if p.dtype not in (torch.float32, torch.float64):
                del self.param_groups[-1]
                raise ConfigError(
                    f"NaturalGradientSGD: expected parameters of float32 or float64, received {p.dtype}; "
                    "keep them in float32 and train under torch.autocast"
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step; returns what the closure, if there is one, returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if p.grad.is_sparse:
                    raise TrainingError("NaturalGradientSGD: expected dense gradients, received sparse ones; use SGD")
                if group["scales"]:
                    normalised_step_(p, p.grad, self.state[p], group)
                    continue
                gradient = p.grad.add(p, alpha=group["weight_decay"]) if group["weight_decay"] else p.grad
                if p.ndim > 1 and p.numel():
                    gradient = self._natural(self.state[p], gradient.flatten(1), group).view_as(p)
                if group["momentum"]:
                    gradient = with_momentum(self.state[p], gradient, group["momentum"])
                p.sub_(gradient, alpha=group["lr"])
        return loss

    def _natural(self, state: dict[str, Any], x: Tensor, group: dict[str, Any]) -> Tensor:
        """The matrix of gradients, preconditioned on both sides with the estimates so far, which then learn from it."""
        taken = state.get("steps", 0)
        norm = x.norm()
        learns = taken < _EAGER or taken % group["update_period"] == 0
        if learns and not norm.isfinite():  # it would make the estimates NaN for good
            return x
        state["steps"] = taken + 1
        natural = x
        for side in ("rows", "columns"):
            x, natural = x.T, natural.T  # first the rows' turn, then back again
            if (d := x.shape[1]) == 1:
                continue
            keys = [f"{side}_{field}" for field in Fisher._fields]  # tensors under plain names suit any state_dict
            rank = min((d + 1) // 2, 80) if group["rank"] is None else min(group["rank"], d - 1)
            fisher = Fisher(*map(state.__getitem__, keys)) if taken else start(x, rank)
            natural = precondition(fisher, natural, group["alpha"])
            if learns:
                state.update(zip(keys, update(fisher, x, group["eta"]), strict=True))
        return natural * (norm / natural.norm().clamp(min=_TINY))


def _check(options: dict[str, Any]) -> None:
    """Refuse options out of range."""

    def number(name: str, **limits: float) -> None:
        checks.number(f"NaturalGradientSGD.{name}", options[name], **limits)  # type: ignore[arg-type]

    number("lr", at_least=0)
    number("momentum", at_least=0, below=1)
    number("weight_decay", at_least=0)
    if not (isinstance(options["alpha"], float) and options["alpha"] == math.inf):  # which gives SGD
        number("alpha", above=0)
    number("eta", above=0, below=1)
    checks.whole_number("NaturalGradientSGD.update_period", options["update_period"])
    if options["rank"] is not None:
        checks.whole_number("NaturalGradientSGD.rank", options["rank"])
