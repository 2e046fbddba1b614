"""Callbacks around training steps: those of methods (mask updates, temperatures), early stopping, your own.

A callback is an object with any of the hooks of `Callback`, each called with the `State` of training; inheriting from
it is not needed. One that must survive a restart has ``state_dict()`` (plain values and tensors) and
``load_state_dict(state)``, and checkpoints keep it. In distributed training every process calls its own callbacks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from .. import checks
from ..convert import record
from ..errors import ConfigError, TrainingError
from ..layers.contract import option
from ..ordering.ordered import ordered
from .elbo import Terms

HOOKS = ("fit_start", "before_step", "after_backward", "after_step", "epoch_end", "fit_end")


@dataclass
class State:
    """Where training stands.

    step: optimiser steps done. epoch: counts from 0. total_steps: None where the loader's length is unknown.
    terms: of the current batch, from after_backward on. row: the epoch's numbers, in epoch_end.
    stop: set a reason here to end training after the current epoch.
    closure: computes the loss of the current batch once more, for callbacks that need another pass over it.
    scale: what the loss, and so every gradient of after_backward, was multiplied by (16-bit training).
    """

    model: nn.Module
    optimizer: Optimizer
    step: int = 0
    epoch: int = 0
    total_steps: int | None = None
    terms: Terms | None = None
    row: dict[str, Any] | None = None
    stop: str | None = None
    closure: Callable[[], Tensor] | None = None
    scale: float = 1.0


class Callback:
    """Base class of callbacks: every hook does nothing."""

    def fit_start(self, state: State) -> None:
        """Called first, before the state of a checkpoint is loaded."""

    def before_step(self, state: State) -> None:
        """Called before the forward pass."""

    def after_backward(self, state: State) -> None:
        """Called with the gradients averaged over processes and multiplied by state.scale, before clipping."""

    def after_step(self, state: State) -> None:
        """Called after the step of the optimiser."""

    def epoch_end(self, state: State) -> None:
        """Called after validation; state.row holds the numbers of the epoch."""

    def fit_end(self, state: State) -> None:
        """Called after the last epoch."""


def callbacks(model: nn.Module) -> list[Any]:
    """The callbacks that the methods and ordered latents of a model need; none for a plain model.

    `fit` calls them by itself. In a loop of your own `follow` does, or you do: ``notify(hooks, "after_step", state)``.

    >>> callbacks(nn.Linear(2, 2))
    []
    """
    checks.module("model", model)
    found = record.get(model)
    of_methods = [] if found is None else list(found.callbacks(model))
    return of_methods + [callback for codes in ordered(model) for callback in codes.callbacks()]


def notify(hooks: Iterable[Any], hook: str, state: State) -> None:
    """Call a hook on every callback that has it.

    >>> class Count(Callback):
    ...     steps = 0
    ...     def after_step(self, state):
    ...         self.steps += 1
    >>> model = nn.Linear(1, 1)
    >>> state = State(model, Optimizer(model.parameters(), {}))
    >>> count = Count()
    >>> notify([count], "after_step", state)
    >>> count.steps
    1
    """
    if hook not in HOOKS:
        raise ConfigError(f"hook: expected one of {', '.join(HOOKS)}, received {checks.short(hook)}")
    for callback in hooks:
        if (function := option(callback, hook)) is not None:
            function(state)


def out_of_order(who: str) -> TrainingError:
    """The error of a callback whose after_step was called without before_step."""
    return TrainingError(
        f"{who}: expected the hooks before_step and after_backward before after_step, received after_step alone; "
        "lb.follow(model, optimizer, elbo) calls all of them"
    )


def check(hooks: Iterable[Any]) -> list[Any]:
    """The callbacks as a list, each of them with at least one hook."""

    def callback(name: str, value: Any) -> Any:
        if isinstance(value, type) or not any(option(value, hook) for hook in HOOKS):
            checks.refuse(name, f"an object with any of {', '.join(HOOKS)}", value)
        return value

    return checks.iterable_of("callbacks", hooks, "callbacks", callback, hint="pass [callback]")


class EarlyStopping(Callback):
    """Ends training once a monitored number has not improved for `patience` epochs.

    monitor: a name in the history's rows. min_delta: an improvement must be larger than this.
    restore_best: at the end of training the model gets the weights and buffers of its best epoch back (a copy is kept,
    also in checkpoints).

    >>> EarlyStopping(patience=3).monitor
    'val_nll'
    """

    def __init__(
        self,
        monitor: str = "val_nll",
        patience: int = 5,
        *,
        min_delta: float = 0.0,
        mode: Literal["min", "max"] | None = None,
        restore_best: bool = False,
    ) -> None:
        checks.instance("EarlyStopping.monitor", monitor, str, "a name such as 'val_nll'")
        patience = checks.whole_number("EarlyStopping.patience", patience)
        min_delta = checks.number("EarlyStopping.min_delta", min_delta, at_least=0)
        checks.one_of("EarlyStopping.mode", mode, ("min", "max", None))
        checks.flag("EarlyStopping.restore_best", restore_best)
        self.monitor, self.patience, self.min_delta, self.restore_best = monitor, patience, min_delta, restore_best
        self.sign = -1.0 if (mode or ("max" if "accuracy" in monitor else "min")) == "max" else 1.0
        self.best, self.best_epoch, self.waited = math.inf, -1, 0
        self.weights: dict[str, Tensor] | None = None

    def check(self, known: Iterable[str]) -> None:
        """Refuse a monitor that is not among the names of a row."""
        names = list(known)
        if self.monitor not in names:
            raise ConfigError(
                f"EarlyStopping.monitor: expected one of {', '.join(names)}, received {checks.short(self.monitor)}"
            )

    def fit_start(self, state: State) -> None:
        self.best, self.best_epoch, self.waited, self.weights = math.inf, -1, 0, None  # used in an earlier fit, perhaps

    def epoch_end(self, state: State) -> None:
        row = state.row or {}
        self.check(k for k, v in row.items() if k == self.monitor or isinstance(v, float))
        value = row[self.monitor]
        value = math.inf if value is None or math.isnan(value) else self.sign * value
        if value < self.best - self.min_delta:
            self.best, self.best_epoch, self.waited = value, state.epoch, 0
            if self.restore_best:
                state_dict = state.model.state_dict()
                self.weights = {k: v.detach().clone() for k, v in state_dict.items() if isinstance(v, Tensor)}
            return
        self.waited += 1
        if self.waited >= self.patience:
            state.stop = f"{self.monitor} has not improved for {self.waited} epoch(s) since epoch {self.best_epoch}"

    def fit_end(self, state: State) -> None:
        if self.weights is not None:
            state.model.load_state_dict(self.weights, strict=False)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_epoch": self.best_epoch, "waited": self.waited, "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.best_epoch, self.waited = state["best"], state["best_epoch"], state["waited"]
        self.weights = state["weights"]


def check_monitors(callbacks: list[Any], known: Iterable[str]) -> None:
    """Refuse an early stopping that monitors a number which no row will have.

    If a callback has an ``epoch_end`` of its own, which may add numbers, the first row is checked instead.
    """
    stopping = [c for c in callbacks if isinstance(c, EarlyStopping)]
    others = (option(type(c), "epoch_end") for c in callbacks if not isinstance(c, EarlyStopping))
    if all(hook in (None, Callback.epoch_end) for hook in others):
        for callback in stopping:
            callback.check(known)
