"""`follow`: the callbacks of a model's methods in a training loop of your own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .. import batches, checks
from ..convert import record
from ..errors import ConfigError
from ..layers.contract import option
from . import callbacks as hooks
from .arguments import make_optimizer
from .elbo import ELBO, Terms


class Following:
    """Calls the callbacks around the steps of a training loop; returned by `follow`. See `stop`.

    state: the `State` of training. hooks: the callbacks. terms: those of the last batch. begin, gradients_ready,
    stepped: called by `follow`'s hooks, or by a trainer that has hooks of its own. The step of the ELBO, which its
    schedules use, counts steps of the optimiser: accumulated batches are one.
    """

    def __init__(self, state: hooks.State, elbo: ELBO, found: list[Any]) -> None:
        self.state, self.elbo, self.hooks = state, elbo, found
        self.begun = False
        self.seen = 0
        self.terms: Terms | None = None
        self.network = state.model
        self.before = elbo.step
        self.handles: list[Any] = []
        hooks.notify(found, "fit_start", state)
        record.ensure(self.network).trained(elbo.likelihood.to_dict())
        self.handles = [
            elbo.register_forward_hook(self._counted, with_kwargs=True),
            state.optimizer.register_step_post_hook(lambda *call: self.stepped()),
        ]

    def stop(self) -> None:
        """End training: remove the hooks from model, loss and optimiser, and call `fit_end`."""
        if self.handles:
            self.remove()
            hooks.notify(self.hooks, "fit_end", self.state)

    def remove(self) -> None:
        """Remove the hooks without calling `fit_end`, after training has failed."""
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def begin(self) -> None:
        """Call before_step, once before each step, however many forward passes it has."""
        if not self.begun:
            self.begun = True
            hooks.notify(self.hooks, "before_step", self.state)

    def gradients_ready(self) -> None:
        """Call after_backward."""
        if self.begun:
            hooks.notify(self.hooks, "after_backward", self.state)

    def stepped(self) -> None:
        """Call after_step and count the step."""
        if not self.begun:
            return
        self.begun = False
        self.state.step += 1
        hooks.notify(self.hooks, "after_step", self.state)
        self.state.epoch = self.seen // self.elbo.num_data
        self.state.terms = None
        self.elbo.step = self.before + self.state.step
        if self.elbo.likelihood.state_dict():  # a learned noise level has moved
            record.ensure(self.network).likelihood = self.elbo.likelihood.to_dict()

    def state_dict(self) -> dict[str, Any]:
        """The state to resume from: plain values and tensors."""
        kept = [c.state_dict() if option(c, "state_dict") else None for c in self.hooks]
        done = {"step": self.state.step, "epoch": self.state.epoch, "seen": self.seen, "before": self.before}
        return done | {"callbacks": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the state of another run."""
        kept = state["callbacks"]
        if len(kept) != len(self.hooks):
            raise ConfigError(
                f"callbacks: expected {len(kept)}, as in the run that is continued, got {len(self.hooks)}"
            )
        for callback, stored in zip(self.hooks, kept, strict=True):
            if stored is not None:
                callback.load_state_dict(stored)
        self.state.step, self.state.epoch, self.seen = state["step"], state["epoch"], state["seen"]
        self.before = state["before"]
        self.elbo.step = self.before + self.state.step

    def _counted(self, elbo: ELBO, inputs: Any, named: dict[str, Any], terms: Terms) -> None:
        if self.begun and torch.is_grad_enabled():
            called = dict(zip(("model", "outputs"), inputs, strict=False)) | named
            outputs = called["outputs"]
            if called["model"] is not self.network:  # a trainer's module holds the network
                self.network = called["model"]
                record.ensure(self.network).trained(self.elbo.likelihood.to_dict())
            elbo.step = self.before + self.state.step
            distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
            processes = torch.distributed.get_world_size() if distributed else 1
            self.seen += len(batches.output_tensor(outputs)) * processes
            self.state.terms = self.terms = terms.detached()


def follow(
    model: nn.Module, optimizer: Optimizer, elbo: ELBO, *, total_steps: int | None = None, callbacks: Iterable[Any] = ()
) -> Following:
    """Run the callbacks of a model's methods around every step of a training loop of your own.

    Mask updates, temperatures, the turns of an ensemble and the gradient of learned mixing then happen around
    ``optimizer.step()``, and the model remembers what it was trained for, as after `fit`. The loop stays as it is:
    forward pass, ``elbo``, ``backward``, ``step``, ``zero_grad``. Passes in evaluation mode or without gradients do not
    count.

    optimizer: over the model's parameters as they are now: one made before `bayesianize_` replaced some of them is
        refused. A noise level that is learned is added to it.
    total_steps: how many there will be, for methods whose schedule needs to know. callbacks: further ones, of your own.

    Returns an object with the `state` of training, where an epoch is a pass over ``elbo.num_data`` data; ``stop()``
    ends it. Nobody calls ``epoch_end``: where a loop validates is its own affair.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> _ = lb.bayesianize_(model, lb.SparseSubspace(density=0.5, interval=2))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> elbo = lb.ELBO("classification", num_data=20)
    >>> following = follow(model, optimizer, elbo, total_steps=4)
    >>> for _ in range(4):
    ...     optimizer.zero_grad()
    ...     elbo(model, model(torch.randn(20, 4)), torch.randint(3, (20,))).loss.backward()
    ...     optimizer.step()
    >>> following.state.step, lb.predict(model, torch.randn(2, 4)).probs.shape
    (4, torch.Size([2, 3]))
    """
    following = started(model, optimizer, elbo, total_steps=total_steps, callbacks=callbacks)

    def before(model: nn.Module, inputs: Any) -> None:
        if model.training and torch.is_grad_enabled():  # validation is no step
            following.begin()

    following.handles += [
        model.register_forward_pre_hook(before, prepend=True),
        optimizer.register_step_pre_hook(lambda *call: following.gradients_ready()),
    ]
    return following


def started(
    model: nn.Module, optimizer: Optimizer, elbo: ELBO, *, total_steps: int | None = None, callbacks: Iterable[Any] = ()
) -> Following:
    """`follow` for a trainer that calls `begin` and `gradients_ready` itself."""
    checks.module("model", model)
    checks.instance("optimizer", optimizer, Optimizer, "a torch optimizer")
    checks.instance("elbo", elbo, ELBO, "lb.ELBO(...)")
    if total_steps is not None:
        checks.whole_number("total_steps", total_steps)
    own = hooks.check(callbacks)
    make_optimizer(optimizer, model, elbo)  # checks it, and adds the noise level
    state = hooks.State(model, optimizer, total_steps=total_steps)
    return Following(state, elbo, [*hooks.callbacks(model), *own])
