"""Learning the probabilities of a mixture: the score-function gradient of its discrete draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...errors import TrainingError
from ...training.callbacks import Callback, State, out_of_order

if TYPE_CHECKING:
    from .assignment import Assignment


class ScoreFunction(Callback):
    """Adds d/dlogits E_z[nll(z)] = E_z[(nll(z) - b) d/dlogits log p(z)] to the gradient of learned probabilities.

    The estimate is unbiased (Williams, 1992), since the baseline b, a running mean of earlier losses, does not depend
    on the draw; the first step has no baseline and adds nothing. The gradient of the KL is exact and is added by
    backward(). In distributed training every process has its own draws, and the estimates are averaged.

    sites: the assignments to learn. memory: the weight of the old baseline in the new one.

    `fit` adds this callback for `Patch(mixing="learned")`; see `leanbayes.training.callbacks` for your own loop.
    """

    def __init__(self, sites: Sequence[Assignment], memory: float = 0.9) -> None:
        self.sites, self.memory = list(sites), memory
        self.baseline: float | None = None
        self.begun = False

    def before_step(self, state: State) -> None:
        self.begun = True
        for site in self.sites:
            site.drawn = []

    def after_step(self, state: State) -> None:
        if not self.begun:
            raise out_of_order("Patch(mixing='learned')")

    def after_backward(self, state: State) -> None:
        if state.terms is None:
            raise TrainingError(
                "Patch(mixing='learned'): expected state.terms, what the ELBO returned, received None; call the "
                "elbo that lb.follow was given, or, where that training is over, its stop()"
            )
        nll = float(state.terms.nll)
        for site in self.sites:
            if self.baseline is not None and site.logits is not None and site.logits.requires_grad:
                found = _averaged(state.scale * (nll - self.baseline) * score(site, site.drawn or []))
                site.logits.grad = found if site.logits.grad is None else site.logits.grad + found
            site.drawn = None
        self.baseline = nll if self.baseline is None else self.memory * self.baseline + (1 - self.memory) * nll

    def state_dict(self) -> dict[str, Any]:
        return {"baseline": self.baseline}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.baseline = state["baseline"]


def score(site: Assignment, drawn: Sequence[Tensor]) -> Tensor:
    """d/dlogits of log p of all indices drawn, (K,): the count of each component less its expectation.

    >>> from leanbayes.methods.patch.assignment import Assignment
    >>> score(Assignment((4,), (0.5, 0.5), learned=True), [torch.tensor([0, 1, 1, 1])])
    tensor([-1.,  1.])
    """
    p = site.weights().detach()
    total = torch.zeros_like(p)
    for index in drawn:
        total += torch.bincount(index.reshape(-1), minlength=site.components) - index.numel() * p
    return total


def _averaged(gradient: Tensor) -> Tensor:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(gradient)
        gradient /= torch.distributed.get_world_size()
    return gradient
