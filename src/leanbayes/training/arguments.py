"""What `fit` accepts, turned into what the loop needs, or refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from .. import checks
from ..errors import ConfigError, TrainingError
from ..files import writable_kind
from ..kl import random_weights
from .callbacks import EarlyStopping
from .elbo import ELBO
from .parameter_groups import OPTIONS, SCALE_LR, parameter_groups


def make_optimizer(
    given: Any, model: nn.Module, elbo: ELBO, lr: float = 1e-3, scale_lr: float | None = None
) -> Optimizer:
    """The optimiser that None (Adam), a class, a function of the parameters or an instance stands for.

    For None and a class, the scales of posteriors are groups of their own. The learned noise level of a likelihood is
    no parameter of the model: an instance gets it as one more group.
    """
    own = [p for p in model.parameters() if p.requires_grad]
    noise = [p for p in elbo.parameters() if p.requires_grad]
    if not own and not noise:
        raise TrainingError("expected a model with parameters that require gradients, received none to train")
    if isinstance(given, Optimizer):
        known = {id(p) for group in given.param_groups for p in group["params"]}
        if known - {id(p) for p in (*model.parameters(), *noise)}:
            raise ConfigError(
                "optimizer: expected one over this model's parameters, received one with others as well; "
                "make it after bayesianize_, or pass its class"
            )
        if missing := [p for p in noise if id(p) not in known]:
            given.add_param_group({"params": missing})
        return given
    if given is None or (isinstance(given, type) and issubclass(given, Optimizer)):
        if given is torch.optim.LBFGS:  # takes no groups
            return given([*own, *noise], lr=lr)
        groups = parameter_groups(model, lr=lr, scale_lr=scale_lr)
        if noise:  # a single number that all data determine may move faster than the weights
            groups.append({"params": noise, "lr": max(lr, min(10 * lr, SCALE_LR)), **OPTIONS})
        return (given or torch.optim.Adam)(groups, lr=lr)  # type: ignore[call-arg]
    made = given([*own, *noise]) if callable(given) and not isinstance(given, type) else given
    if not isinstance(made, Optimizer):
        raise ConfigError(
            "optimizer: expected a torch optimizer, its class, or a function of the parameters, "
            f"received {checks.short(made)}"
        )
    return made


KL_SHARE = 0.05
"""How much the mean KL of a weight counts in the loss of a datum, by default.

A log-uniform prior always asks for more noise, half a nat for every unit of log alpha: at this share the noise stops
growing where it costs the data a fortieth of a nat.
"""


def default_kl_weight(model: nn.Module, num_data: int) -> float:
    """1 if there are 20 or more data for each random weight, otherwise 0.05 data / weights.

    The KL then counts 0.05 times its mean over the weights, in nats per datum. At a weight of 1, the prior of a network
    with far more weights than data outweighs the data (Wenzel et al., 2020).
    """
    return min(1.0, KL_SHARE * num_data / max(random_weights(model), 1))


def make_scheduler(given: Any, optimizer: Optimizer, every: str) -> LRScheduler | None:
    """The learning-rate scheduler: an instance, or what a function of the optimiser returns."""
    if given is None:
        return None
    made = given if isinstance(given, LRScheduler) or not callable(given) else given(optimizer)
    if not isinstance(made, LRScheduler):
        raise ConfigError(
            "scheduler: expected a function of the optimizer that returns a torch scheduler, "
            f"received {checks.short(given)}; "
            "pass lambda optimizer: CosineAnnealingLR(optimizer, epochs)"
        )
    if made.optimizer is not optimizer:
        raise ConfigError("scheduler: expected one of this optimizer; pass a function of the optimizer")
    if isinstance(made, ReduceLROnPlateau) and every == "step":
        raise ConfigError("scheduler: ReduceLROnPlateau looks at epochs; pass scheduler_every='epoch'")
    return made


def make_early_stopping(given: Any, val: Any) -> list[EarlyStopping]:
    """None, a patience, or an `EarlyStopping`, as a list of callbacks."""
    if given is None:
        return []
    stopping = given if isinstance(given, EarlyStopping) else EarlyStopping(patience=given)
    if val is None and stopping.monitor.startswith("val_"):
        raise ConfigError(
            f"early_stopping: monitors {stopping.monitor!r}; pass val=, or early_stopping=EarlyStopping('loss')"
        )
    return [stopping]


def as_file(name: str, path: Any) -> Path | None:
    """A path at which a file can be written."""
    if path is None:
        return None
    file = checks.path(name, path)
    if not writable_kind(file) or not os.path.isdir(os.path.abspath(file.parent)):
        raise ConfigError(
            f"{name}: expected a file in an existing directory, received {checks.short(str(path))}, which is "
            + ("in none" if writable_kind(file) else "a directory or a device; add or choose a file name")
        )
    return file
