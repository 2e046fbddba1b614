"""The order in which the kernels meet the nonzeros of a weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import DataError
from .checks import side_by_side
from .geometry import MOST, Geometry
from .library import call

SEAL = 16
"""Numbers at the end of `Order.rows` that say which geometry and how many nonzeros it was made for."""


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

    index: (n,) int32, in any order: places in the flattened (outputs, inputs / groups, height, width), none of them
    twice.
    """
    geometry.check()
    if index.dim() != 1 or index.dtype != torch.int32 or index.device.type != "cpu":
        raise DataError(
            f"expected the places of nonzeros as int32 in one dimension on the CPU, received {index.dtype} of shape "
            f"{tuple(index.shape)} on {index.device}; convert them with .to('cpu', torch.int32).flatten()"
        )
    (height, width), tile = geometry.kernel, geometry.tile(len(index))
    if len(index):
        low, high = (int(t) for t in index.aminmax())
        if low < 0 or high >= geometry.weights:
            raise DataError(
                f"expected places of nonzeros from 0 to {geometry.weights - 1}, the elements of the weight, received "
                f"{low} to {high}; was the index made for another layer?"
            )
    # ranges: (output, tap) forward; (tile, input, row of taps) backward, or (tile, input, tap) for a single output
    segments = height * (width if geometry.out_size == (1, 1) else geometry.stride[1])
    rows = geometry.outputs * height * width, -(-geometry.outputs // tile) * geometry.inputs * segments
    if max(rows) > MOST:
        raise DataError(f"expected fewer than {MOST} ranges of nonzeros, received {geometry}; use the dense path")
    order = [Order(*(_table(n) for n in (r + 1 + SEAL, len(index), len(index)))) for r in rows]
    tables = [t for o in order for t in (o.rows, o.offsets, o.slots)]
    call("leanbayes_plan", geometry.numbers(0, tile), side_by_side(index), *tables)
    return Plan(geometry, tile, *order)


def _table(length: int) -> Tensor:
    return torch.empty(length, dtype=torch.int32, device="cpu")
