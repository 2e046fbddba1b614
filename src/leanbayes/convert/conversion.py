"""State that methods share while a model is converted."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from torch import nn

from ..layers.bayes import BayesLayer
from ..posteriors.base import Posterior
from ..priors import Prior
from .channels import ChannelGraph

T = TypeVar("T")
Q = TypeVar("Q", bound=Posterior)


class Conversion:
    """The model, the posteriors made so far, the channel graph, and storage for methods.

    model: the whole network, or None if a method converts parts of something else, such as members of an ensemble.
    posteriors: by the identity of the parameter they were made from, so that tied parameters share one.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model = model
        self.posteriors: dict[int, Posterior] = {}
        self._graphs: dict[Hashable, ChannelGraph] = {}
        self._scratch: dict[Hashable, Any] = {}

    def posterior(self, parameter: nn.Parameter, make: Callable[[], Q]) -> Q:
        """The posterior of a parameter, made at the first call."""
        if id(parameter) not in self.posteriors:
            self.posteriors[id(parameter)] = make()
        return self.posteriors[id(parameter)]  # type: ignore[return-value]

    def graph(self, key: Hashable, trace: Callable[[], ChannelGraph]) -> ChannelGraph:
        """The channel graph of the model, traced once for each ``key``."""
        if key not in self._graphs:
            self._graphs[key] = trace()
        return self._graphs[key]

    def scratch(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value that a method stores under a key, made at the first call."""
        if key not in self._scratch:
            self._scratch[key] = make()
        found: T = self._scratch[key]
        return found


def bayes_layer(
    module: nn.Module,
    conversion: Conversion,
    make: Callable[[str], Posterior],
    prior: Callable[[str], Prior],
    *,
    random_bias: bool,
    estimator: str,
    approximation: str | None = None,
) -> BayesLayer:
    """A BayesLayer for a module, with posteriors from ``make``; tied parameters share one."""
    posteriors: dict[str, Posterior] = {}
    for name in ("weight", "bias") if random_bias else ("weight",):
        if (parameter := module._parameters.get(name)) is not None:
            posteriors[name] = conversion.posterior(parameter, lambda name=name: make(name))  # type: ignore[misc]
    priors = {name: prior(name) for name in posteriors}
    return BayesLayer(module, posteriors, priors, estimator=estimator, approximation=approximation)
