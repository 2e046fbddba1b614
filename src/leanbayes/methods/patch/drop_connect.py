"""DropConnect (Wan et al., 2013) as a member of the mixture family: single weights dropped at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ...config import check_flag, check_positive
from ...errors import ConfigError
from ...method import Method
from ...priors import Normal
from ...registry import register
from .weight_layers import check_priors, weight_layers, with_ties

if TYPE_CHECKING:
    from torch import nn

    from ...posteriors.base import Posterior


@register
@dataclass(frozen=True)
class DropConnect(Method):
    """Every weight zero with probability ``rate``, otherwise itself / (1 - rate); no more parameters (table 2).

    Args:
        rate: the probability of zero.
        prior: of the weights; None, as with dropout, leaves them to the optimiser's weight decay.
        balanced: `predict` lays the zeros out so that every weight is dropped as often as the rate says.

    On its own it takes every weight layer but the first.

    >>> from torch import nn
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> lb.bayesianize_(model, DropConnect(0.2)).growth
    1.0
    """

    summary: ClassVar[str] = "single weights dropped at random; no more parameters"

    rate: float = 0.1
    prior: Normal | None = None
    balanced: bool = True

    def __post_init__(self) -> None:
        check_positive(self, "rate")
        if self.rate >= 1:
            raise ConfigError(f"DropConnect.rate: expected a probability below 1, received {self.rate}")
        check_flag(self, "balanced")
        check_priors(self)

    def refuses(self, module: nn.Module) -> str | None:
        """Whatever has no operation with a weight."""
        from ...layers.operations import refusal

        return refusal(module)

    def selects(self, module: nn.Module, model: nn.Module) -> bool:
        """Every weight layer but the first, if there are several and it shares its weight with none of them."""
        weights = weight_layers(model)
        return module in with_ties(weights[1:] or weights, weights)

    def convert(self, module: nn.Module, memo: dict[int, Posterior]) -> nn.Module:
        """A layer whose weight is a mixture of itself and zero."""
        from .layer import Patched
        from .mixture import drop_connect

        known: dict[Any, Any] = memo
        w: Any = module._parameters["weight"]
        if id(w) not in memo:
            memo[id(w)] = drop_connect(w, self.rate, balanced=self.balanced)
        return Patched(module, {"weight": known[id(w)]}, {} if self.prior is None else {"weight": self.prior})
