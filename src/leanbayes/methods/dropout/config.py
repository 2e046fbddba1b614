"""Monte-Carlo dropout (Gal and Ghahramani, 2016): dropout that stays on when predicting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ...config import check_between
from ...method import Method
from ...registry import register

if TYPE_CHECKING:
    from torch import nn

    from ...posteriors.base import Posterior


@register
@dataclass(frozen=True)
class Dropout(Method):
    """Inputs of a Linear, channels into a convolution, dropped at random; no more parameters.

    Args:
        rate: the probability of being dropped; None keeps the rate of the model's own dropout layers (0.1 elsewhere).

    On its own it takes the model's `nn.Dropout` layers where there are any, since those are what the model was trained
    with, and otherwise every Linear and convolution but the first, whose inputs are the data.

    >>> from torch import nn
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> lb.bayesianize_(model, lb.Dropout(0.2)).converted
    ['2']
    """

    summary: ClassVar[str] = "dropout that stays on; no more parameters"

    rate: float | None = None

    def __post_init__(self) -> None:
        if self.rate is not None:
            check_between(self, "rate", 0.0, 1.0, open_high=True)

    def refuses(self, module: nn.Module) -> str | None:
        """Embeddings (their inputs are indices) and whatever has no weight."""
        from torch import nn

        from ...layers.operations import refusal
        from .layer import OWN_DROPOUT

        if type(module) in OWN_DROPOUT:
            return "it drops everything" if self._rate_of(module) >= 1 else None
        if isinstance(module, nn.Embedding):
            return "its inputs are indices"
        if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
            return "attention reads its weight without calling it, so that its inputs cannot be masked"
        return refusal(module)

    def selects(self, module: nn.Module, model: nn.Module) -> bool:
        """The model's own dropout layers, or else every weight layer but the first."""
        from .layer import OWN_DROPOUT

        usable = [m for m in model.modules() if self.refuses(m) is None]
        if own := [m for m in usable if type(m) in OWN_DROPOUT and self._rate_of(m) > 0]:
            return module in own
        weights = [m for m in usable if type(m) not in OWN_DROPOUT]
        return module in weights[1:] if len(weights) > 1 else module in weights

    def convert(self, module: nn.Module, memo: dict[int, Posterior]) -> nn.Module:
        """A layer that masks its inputs; the parameters are the same objects under the same names."""
        from .layer import OWN_DROPOUT, DropoutAlways, DropoutLayer

        if type(module) in OWN_DROPOUT:
            return DropoutAlways(module, self._rate_of(module))
        return DropoutLayer(module, 0.1 if self.rate is None else self.rate)

    def _rate_of(self, module: Any) -> float:
        """The rate that a dropout layer of the model's own is given."""
        return float(module.p) if self.rate is None else self.rate
