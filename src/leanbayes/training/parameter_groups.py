"""Parameter groups: the scales of posteriors need a learning rate of their own, and a warning if they do not move.

The gradient of log sigma is of the order of kl_weight / num_data, whatever the loss, so that steps in proportion to it
hardly change sigma.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import checks
from ..errors import LeanBayesWarning
from ..posteriors.base import Posterior

SCALE_LR = 0.02
# Adam's defaults are 0.999 and 1e-8: a long memory of steep gradients at the start slows scales down, and with many
# data 1e-8 is more than their gradient
OPTIONS = {"betas": (0.9, 0.99), "eps": 1e-15}
LEAST = 0.01
"""A median change of log sigma below which scales count as not trained."""
STEPS = 100
"""Shorter runs are not checked."""
_MOST = 1000  # scales that are compared of each tensor


def scale_parameters(model: nn.Module) -> dict[nn.Parameter, float]:
    """The parameters that set the spread of the posteriors of a model, and how much each changes with log sigma.

    >>> import leanbayes as lb
    >>> layer = nn.Sequential(nn.Linear(4, 2))
    >>> _ = lb.bayesianize_(layer, lb.VariationalDropout(parameterisation="multiplicative"))
    >>> [(tuple(p.shape), unit) for p, unit in scale_parameters(layer).items()]  # log alpha = 2 log sigma + ...
    [((2, 4), 2.0)]
    """
    posteriors = (module for module in model.modules() if isinstance(module, Posterior))
    return {p: unit for q in posteriors for name, unit in q.scales.items() if (p := q._parameters[name]) is not None}


def parameter_groups(
    model: nn.Module, *, lr: float = 1e-3, scale_lr: float | None = None, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """The parameters of a model that require gradients as groups for an optimiser: scales apart from all others.

    Scales are the parameters of the spread of a posterior: rho of sigma = softplus(rho), log alpha, the location and
    spread of a log-normal. They have no weight decay.

    lr, weight_decay: of all others. scale_lr: the most by which a step changes log sigma, 0.02 if none is given: a run
    of 100 steps can then make a sigma seven times as large or as small. It means that for Adam and its relatives and
    for `leanbayes.SGD`, whatever lr and the loss are; torch.optim.SGD would hardly move a sigma. Log alpha moves by
    twice as much, since it is the logarithm of a square.

    >>> import torch
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> _ = lb.bayesianize_(model, lb.MeanField())
    >>> optimizer = lb.SGD(lb.parameter_groups(model, lr=0.1, weight_decay=5e-4), momentum=0.9)
    >>> [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
    [(0.1, 0.0005), (0.02, 0.0)]
    >>> adam = torch.optim.Adam(lb.parameter_groups(model, lr=1e-3, scale_lr=0.05))
    """
    checks.module("model", model)
    lr = checks.number("lr", lr, at_least=0)
    scale_lr = SCALE_LR if scale_lr is None else checks.number("scale_lr", scale_lr, at_least=0)
    weight_decay = checks.number("weight_decay", weight_decay, at_least=0)
    scales = {p: unit for p, unit in scale_parameters(model).items() if p.requires_grad}
    others = [p for p in model.parameters() if p.requires_grad and p not in scales]
    groups: list[dict[str, Any]] = [{"params": others, "lr": lr, "weight_decay": weight_decay}]
    for unit in sorted(set(scales.values())):
        own = [p for p in scales if scales[p] == unit]
        groups.append({"params": own, "lr": unit * scale_lr, "weight_decay": 0.0, **OPTIONS, "scales": True})
    return [group for group in groups if group["params"]]


class Watch:
    """Remembers some scales of each tensor that the optimiser trains, as training begins."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        stepped = {p for group in optimizer.param_groups for p in group["params"]}
        posteriors = (module for module in model.modules() if isinstance(module, Posterior))
        self.watched = [q for q in posteriors if any(q._parameters[name] in stepped for name in q.scales)]
        self.before = [_some(q) for q in self.watched]

    def moved(self) -> float:
        """The median change of log sigma so far, up or down; infinite if there are no scales."""
        now = [_some(q) for q in self.watched]
        # a sparse weight may have been thinned out meanwhile: then the medians are compared
        changes = [
            b - a if len(a) == len(b) else (b.median() - a.median()).expand(len(b))
            for a, b in zip(self.before, now, strict=True)
        ]
        return float(torch.cat(changes).abs().median()) if changes else math.inf

    def warn(self, steps: int) -> None:
        """Warn if a run of this many steps has hardly changed the scales."""
        if steps >= STEPS and (moved := self.moved()) < LEAST:
            warnings.warn(
                f"the scales of the posteriors have not been trained: in {steps} steps their median change was "
                f"{moved:.2%}, so that the noise is what it was at the start. Plain SGD does that, since their "
                "gradients are small: use lb.SGD(lb.parameter_groups(model, lr=...)), or Adam with these groups",
                LeanBayesWarning,
                stacklevel=2,
            )


@torch.no_grad()
def _some(q: Posterior) -> Tensor:
    """Evenly spaced log sigmas of a posterior, on the CPU."""
    found = q.log_scale()
    assert found is not None
    return found.flatten()[:: max(1, found.numel() // _MOST)].double().cpu()
