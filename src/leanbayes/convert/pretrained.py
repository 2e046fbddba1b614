"""A warning on `save_pretrained` of converted models, whose files `from_pretrained` cannot read."""

from __future__ import annotations

import warnings
from typing import Any, Protocol, runtime_checkable

from torch import nn

from ..errors import LeanBayesWarning
from ..layers.contract import BayesianLayer

_NAME = "save_pretrained"


@runtime_checkable
class Pretrained(Protocol):
    """A model with a method ``save_pretrained``, as in transformers, diffusers and huggingface_hub."""

    def save_pretrained(self, *arguments: Any, **named: Any) -> Any:
        """Write a folder that ``from_pretrained`` reads."""


class SaveWithWarning:
    """Replaces ``save_pretrained`` of a model with Bayesian layers: warns, then saves, since a trainer may call it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        warnings.warn(
            "save_pretrained writes Bayesian layers that from_pretrained does not know and would initialise anew, at "
            "random: keep this model with lb.save(model, 'model.safetensors') and lb.load('model.safetensors', "
            "into=the plain model), or save the plain network at its means, lb.extract(model).save_pretrained(folder)",
            LeanBayesWarning,
            stacklevel=2,
        )
        return type(self.model).save_pretrained(self.model, *arguments, **named)  # type: ignore[attr-defined]


def guard_(model: nn.Module) -> None:
    """Add the warning to models with Bayesian layers, and remove it from others."""
    for module in model.modules():
        if not isinstance(module, Pretrained):
            continue
        if any(isinstance(inner, BayesianLayer) for inner in module.modules()):
            vars(module)[_NAME] = SaveWithWarning(module)
        else:
            vars(module).pop(_NAME, None)
