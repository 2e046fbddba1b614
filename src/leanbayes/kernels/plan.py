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

    rows: where each range of them begins. offsets: of the activation that a nonzero meets. slots: where its parameters
    are stored. All int32.
    """

    rows: Tensor
    offsets: Tensor
    slots: Tensor


@dataclass(frozen=True)
class Plan:
    """Both passes of one weight on activations of one size."""

    geometry: Geometry
    tile: int
    forward: Order
    backward: Order

    def numbers(self, batch: int) -> list[int]:
        """What the compiled kernels read of it."""
        return self.geometry.numbers(batch, self.tile)


def plan(geometry: Geometry, index: Tensor) -> Plan:
    """The plan of a weight with nonzeros at ``index``, found by counting sorts in C.

    index: (n,) int32, in any order: places in the flattened (outputs, inputs / groups, height, width).
    """
    (height, width), tile = geometry.kernel, geometry.tile(len(index))
    # ranges: (output, tap) forward; (tile, input, row of taps) backward, or (tile, input, tap) for a single output
    segments = height * (width if geometry.out_size == (1, 1) else geometry.stride[1])
    rows = geometry.outputs * height * width, -(-geometry.outputs // tile) * geometry.inputs * segments
    order = [Order(*(torch.empty(n, dtype=torch.int32) for n in (r + 1, len(index), len(index)))) for r in rows]
    tables = [t for o in order for t in (o.rows, o.offsets, o.slots)]
    call("leanbayes_plan", geometry.numbers(0, tile), len(index), index.contiguous(), *tables)
    return Plan(geometry, tile, *order)
