"""A warning about training without the KL, as by a trainer that minimises the likelihood alone.

The first gradient that reaches a layer in train mode is noted by a hook on one of its parameters, which then removes
itself; that its KL was asked for is noted by `leanbayes.kl.kl_sum`. Copies of a model lose the hook, and keep what was
noted.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from ..errors import LeanBayesWarning
from ..walk import modules
from .contract import BayesianLayer


def watch(layer: nn.Module) -> None:
    """Note the first gradient of a layer that has a KL, and is in train mode."""
    if not isinstance(layer, BayesianLayer) or not layer.has_kl:
        return
    parameter = next((p for p in layer.parameters() if p.requires_grad and p.is_leaf), None)
    if parameter is None:
        return
    handles: list[Any] = []

    def seen(_: Any) -> None:
        if not layer.training:  # a saliency map, or an attack, asks a trained model for gradients
            return
        layer.gradient_seen = True
        handles.pop().remove()

    handles.append(parameter.register_post_accumulate_grad_hook(seen))


def warn_without_kl(model: nn.Module) -> None:
    """Warn once if layers were trained and the KL of none was ever computed."""
    layers = [m for m in modules(model) if isinstance(m, BayesianLayer) and m.gradient_seen]
    if not layers or any(layer.kl_counted for layer in layers):
        return
    warnings.warn(
        f"{len(layers)} Bayesian layers were trained and their KL was never computed, so that nothing keeps their "
        "noise from vanishing: train with lb.fit, or add the KL to the loss of your loop or trainer, as lb.ELBO does "
        "(loss + lb.kl_sum(model) / number of training data)",
        LeanBayesWarning,
        stacklevel=4,
    )
    for layer in layers:
        layer.gradient_seen = False
