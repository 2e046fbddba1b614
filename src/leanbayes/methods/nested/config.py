"""Variational nested dropout (Cui et al.): networks that are trained once and run at any width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ... import checks
from ...config import check_between, check_choice, check_flag, check_positive, check_whole
from ...errors import ConfigError
from ...method import Method
from ...registry import register
from ..mean_field.config import MeanField
from ..variance.config import Variance
from ..variational_dropout.config import VariationalDropout

MOST = 10_000
TAILS = ("learned", "uniform", "geometric", "categorical")
WEIGHTS = VariationalDropout(parameterisation="multiplicative", log_alpha=-6.0, approximation="cui")
"""N(theta, alpha theta^2), alpha per weight, with the log-uniform KL of equation 17 as it has to be read.

log alpha starts at -6, where the authors, who train for 600 epochs, have -1: so much noise costs accuracy in short
trainings, and a pretrained network its answers.
"""


@dataclass(frozen=True)
class Ordered(Method):
    """Base of `Nested` and `NestedDropout`; see there for what the fields mean."""

    follows_channels: ClassVar[bool] = True

    groups: int = 32
    base_groups: int = 2
    tails: Literal["learned", "uniform", "geometric", "categorical"] = "learned"
    rate: float = 0.1
    probabilities: tuple[float, ...] = ()
    prior_keep: float | None = None
    tail_weight: float = 0.02
    width_penalty: float = 0.0
    temperature: float = 2.0
    final_temperature: float | None = None
    anneal_steps: int = 1000
    hard: bool = True
    share: bool = True
    per_sample: bool = False
    skip: bool = False
    order: tuple[str, ...] | None = None
    input_shape: tuple[int, ...] | None = None
    channels: tuple[str, ...] = ()
    legacy: bool = False
    by_importance: bool = True
    start_full: float = 0.9

    def __post_init__(self) -> None:
        here = type(self).__name__
        check_whole(self, "groups", at_least=2, at_most=MOST)
        check_whole(self, "base_groups", at_most=MOST)
        check_whole(self, "anneal_steps")
        if self.base_groups >= self.groups:
            raise ConfigError(
                f"{here}.base_groups: expected fewer than the {self.groups} groups, so that some can be dropped, "
                f"received {self.base_groups}"
            )
        check_choice(self, "tails", TAILS)
        check_positive(self, "rate", "temperature")
        check_between(self, "rate", 0.0, 1.0, open_high=True)
        for field in ("tail_weight", "width_penalty"):
            check_between(self, field, 0.0, 1e6)
        if self.final_temperature is not None:
            check_positive(self, "final_temperature")
        if self.prior_keep is not None:
            check_positive(self, "prior_keep")
            check_between(self, "prior_keep", 0.0, 1.0, open_high=True)
        check_flag(self, "hard", "share", "per_sample", "skip", "legacy", "by_importance")
        check_between(self, "start_full", 0.0, 1.0, open_high=True)
        self._check_probabilities()
        self._check_names()

    def _check_probabilities(self) -> None:
        here, given, nodes = type(self).__name__, self.probabilities, self.groups - self.base_groups + 1
        numbers = isinstance(given, tuple) and all(type(p) in (int, float) for p in given)
        if not numbers:
            raise ConfigError(f"{here}.probabilities: expected a tuple of numbers, received {checks.short(given)}")
        if (self.tails == "categorical") != bool(given):
            raise ConfigError(
                f"{here}.probabilities: expected {nodes} of them with tails='categorical', and none otherwise, "
                f"received {len(given)} with tails={self.tails!r}"
            )
        if given and (len(given) != nodes or not all(p >= 0 for p in given) or not 0 < sum(given) < float("inf")):
            raise ConfigError(
                f"{here}.probabilities: expected {nodes} numbers of 0 or more, one for each width from "
                f"{self.base_groups} to {self.groups} groups, received {given}"
            )

    def _check_names(self) -> None:
        here = type(self).__name__
        for field in ("order", "channels"):
            value = vars(self)[field]
            if value is not None and not (isinstance(value, tuple) and all(isinstance(v, str) for v in value)):
                raise ConfigError(
                    f"{here}.{field}: expected a tuple of names such as ('conv*',), received {checks.short(value)}"
                )
        shape = self.input_shape
        if shape is not None and not (isinstance(shape, tuple) and all(type(n) is int and n > 0 for n in shape)):
            raise ConfigError(
                f"{here}.input_shape: expected the shape of one datum such as (3, 32, 32), "
                f"received {checks.short(shape)}"
            )
        for text in self.channels:
            roles(text)


@register
@dataclass(frozen=True)
class Nested(Ordered):
    """Random weights, and channels in an order of importance that is learned: any part from the front is a network.

    Args:
        groups: into how many ordered groups the channels of a layer are cut, at most; a layer with fewer channels has
            a group a channel, and groups are as equal as possible where their number does not divide the channels.
        base_groups: how many of them always stay; in proportion where there are fewer groups.
        tails: how widths are distributed: learned, or fixed and uniform, geometric or categorical.
        rate: of geometric tails, the probability that a kept group is the last one.
        probabilities: of categorical tails, for every width from base_groups to groups.
        prior_keep: the conditional keep probability of the prior chain (the authors': 0.95); None for uniform tails.
        tail_weight: of KL(q(z) || p(z)) in the loss, which is not divided by the number of data.
        width_penalty: lambda of the ordered l0 penalty lambda sum_j j beta_j (equation 13).
        temperature: of the soft samples; for hard ones of their gradients alone.
        final_temperature: where it falls to, exponentially; None to stay.
        anneal_steps: in how many steps.
        hard: masks of zeros and ones with straight-through gradients, or soft ones.
        share: one draw for all layers, so that their widths vary together, or one a layer.
        per_sample: a mask for every datum of a training batch, or one for all.
        skip: leave dropped channels out of the arithmetic, where layers allow it: at set widths, and in training where
            tails are fixed (learned ones need to know what dropped channels would have said).
        order: names, with wildcards, of the layers whose outputs are ordered; None for all channels that no addition
            ties together, () for none.
        input_shape: of one datum, for networks that cannot be followed without an example.
        channels: who feeds whom, for networks that cannot be followed at all: "conv1 > bn1 > conv2".
        legacy: as the authors' code: masks in front of BatchNorm, probabilities in the place of logarithms, mu = 0.95
            at the start. A masked network is then no sliced one.
        by_importance: of a trained network, the channels that weigh most come first; otherwise those with the lowest
            numbers. Nothing is moved, so that it stays what it was. Not with skip, which needs the order of numbers.
        start_full: of a trained network and learned tails, the probability of the full width at the start beyond its
            share, so that training keeps the whole network as good as it was; narrower ones get less, the narrower.
        weights: what each weight is; by default N(theta, alpha theta^2) as in the paper, log alpha from -6.
        kappa: multiplies the KL of the weights.

    A layer's weights are random wherever it is given this method; its outputs are ordered where the channel graph
    allows it, and `lb.plan` says which are. Training draws widths; predictions are made at full width until
    `lb.set_width_` sets another, or "sampled".

    >>> from torch import nn
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))
    >>> plan = lb.bayesianize_(model, lb.Nested(groups=8, base_groups=2))
    >>> plan.entries[0].why
    'Nested(); orders 64 channels in 8 groups, 2 always on'
    >>> lb.set_width_(model, 0.5)
    {'0': 0.5}
    """

    summary: ClassVar[str] = "random weights in a learned order; trained once, run at any width"

    weights: VariationalDropout | MeanField | Variance = WEIGHTS
    kappa: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "kappa")
        if not isinstance(self.weights, (VariationalDropout, MeanField, Variance)):
            raise ConfigError(
                f"Nested.weights: expected lb.VariationalDropout(), lb.MeanField() or lb.Variance(), "
                f"received {checks.short(self.weights)}"
            )


@register
@dataclass(frozen=True)
class NestedDropout(Ordered):
    """Plain weights, and channels in an order of importance: widths are drawn from tails that are given.

    Args:
        groups: into how many ordered groups the channels of a layer are cut, at most; a layer with fewer channels has
            a group a channel, and groups are as equal as possible where their number does not divide the channels.
        base_groups: how many of them always stay; in proportion where there are fewer groups.
        tails: uniform, geometric (Rippel et al.) or categorical (Cui et al.); learned with a width_penalty is the
            deterministic relative of BN3 (section 3.3 and A.4 of its paper).
        rate: of geometric tails, the probability that a kept group is the last one.
        probabilities: of categorical tails, for every width from base_groups to groups.
        prior_keep: of learned tails, the conditional keep probability of the prior chain; None for uniform tails.
        tail_weight: of learned tails, that of KL(q(z) || p(z)) in the loss, which is not divided by the data.
        width_penalty: of learned tails, lambda of the ordered l0 penalty lambda sum_j j beta_j (equation 13).
        temperature: of learned tails, as of `Nested`.
        final_temperature: as of `Nested`.
        anneal_steps: as of `Nested`.
        hard: as of `Nested`.
        share: one draw for all layers, so that their widths vary together, or one a layer.
        per_sample: a mask for every datum of a training batch, or one for all.
        skip: leave dropped channels out of the arithmetic, where layers allow it, unless tails are learned.
        order: names, with wildcards, of the layers whose outputs are ordered; None for all channels that no addition
            ties together.
        input_shape: of one datum, for networks that cannot be followed without an example.
        channels: who feeds whom, for networks that cannot be followed at all: "conv1 > bn1 > conv2".
        legacy: as of `Nested`.
        by_importance: as of `Nested`.
        start_full: as of `Nested`.

    >>> from torch import nn
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    >>> plan = lb.bayesianize_(model, lb.NestedDropout(tails="geometric", rate=0.05))
    >>> plan.converted, plan.growth
    (['0'], 1.0)
    """

    summary: ClassVar[str] = "plain weights in a given order; trained once, run at any width"

    tails: Literal["learned", "uniform", "geometric", "categorical"] = "uniform"


def roles(text: str) -> dict[str, list[str]]:
    """Producers, through and consumers of one group of channels, from "a, b > norm > c" or "a > c".

    >>> roles("conv1 > bn1 > conv2, conv3")
    {'producers': ['conv1'], 'through': ['bn1'], 'consumers': ['conv2', 'conv3']}
    """
    parts = [[name.strip() for name in part.split(",") if name.strip()] for part in text.split(">")]
    if len(parts) not in (2, 3) or not parts[0] or not parts[-1]:
        raise ConfigError(
            f"channels: expected 'producers > consumers' or 'producers > norm layers > consumers', names separated by "
            f"commas, received {checks.short(text)}"
        )
    return {"producers": parts[0], "through": parts[1] if len(parts) == 3 else [], "consumers": parts[-1]}
