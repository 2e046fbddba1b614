"""Rule sets for `Patch`: which layers of a network to patch."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...errors import ConfigError, ConversionError
from ...method import Method
from .config import Patch
from .implementation import weight_layers, with_ties
from .layer import is_norm


def norm_layer(name: str, module: nn.Module) -> bool:
    """A selector: norm layers."""
    return is_norm(module)


def norms(patch: Patch | None = None) -> dict[Any, Method | None]:
    """The rule set of norm layers alone: BatchNorm, LayerNorm and GroupNorm, whatever the network.

    >>> import leanbayes as lb
    >>> from leanbayes.models import resnet18
    >>> lb.plan(resnet18(), norms(Patch(components=5))).growth - 1  # table 4: 0.328 %
    0.0032849...
    """
    if patch is not None and not isinstance(patch, Patch):
        raise ConfigError(f"norms: expected lb.Patch(...) or nothing, received {type(patch).__name__}")
    return {norm_layer: patch or Patch()}


def norms_and_output(model: nn.Module, patch: Patch | None = None) -> dict[Any, Method | None]:
    """The rule set of norm layers and the output, the last weight layer in the order of registration.

    >>> import leanbayes as lb
    >>> from leanbayes.models import resnet18
    >>> lb.plan(model := resnet18(), norms_and_output(model)).parameters_after  # table 3
    13779912
    """
    layers = _outer(model)
    return {**norms(patch), **dict.fromkeys([layers[-1], *with_ties(layers[-1:], layers)], patch or Patch())}


def norms_input_output(model: nn.Module, patch: Patch | None = None) -> dict[Any, Method | None]:
    """The rule set of norm layers, the input and the output: the first and the last weight layer."""
    layers = _outer(model)
    first = [layers[0], *with_ties(layers[:1], layers)]
    return {**norms_and_output(model, patch), **dict.fromkeys(first, patch or Patch())}


def _outer(model: nn.Module) -> list[nn.Module]:
    if not isinstance(model, nn.Module):
        raise ConversionError(
            f"expected the model first, then lb.Patch(...), received {type(model).__name__}; for example "
            "norms_and_output(model, lb.Patch(5))"
        )
    if not (found := weight_layers(model)):
        raise ConversionError(
            f"expected a model with a Linear, convolution or Embedding as its output, received a "
            f"{type(model).__name__} without any that can be patched; write the rules by hand"
        )
    return found
