"""Bayesian nested networks, BN3 (variational nested dropout, Cui et al.): trained once, run at any width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ... import checks
from ...config import check_positive
from ...errors import ConfigError
from ...registry import register
from ..mean_field.config import MeanField
from ..variance.config import Variance
from ..variational_dropout.config import VariationalDropout
from .ordered import Ordered

if TYPE_CHECKING:
    from torch import nn

    from ...posteriors.base import Posterior

WEIGHTS = VariationalDropout(parameterisation="multiplicative", log_alpha=-3.0, approximation="cui")
"""N(theta, alpha theta^2), alpha per weight, with the log-uniform KL of equation 17 as it has to be read.

log alpha starts at -3, where the authors, who train for 600 epochs, have -1: so much noise costs accuracy in short
trainings.
"""


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
        weights: what each weight is; by default N(theta, alpha theta^2) as in the paper, log alpha from -3.
        kappa: multiplies the KL of the weights.

    A layer's weights are random wherever it is given this method; its outputs are ordered where the channel graph
    allows it, and `lb.plan` says which are. Set a width with `lb.set_width_`; without one, widths are sampled.

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

    def convert(self, module: nn.Module, memo: dict[int, Posterior]) -> nn.Module:
        """A Bayesian layer that holds the units of the channels it produces."""
        from ...layers.bayes import BayesLayer
        from .layer import OrderedLayer

        layer = self.weights.convert(module, memo)
        assert isinstance(layer, BayesLayer)
        return OrderedLayer(layer, module, self._units(module, memo), self.kappa)
