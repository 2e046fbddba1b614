"""Ensemble model patching (Chang et al., 2019): several values for a few parameters, mixed.

Also DropConnect (Wan et al., 2013), a mixture of the same family, and point estimates with a prior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ... import checks
from ...config import check_choice, check_flag, check_positive, check_whole
from ...errors import ConfigError
from ...method import Method
from ...priors import Normal
from ...registry import register

MOST = 1000
TOLERANCE = 1e-6


@register
@dataclass(frozen=True)
class Patch(Method):
    """K components for the parameters of norm layers, of the output, or of whatever layers it is given.

    Args:
        components: how many values each patched parameter has.
        cross: every element takes a component by itself (ECMP, equation 5); otherwise a layer's weight and bias take
            one together (EMP, equation 4).
        shared: one component for all layers: an explicit ensemble of these parameters.
        probabilities: of the components; none for all as likely.
        mixing: "given" keeps these probabilities; "learned" begins with them and trains them, one set for every tensor
            (every layer where cross is False), by the score function; see `leanbayes.methods.patch.mixing`.
        prior: of the weights, Normal(0, tau^-1/2); None leaves them to the optimiser's weight decay, since
            a prior about zero draws norm layers and trained weights away from where they are.
        bias_prior: of the biases (rho in the paper); as the weights' if none is given.
        divergence: "equation 6" leaves the constants out; "bound" has them; "monte carlo" is unbiased.
        init: where the other components start: close to the pretrained values, perturbed, or afresh, by the layer's own
            initialisation (norm layers, which it starts at constants, are perturbed in either case).
        perturbation: the size of the perturbation, relative to the root mean square of the tensor: how strong the noise
            is at the start, and the one number to tune, which `fit` does by held-out data (`tune_noise_`). Less stays
            close to a pretrained network, and overconfident where that is; more makes a network that was not
            overconfident doubt too much.
        statistics: of a BatchNorm: shared by all components, or one set for each (EMP and ensembles only).
        balanced: `predict` lays the assignments out so that every component is used equally often.

    Component 0 is the model as it was. With three or more components the perturbations of the others, each weighed by
    its probability, sum to zero, so that the mean of the mixture is the pretrained tensor; a component less likely than
    the others starts further away than they do. On its own it takes norm layers and the output layer: the
    last weight layer in the order of registration.

    >>> from torch import nn
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    >>> plan = lb.bayesianize_(model, Patch(components=5))
    >>> plan.converted, plan.parameters_before, plan.parameters_after
    (['1', '3'], 74, 210)
    """

    summary: ClassVar[str] = "several values for norm layers and the output, mixed; a few percent more parameters"

    components: int = 5
    cross: bool = True
    shared: bool = False
    probabilities: tuple[float, ...] = ()
    mixing: Literal["given", "learned"] = "given"
    prior: Normal | None = None
    bias_prior: Normal | None = None
    divergence: Literal["equation 6", "bound", "monte carlo"] = "equation 6"
    init: Literal["perturb", "fresh"] = "perturb"
    perturbation: float = 0.05
    statistics: Literal["shared", "component"] = "shared"
    balanced: bool = True

    def __post_init__(self) -> None:
        hint = "one component is the layer as it is: leave it alone"
        check_whole(self, "components", at_least=2, at_most=MOST, hint=hint)
        check_flag(self, "cross", "shared", "balanced")
        check_choice(self, "divergence", ("equation 6", "bound", "monte carlo"))
        check_choice(self, "mixing", ("given", "learned"))
        check_choice(self, "init", ("perturb", "fresh"))
        check_choice(self, "statistics", ("shared", "component"))
        check_positive(self, "perturbation")
        check_priors(self)
        if self.cross and self.shared:
            raise ConfigError("Patch: expected cross or shared, received both; shared=True needs cross=False")
        if self.cross and self.statistics == "component":
            raise ConfigError(
                "Patch.statistics: expected 'shared' where every element has a component of its own (cross=True), "
                "received 'component'; use cross=False"
            )
        self._check_probabilities()

    def _check_probabilities(self) -> None:
        if not isinstance(self.probabilities, tuple):
            raise ConfigError(
                f"Patch.probabilities: expected a tuple of numbers, received {checks.short(self.probabilities)}"
            )
        if not self.probabilities:
            return
        if len(self.probabilities) != self.components:
            raise ConfigError(
                f"Patch.probabilities: expected one for each of {self.components} components, received "
                f"{len(self.probabilities)}"
            )
        check_probabilities("Patch.probabilities", self.probabilities)

    @property
    def p(self) -> tuple[float, ...]:
        """The probability of every component."""
        return self.probabilities or (1 / self.components,) * self.components


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


def check_priors(config: Any) -> None:
    """Refuse a prior or bias_prior that is neither a Normal nor None."""
    name = type(config).__name__
    for field in ("prior", "bias_prior"):
        value = vars(config).get(field)
        if value is not None and not isinstance(value, Normal):
            raise ConfigError(f"{name}.{field}: expected lb.Normal(std=...) or None, received {checks.short(value)}")
    if config.prior is None and vars(config).get("bias_prior") is not None:
        raise ConfigError(f"{name}.bias_prior: expected a prior of the weights with it, received prior=None")


def check_probabilities(where: str, probabilities: tuple[float, ...]) -> None:
    """Refuse anything but two or more numbers above 0 that sum to one."""
    numbers = all(isinstance(p, (int, float)) and not isinstance(p, bool) for p in probabilities)
    if len(probabilities) < 2 or not numbers or not all(p > 0 for p in probabilities):
        raise ConfigError(f"{where}: expected two or more numbers above 0, received {checks.short(probabilities)}")
    if not abs(math.fsum(probabilities) - 1) < TOLERANCE:
        raise ConfigError(
            f"{where}: expected numbers that sum to 1, received {checks.short(probabilities)}, whose sum is "
            f"{math.fsum(probabilities):.6g}; divide them by it"
        )
