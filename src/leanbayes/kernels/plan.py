"""The order in which the kernels meet the nonzeros of a weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .geometry import Geometry
from .library import call


@dataclass(frozen=True)
class Order:
    """One pass over the nonzeros.

    rows: where each (channel, tap) begins. offsets: of the activation that a nonzero meets. slots: where its parameters
    are stored. All int32.
    """

    rows: Tensor
    offsets: Tensor
    slots: Tensor


@dataclass(frozen=True)
class Plan:
    """Both passes of one weight on activations of one size."""

    geometry: Geometry
    forward: Order
    backward: Order


def plan(geometry: Geometry, index: Tensor) -> Plan:
    """The plan of a weight with nonzeros at ``index``, found by counting sorts in C.

    index: (n,) int32, in any order: places in the flattened (outputs, inputs / groups, height, width).
    """
    taps = geometry.kernel[0] * geometry.kernel[1]
    order = [
        Order(*(torch.empty(n, dtype=torch.int32) for n in (channels * taps + 1, len(index), len(index))))
        for channels in (geometry.outputs, geometry.inputs)
    ]
    tables = [t for o in order for t in (o.rows, o.offsets, o.slots)]
    call("leanbayes_plan", geometry.numbers(0), len(index), index.contiguous(), *tables)
    return Plan(geometry, *order)
