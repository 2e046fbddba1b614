"""A warning if the scales of a model's posteriors did not move in training."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import LeanBayesWarning
from ..posteriors.base import Posterior

LEAST = 0.01
"""A median change of log sigma below which scales count as not trained."""
STEPS = 100
"""Shorter runs are not checked."""
_MOST = 1000  # scales that are compared of each tensor


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
