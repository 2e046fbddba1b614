"""`save_pretrained` of a converted model: its files name layers that `from_pretrained` does not know."""

from __future__ import annotations

import warnings
from typing import Any, Protocol, runtime_checkable

from torch import nn

from ..errors import LeanBayesWarning
from ..layers.contract import BayesianLayer

_NAME = "save_pretrained"


@runtime_checkable
class Pretrained(Protocol):
    """A model of transformers, diffusers or huggingface_hub."""

    def save_pretrained(self, *arguments: Any, **named: Any) -> Any:
        """Write a folder that ``from_pretrained`` reads."""


class SaveWithWarning:
    """Stands in for a model's method while some of its layers are Bayesian: warns, and saves all the same.

    A trainer may save checkpoints with it, so it must not fail.
    """

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
    """Put the warning on every such model that holds a Bayesian layer, and take it off the others."""
    for module in model.modules():
        if not isinstance(module, Pretrained):
            continue
        if any(isinstance(inner, BayesianLayer) for inner in module.modules()):
            vars(module)[_NAME] = SaveWithWarning(module)
        else:
            vars(module).pop(_NAME, None)
