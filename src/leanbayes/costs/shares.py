"""The shares of layers that are left if ordered channels are cut to a width."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from ..layers.contract import features
from ..ordering.unit import units


@dataclass
class Share:
    """The part of a layer's outputs and of its inputs that the widths keep."""

    outputs: float = 1.0
    inputs: float = 1.0

    def of(self, dimensions: int) -> float:
        """Of a tensor: a weight (outputs, inputs, ...), or one number an output."""
        return self.outputs * self.inputs if dimensions > 1 else self.outputs


def shares(model: nn.Module, masked: bool = False) -> dict[nn.Module, Share]:
    """The share of each layer that produces, passes on or consumes ordered channels, at the widths that are set.

    masked: only by units that multiply by zero, not by those that leave channels out of the arithmetic.
    """
    found: dict[nn.Module, Share] = {}
    for unit in units(model):
        if masked and unit.known_nodes() is not None:
            continue
        group = unit.group
        dropped = group.size - len(unit.kept_channels(unit.width or unit.limit))
        sides = [("outputs", use) for use in (*group.producers, *group.through)]
        sides += [("inputs", use) for use in group.consumers]
        for side, use in dict.fromkeys(sides):
            module = model.get_submodule(use.module)
            if (count := features(module, side)) is not None:  # groups of channels may lie side by side in a layer
                share = found.setdefault(module, Share())
                vars(share)[side] -= dropped * use.block / count
    return found
