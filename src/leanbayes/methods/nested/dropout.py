"""Nested dropout (Rippel et al., 2014) on the channels of a network: fully nested networks, FN3 (Cui et al., 2020)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ...method import Method
from ...registry import register
from .ordered import Ordered

if TYPE_CHECKING:
    from torch import nn

    from ...posteriors.base import Posterior


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

    >>> from torch import nn
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    >>> plan = lb.bayesianize_(model, lb.NestedDropout(tails="geometric", rate=0.05))
    >>> plan.converted, plan.growth
    (['0'], 1.0)
    """

    summary: ClassVar[str] = "plain weights in a given order; trained once, run at any width"

    tails: Literal["learned", "uniform", "geometric", "categorical"] = "uniform"

    def selects(self, module: nn.Module, model: nn.Module) -> bool:
        """The layers that hold the unit of an ordered group."""
        return any(takes(module) for _, takes in self.parts(model))

    def parts(self, model: nn.Module) -> list[tuple[Method, Callable[[nn.Module], bool]]]:
        """On its own: the first producer of every group of channels that can be ordered."""
        layers = {name: module for name, module in model.named_modules() if self.refuses(module) is None}
        owners = {id(layers[name]) for name in self.placement(model, layers).owned}
        return [(self, lambda module: id(module) in owners)]

    def convert(self, module: nn.Module, memo: dict[int, Posterior]) -> nn.Module:
        """The same layer, holding the units of the channels it produces."""
        from .layer import OrderedPlain

        return OrderedPlain(module, self._units(module, memo))
