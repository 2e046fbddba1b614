"""Point estimates with a prior: what stays of a network beside its patches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...errors import ConfigError
from ...method import Method
from ...priors import Normal
from ...registry import register
from .weight_layers import check_priors, priors_of

if TYPE_CHECKING:
    from torch import nn

    from ...posteriors.base import Posterior


@register
@dataclass(frozen=True)
class Point(Method):
    """Point estimates with a prior: the shared layers of equation 6, beside patches. Nothing is random.

    Args:
        prior: of the weights; the KL gains (w - mean)^2 / (2 std^2).
        bias_prior: of the biases; as the weights' if none is given.

    Without it the layers that are not patched are left to the optimiser's weight decay.

    >>> from torch import nn
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    >>> lb.bayesianize_(model, {nn.BatchNorm1d: lb.Patch(), nn.Linear: Point()}).converted
    ['0', '1', '2']
    """

    summary: ClassVar[str] = "point estimates with a prior; nothing random"
    random: ClassVar[bool] = False

    prior: Normal = Normal()  # noqa: RUF009  (frozen)
    bias_prior: Normal | None = None

    def __post_init__(self) -> None:
        if self.prior is None:
            raise ConfigError("Point.prior: expected a prior such as lb.Normal(std=1.0), received None")
        check_priors(self)

    def refuses(self, module: nn.Module) -> str | None:
        """Whatever `Patch` refuses."""
        from .layer import refusal

        return refusal(module)

    def convert(self, module: nn.Module, memo: dict[int, Posterior]) -> nn.Module:
        """The same operation with the same parameters."""
        from .layer import Patched

        return Patched(module, {}, priors_of(self, module))
