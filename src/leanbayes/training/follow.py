"""`follow`: the callbacks of a model's methods in a training loop of your own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .. import batches, checks
from ..convert import record
from . import callbacks as hooks
from .arguments import make_optimizer
from .elbo import ELBO, Terms


class Following:
    """What `follow` returns. state: where training stands. hooks: the callbacks that are called. See `stop`."""

    def __init__(self, state: hooks.State, elbo: ELBO, found: list[Any]) -> None:
        self.state, self.elbo, self.hooks = state, elbo, found
        self.begun = False
        self.seen = 0
        self.handles: list[Any] = [
            state.model.register_forward_pre_hook(self._before, prepend=True),
            elbo.register_forward_hook(self._counted, with_kwargs=True),
            state.optimizer.register_step_pre_hook(self._backward_done),
            state.optimizer.register_step_post_hook(self._stepped),
        ]
        try:
            hooks.notify(found, "fit_start", state)
        except BaseException:
            for handle in self.handles:
                handle.remove()
            raise
        record.ensure(state.model).trained(elbo.likelihood.to_dict())

    def stop(self) -> None:
        """End training: remove the hooks from model, loss and optimiser, and call `fit_end`."""
        for handle in self.handles:
            handle.remove()
        if self.handles:
            hooks.notify(self.hooks, "fit_end", self.state)
        self.handles = []

    def _before(self, model: nn.Module, inputs: Any) -> None:
        if not self.begun and model.training and torch.is_grad_enabled():  # validation is no step
            self.begun = True
            hooks.notify(self.hooks, "before_step", self.state)

    def _counted(self, elbo: nn.Module, inputs: Any, named: dict[str, Any], terms: Terms) -> None:
        if self.begun and torch.is_grad_enabled():
            outputs = named["outputs"] if "outputs" in named else inputs[1]
            self.seen += len(batches.output_tensor(outputs)) * _processes()
            self.state.terms = terms.detached()

    def _backward_done(self, optimizer: Optimizer, *call: Any) -> None:
        if self.begun:
            hooks.notify(self.hooks, "after_backward", self.state)

    def _stepped(self, optimizer: Optimizer, *call: Any) -> None:
        if not self.begun:
            return
        self.begun = False
        self.state.step += 1
        hooks.notify(self.hooks, "after_step", self.state)
        self.state.epoch = self.seen // self.elbo.num_data
        self.state.terms = None
        if self.elbo.likelihood.state_dict():  # a learned noise level has moved
            record.ensure(self.state.model).likelihood = self.elbo.likelihood.to_dict()


def _processes() -> int:
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if distributed else 1


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
    checks.module("model", model)
    checks.instance("optimizer", optimizer, Optimizer, "a torch optimizer")
    checks.instance("elbo", elbo, ELBO, "lb.ELBO(...)")
    if total_steps is not None:
        checks.whole_number("total_steps", total_steps)
    own = hooks.check(callbacks)
    make_optimizer(optimizer, model, elbo)  # checks it, and adds the noise level
    state = hooks.State(model, optimizer, total_steps=total_steps)
    return Following(state, elbo, [*hooks.callbacks(model), *own])
