"""SGD for Bayesian networks: ordinary steps for weights and means, normalised ones for scales."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from .. import checks
from ..errors import ConfigError
from .parameter_groups import OPTIONS

SCALES = {"scales": False, **OPTIONS}
"""Defaults of the options of a group that concern scales."""


class SGD(Optimizer):
    """SGD with momentum, where the scales of posteriors take Adam's steps.

    The gradient of log sigma is a ``num_data``-th of that of a mean, so that plain SGD leaves sigma where it began.
    Here a group with ``scales=True``, as `parameter_groups` makes it, moves by its learning rate times
    m / sqrt(v), the running means of gradient and squared gradient (Kingma and Ba, 2015), with the ``betas`` and the
    ``eps`` of the group. All other groups take the steps of torch.optim.SGD.

    params: of `parameter_groups`, or whatever an optimiser takes. lr, momentum, weight_decay, nesterov: as in
    torch.optim.SGD; weight decay is part of the gradient.

    >>> import leanbayes as lb
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    >>> _ = lb.bayesianize_(model, lb.MeanField())
    >>> optimizer = SGD(lb.parameter_groups(model, lr=0.1, scale_lr=0.02), momentum=0.9)
    >>> (model(torch.ones(4, 3)).square().mean() + lb.kl_sum(model) / 1000).backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        checks.number("lr", lr, at_least=0)
        checks.number("momentum", momentum, at_least=0, below=1)
        checks.number("weight_decay", weight_decay, at_least=0)
        if checks.flag("nesterov", nesterov) and not momentum:
            raise ConfigError("nesterov: expected a momentum above 0 as well, received momentum=0")
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__(as_params(params), {**defaults, **SCALES})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step along the gradients; returns what the closure does."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            move = normalised_step_ if group["scales"] else _step_
            for p in group["params"]:
                if p.grad is not None:
                    move(p, p.grad, self.state[p], group)
        return loss


def normalised_step_(p: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    """Adam's step: lr times the mean gradient over the root of the mean squared gradient, bias-corrected."""
    if not state:
        state["step"] = 0
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
    state["step"] += 1
    (first, second), step = group["betas"], state["step"]
    mean = state["exp_avg"].lerp_(grad, 1 - first)
    square = state["exp_avg_sq"].mul_(second).addcmul_(grad, grad, value=1 - second)
    root = square.sqrt().div_((1 - second**step) ** 0.5).add_(group["eps"])
    p.addcdiv_(mean, root, value=-group["lr"] / (1 - first**step))


def with_momentum(state: dict[str, Any], grad: Tensor, momentum: float) -> Tensor:
    """The momentum buffer of a parameter with its gradient added; the first gradient if there is none yet."""
    if "momentum_buffer" in state:
        state["momentum_buffer"].mul_(momentum).add_(grad)
    else:
        state["momentum_buffer"] = grad.clone()
    return state["momentum_buffer"]  # type: ignore[no-any-return]


def _step_(p: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    """The step of torch.optim.SGD."""
    if group["weight_decay"]:
        grad = grad.add(p, alpha=group["weight_decay"])
    if momentum := group["momentum"]:
        buffer = with_momentum(state, grad, momentum)
        grad = grad.add(buffer, alpha=momentum) if group["nesterov"] else buffer
    p.add_(grad, alpha=-group["lr"])


def as_params(params: Any) -> Any:
    """The parameters or groups as a list; a single tensor is left to torch, which has a message for it."""
    if isinstance(params, Tensor):
        return params
    return checks.iterable_of("params", params, "parameters", lambda name, value: value)
