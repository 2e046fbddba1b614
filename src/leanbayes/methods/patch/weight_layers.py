"""What the methods of the mixture family share: which layers have weights, their ties and names, their priors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import checks
from ...errors import ConfigError
from ...priors import Normal

if TYPE_CHECKING:
    from torch import nn


def weight_layers(model: nn.Module) -> list[nn.Module]:
    """Linear layers, convolutions and embeddings, Bayesian or not, in the order of registration."""
    from ...layers.operations import WEIGHT_LAYERS, refusal

    return [m for m in model.modules() if refusal(m) is None or isinstance(getattr(m, "shell", None), WEIGHT_LAYERS)]


def with_ties(chosen: list[nn.Module], weights: list[nn.Module]) -> list[nn.Module]:
    """The chosen layers, and those that share a weight with one of them: a tied tensor is one random variable."""
    shared = {id(w) for layer in chosen if (w := layer._parameters.get("weight")) is not None}
    return [layer for layer in weights if id(layer._parameters.get("weight")) in shared]


def priors_of(config: Any, module: nn.Module) -> dict[str, Normal]:
    """The prior of each parameter by name, as ``prior`` and ``bias_prior`` of a config say; none if there is none."""
    if config.prior is None:
        return {}
    own = [name for name, parameter in module._parameters.items() if parameter is not None]
    return {name: config.bias_prior or config.prior if name == "bias" else config.prior for name in own}


def check_priors(config: Any) -> None:
    """prior and bias_prior are Normal or None."""
    name = type(config).__name__
    for field in ("prior", "bias_prior"):
        value = getattr(config, field, None)
        if value is not None and not isinstance(value, Normal):
            raise ConfigError(f"{name}.{field}: expected lb.Normal(std=...) or None, received {checks.short(value)}")
    if config.prior is None and getattr(config, "bias_prior", None) is not None:
        raise ConfigError(f"{name}.bias_prior: expected a prior of the weights with it, received prior=None")
