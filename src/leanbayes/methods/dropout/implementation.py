"""The implementation of `Dropout`."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...convert.conversion import Conversion
from ...convert.implementation import Implementation, implements
from ...layers.contract import BayesianLayer
from ...layers.operations import refusal
from . import moments  # noqa: F401  (registers its rules)
from .config import Dropout
from .layer import OWN_DROPOUT, DropoutAlways, DropoutLayer


@implements(Dropout)
class _Dropout(Implementation[Dropout]):
    def reason_unsupported(self, module: nn.Module) -> str | None:
        """For embeddings (their inputs are indices) and whatever has no weight."""
        if type(module) in OWN_DROPOUT:
            return "it drops everything" if self._rate_of(module) >= 1 else None
        if isinstance(module, nn.Embedding):
            return "its inputs are indices"
        if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
            return "attention reads its weight without calling it, so that its inputs cannot be masked"
        return refusal(module)

    def selects(self, module: nn.Module, model: nn.Module) -> bool:
        """The model's own dropout layers, or else every weight layer except the first."""
        usable = [m for m in model.modules() if self.reason_unsupported(m) is None]
        if own := [m for m in usable if type(m) in OWN_DROPOUT and self._rate_of(m) > 0]:
            return module in own
        weights = [m for m in usable if type(m) not in OWN_DROPOUT]
        return module in weights[1:] if len(weights) > 1 else module in weights

    def convert(self, module: nn.Module, conversion: Conversion) -> BayesianLayer:
        """A layer that masks its inputs, with the same parameters under the same names."""
        if type(module) in OWN_DROPOUT:
            return DropoutAlways(module, self._rate_of(module))
        return DropoutLayer(module, self.config.elsewhere if self.config.rate is None else self.config.rate)

    def _rate_of(self, module: Any) -> float:
        """The rate of a dropout layer of the model."""
        return float(module.p) if self.config.rate is None else self.config.rate
