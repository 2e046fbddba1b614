"""Deep ensembles (Lakshminarayanan et al., 2017) of any method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ... import checks
from ...config import check_choice, check_positive, check_whole
from ...errors import ConfigError
from ...method import Method
from ...registry import register

MOST = 1000


@register
@dataclass(frozen=True)
class Ensemble(Method):
    """K networks, each with all parameters and statistics of its own, plain or under a method: K times the parameters.

    Args:
        members: how many networks.
        method: what each of them is, for example lb.MeanField(); plain networks if none is given.
        init: where the others start: afresh, by the layers' own initialisation, or close to the first, perturbed;
            "auto" perturbs a network that has been trained, and starts afresh from one that has not.
        perturbation: the size of the perturbation, relative to the root mean square of each tensor.

    The model becomes member 0. A training step trains one member, in turn, and does not change the others, so for each
    member to see the data E times takes `fit(epochs=K * E)`. `predict` goes through the members one after the other;
    plain members need no more samples than there are members, and get no more.

    >>> from torch import nn
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    >>> plan = lb.bayesianize_(model, lb.Ensemble(members=5, method=lb.MeanField()))
    >>> plan.converted, plan.parameters_before, plan.parameters_after
    (['0', '1', '3'], 74, 660)
    """

    summary: ClassVar[str] = "several networks, plain or of any method; as many times the parameters"

    members: int = 5
    method: Method | None = None
    init: Literal["auto", "fresh", "perturb"] = "auto"
    perturbation: float = 0.03

    def __post_init__(self) -> None:
        hint = "one network is no ensemble: leave it as it is, or give it a method"
        check_whole(self, "members", at_least=2, at_most=MOST, hint=hint)
        if self.method is not None and (not isinstance(self.method, Method) or type(self.method) is Method):
            raise ConfigError(
                "Ensemble.method: expected a method such as lb.MeanField(), or None, "
                f"received {checks.short(self.method)}"
            )
        if isinstance(self.method, Ensemble):
            raise ConfigError(
                f"Ensemble.method: an ensemble of ensembles is an ensemble; say "
                f"lb.Ensemble(members={self.members * self.method.members}) with the method of its members"
            )
        check_choice(self, "init", ("auto", "fresh", "perturb"))
        check_positive(self, "perturbation")

    @property
    def networks(self) -> int:
        """The number of members."""
        return self.members
