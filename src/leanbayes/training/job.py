"""The arguments of a training run, the module of a training step, and the sums behind the row of an epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from .. import batches
from .elbo import ELBO, Terms
from .processes import Parameters
from .trackers import Tracker


@dataclass
class Job:
    """The arguments of `fit`, checked.

    of_methods: callbacks that the methods of the model need. own: callbacks of the user.
    noise_scales: the ``noise_scale`` of layers at the first step, where it is not 1.
    """

    model: nn.Module
    elbo: ELBO
    train: Any
    val: Any
    epochs: int
    batch_size: int
    accumulate: int
    optimizer: Optimizer
    scheduler: Any
    scheduler_every: str
    seed: int
    clip: float | None
    val_samples: int
    of_methods: list[Any]
    own: list[Any]
    checkpoint: Path | None
    checkpoint_every: int | None
    resume: bool
    log: Path | None
    trackers: list[Tracker]
    progress: bool
    parameters: Parameters
    noise_scales: dict[str, float] = field(default_factory=dict)

    @property
    def callbacks(self) -> list[Any]:
        """All callbacks, in the order they are called."""
        return [*self.of_methods, *self.own]


class Step(nn.Module):
    """Forward pass and loss as one module, so that DDP sees also the parameters that only the KL uses."""

    def __init__(self, model: nn.Module, elbo: ELBO) -> None:
        super().__init__()
        self.model, self.elbo = model, elbo

    def forward(self, inputs: Any, targets: Any) -> Terms:
        return self.elbo(self.model, batches.call(self.model, inputs, targets), targets)


@dataclass
class Sums:
    """The running sums behind the row of an epoch; checkpoints hold them."""

    data: int = 0
    loss: float = 0.0
    nll: float = 0.0
    kl: float = 0.0
    kl_weight: float = 0.0
    seconds: float = 0.0
    unscaled: float = 0.0
    latent_kl: float = 0.0
    latent_weight: float = 0.0
    has_unscaled: bool = False
    has_latents: bool = False

    def add(self, data: int, numbers: list[float], terms: Terms) -> None:
        loss, nll, kl, unscaled, latent_kl = numbers
        self.data += data
        self.loss += data * loss
        self.nll += data * nll
        self.latent_kl += data * latent_kl
        # as they are at the end of the epoch
        self.kl, self.kl_weight, self.unscaled, self.latent_weight = kl, terms.kl_weight, unscaled, terms.latent_weight
        self.has_unscaled, self.has_latents = (isinstance(t, Tensor) for t in (terms.unscaled, terms.latent_kl))

    def terms(self) -> dict[str, float]:
        """The terms of the loss besides nll and kl that the model has."""
        row = {"unscaled": self.unscaled} if self.has_unscaled else {}
        if self.has_latents:
            row |= {"latent_kl": self.latent_kl / self.data, "latent_weight": self.latent_weight}
        return row
