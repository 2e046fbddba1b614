"""Mask updates of sparse training: every M gradient steps, the least important weights are replaced by others.

Algorithm 1 of sparse subspace VI, which RigL shares: removal after the M-th step, addition by the gradient of that
step's batch. Hooks watch the layers only in that step, so that no dense tensor of a layer exists between updates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...errors import TrainingError
from ...eval_mode import kept_buffers
from ...posteriors.sparse import Sparse
from ...sampling import using
from ...training.callbacks import Callback, State, out_of_order
from . import optimizer_state
from .config import SparseSubspace, SparseTraining
from .growth import Activation, Use, Whole, best_places, gradient_pieces

Growth = tuple[tuple[Tensor, Tensor], Tensor]  # as `best_places` returns it


class Rules(Protocol):
    """The scores and first values of weights, which each method defines."""

    @property
    def config(self) -> SparseTraining:
        """The config of the method."""

    def keep_scores(self, q: Sparse) -> Tensor:
        """The scores of active weights, (n,); those with the lowest are removed."""

    def newcomers(self, q: Sparse, survivors: Tensor) -> dict[str, Tensor | float]:
        """The first values of the parameters of new weights; survivors: a mask (n,) of the weights that stay."""


def replacement_rate(schedule: str, start: float, step: int, end: float) -> float:
    """The share of the active weights that an update at a step replaces; 0 from ``end`` on.

    constant: start; cosine: start / 2 (1 + cos(pi step / end)); linear: start (1 - step / end).

    >>> [round(replacement_rate("cosine", 0.3, t, 100), 3) for t in (0, 50, 100)]
    [0.3, 0.15, 0.0]
    """
    if step >= end:
        return 0.0
    if schedule == "constant":
        return start
    fraction = step / end
    return start * (1 - fraction if schedule == "linear" else (1 + math.cos(math.pi * fraction)) / 2)


class Alternation(Callback):
    """Moves the active weights of the layers of one method, in place, after every M-th optimiser step.

    Works in `fit` and in a loop of your own that calls the hooks of `leanbayes.training.callbacks` (total_steps of the
    `State` must be known unless the schedule is constant; addition="mean" needs its `closure`).

    updates: (step, moved weights) of every update so far.
    """

    def __init__(self, rules: Rules, layers: Mapping[str, nn.Module]) -> None:
        self.rules, self.method = rules, rules.config
        self.weights: dict[Sparse, str] = {}
        self.layers: list[Any] = list(layers.values())
        for name, layer in layers.items():
            self.weights.setdefault(_weight(layer), f"{name}.weight")
        self.addition = self.method.addition if isinstance(self.method, SparseSubspace) else "sample"
        self.updates: list[tuple[int, int]] = []
        self.sums: dict[Sparse, Tensor] = {}
        self.full: dict[Sparse, int] = {}
        self.begun = False
        self._reset()

    def fit_start(self, state: State) -> None:
        method = self.method
        optimizer_state.check_optimizer(state.optimizer, next(iter(self.weights)).loc)
        if state.total_steps is None and (method.schedule != "constant" or method.until < 1):
            raise TrainingError(
                f"{type(method).__name__}: expected to know how many steps training takes, received a loader of "
                "unknown length; use schedule='constant' with until=1.0, or set State.total_steps"
            )
        self._release()
        self._reset()
        self.updates, self.sums = [], {}
        self.full = {q: len(q.index) for q in self.weights if q.goal is not None and q.goal < len(q.index)}
        if self.full and (_distributed() or not method.thinning or state.total_steps is None):
            self._thin(state, 1.0)  # at once: DistributedDataParallel must not see parameters shrink

    def before_step(self, state: State) -> None:
        self.begun = True
        self._release()
        self._reset()
        interval = self._interval(state)
        step = -(-(state.step + 1) // interval) * interval  # of the next update
        self.rate = self._rate(step, state)
        steps = self.method.addition_steps if self.addition == "steps" else 1  # type: ignore[attr-defined]
        if step - (state.step + 1) < steps and any(map(self._changes, self.weights)):
            self.watching = True
            if self.addition != "mean":
                self._watch()

    def after_backward(self, state: State) -> None:
        if self.watching and self.addition == "mean":
            self._ask_at_means(state)
        for q in [q for q in self.weights if self.arrived.get(q)]:
            self._gather(q)
        self._release()

    def after_step(self, state: State) -> None:
        if not self.begun:
            raise out_of_order(type(self.method).__name__)
        if self.full and state.total_steps is not None and state.step % self._interval(state) == 0:
            self._thin(state, state.step / max(self.method.thinning * state.total_steps, 1.0))
            self._reset()
            return  # gradients were recorded for weights that are gone
        if not self.watching or state.step % self._interval(state):
            return
        if self.addition == "steps":
            for q, total in self.sums.items():
                self.found[q] = best_places([(0, total)], q.index, self._count(q))
            self.sums = {}
        if not self.found:
            raise TrainingError(
                f"{type(self.method).__name__}: expected its layers to take part in step {state.step}, saw none of "
                "them; hooks on layers do not reach compiled models: train the model as it is"
            )
        moved = sum(self._update(q, self.found[q], state) for q in self.weights if q in self.found)
        self.updates.append((state.step, moved))
        self._reset()

    def fit_end(self, state: State) -> None:
        self._thin(state, 1.0)
        self._release()
        self._reset()
        self.sums = {}

    def state_dict(self) -> dict[str, Any]:
        sums = {self.weights[q]: total for q, total in self.sums.items()}
        full = {self.weights[q]: [count, q.goal] for q, count in self.full.items()}
        return {"updates": [list(update) for update in self.updates], "sums": sums, "full": full}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = [(step, moved) for step, moved in state["updates"]]
        self.sums = {q: state["sums"][name] for q, name in self.weights.items() if name in state["sums"]}
        self.full = {}
        for q, name in self.weights.items():
            if name in (full := state.get("full", {})):  # version 0.1 did not thin
                self.full[q], q.goal = full[name]

    def _reset(self) -> None:
        self.watching, self.rate = False, 0.0
        self.found: dict[Sparse, Growth] = {}
        self.open: dict[Sparse, int] = {}
        self.arrived: dict[Sparse, list[Use | Whole]] = {}
        self.handles: list[Any] = []

    def _release(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def _rate(self, step: int, state: State) -> float:
        total = math.inf if state.total_steps is None else self.method.until * state.total_steps
        return replacement_rate(self.method.schedule, self.method.replacement, step, total)

    def _interval(self, state: State) -> int:
        """Steps between updates: `interval`, or 100, or fewer in a short run."""
        if self.method.interval is not None or state.total_steps is None:
            return self.method.interval or 100
        return max(1, min(100, int(self.method.until * state.total_steps) // 20))

    @torch.no_grad()
    def _thin(self, state: State, progress: float) -> None:
        """Keep as many weights as thinning has at this point: goal + (all - goal) (1 - progress)^3."""
        for q, full in list(self.full.items()):
            goal = q.goal or len(q.index)
            count = goal + round((full - goal) * max(0.0, 1 - progress) ** 3)
            if count < len(q.index) and q.keep is None:
                optimizer_state.thin_(q, self.rules.keep_scores(q), count, state.optimizer)
            if progress >= 1:
                q.goal = None
                del self.full[q]

    def _count(self, q: Sparse) -> int:
        return int(self.rate * len(q.index))

    def _changes(self, q: Sparse) -> bool:
        """Whether an update moves weights of this tensor, which is not frozen, pruned or full."""
        return q.loc.requires_grad and q.keep is None and self._count(q) > 0 and q.density < 1

    def _watch(self) -> None:
        for layer in self.layers:
            if self._changes(_weight(layer)):
                self.handles.append(layer.register_forward_hook(self._seen, with_kwargs=True))
                layer.weight_read = self._read  # type: ignore[assignment]
                self.handles.append(_Reading(layer))

    def _read(self, layer: Any, weight: Any) -> None:
        """Called when a layer's weight is read: registers a hook for its gradient."""
        q = _weight(layer)
        if not (torch.is_grad_enabled() and isinstance(weight, Tensor) and weight.requires_grad):
            return
        self.open[q] = self.open.get(q, 0) + 1
        weight.register_hook(lambda grad: self._arrived(q, Whole(layer.shell, grad.detach())))

    def _seen(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        """Called after a layer's forward pass: registers a hook for the gradient at its output."""
        q = _weight(layer)
        if not (torch.is_grad_enabled() and output.requires_grad):
            return
        x = Activation.of(args[0] if args else kwargs["input"])
        self.open[q] = self.open.get(q, 0) + 1

        def arrive(grad: Tensor) -> None:  # must not hold the output, which holds this hook
            self._arrived(q, Use.of(layer.shell, x, Activation.of(grad)))

        output.register_hook(arrive)

    def _arrived(self, q: Sparse, use: Use | Whole) -> None:
        self.open[q] -= 1
        self.arrived.setdefault(q, []).append(use)
        # at once, to free the activations; in distributed training after the pass, in the same order everywhere
        if self.open[q] == 0 and not _distributed():
            self._gather(q)

    @torch.no_grad()
    def _gather(self, q: Sparse) -> None:
        """Find the best places for new weights from the dense gradient, or add it to the sums."""
        uses = self.arrived.pop(q)
        pieces = _averaged(gradient_pieces(uses, q.shape, q.dtype))
        if self.addition != "steps":
            self.found[q] = best_places(((start, g.abs()) for start, g in pieces), q.index, self._count(q))
            return
        total = self.sums.setdefault(q, torch.zeros(q.shape.numel(), dtype=q.dtype, device=q.device))
        for start, g in pieces:
            total[start : start + len(g)] += g.abs()

    def _ask_at_means(self, state: State) -> None:
        """Compute gradients in a second pass over the batch, at the means."""
        closure = state.closure
        if closure is None:
            raise TrainingError(
                "addition='mean': expected State.closure, a function that computes the loss of the current batch "
                "again, received None; set it before after_backward"
            )
        self._watch()
        with kept_buffers(state.model), using(mean_only=True), torch.enable_grad():
            loss = closure()
            parameters = [p for p in state.model.parameters() if p.requires_grad]
            torch.autograd.grad(loss, parameters, allow_unused=True)

    @torch.no_grad()
    def _update(self, q: Sparse, growth: Growth, state: State) -> int:
        candidates, own = growth
        keep = self.rules.keep_scores(q)
        returning = own if self.method.keep_returning else None
        index = optimizer_state.renewed(q.index, keep, candidates, returning, self._count(q))
        if _distributed():
            dist.broadcast(index, 0)
        values = self.rules.newcomers(q, index == q.index)
        return int(optimizer_state.overwrite_(q, index, values, state.optimizer).sum())


class _Reading:
    """A handle that removes the callback for reads of a layer's weight."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def remove(self) -> None:
        self.layer.weight_read = None


def _weight(layer: Any) -> Sparse:
    q: Sparse = layer.posteriors["weight"]
    return q


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _averaged(pieces: Iterator[tuple[int, Tensor]]) -> Iterator[tuple[int, Tensor]]:
    """Gradients averaged over all processes, as DDP does."""
    for start, piece in pieces:
        if _distributed():
            piece = piece.contiguous()
            dist.all_reduce(piece)
            piece /= dist.get_world_size()
        yield start, piece
