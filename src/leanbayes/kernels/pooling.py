"""Max pooling of blocked activations, and which element of each window won."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .buffers import empty
from .geometry import LANES, Geometry
from .layout import unblock
from .library import call

if TYPE_CHECKING:
    from .blocked import Cell


@dataclass(frozen=True)
class Winners:
    """The second output of max pooling: for every window the tap that won, -1 where a rectifier lets nothing pass.

    won: int8 in blocks. rectified: the pooled activation where its rectifier was part of the same pass, else None.
    """

    won: Tensor
    geometry: Geometry
    batch: int
    rectified: Cell | None = None

    def plain(self) -> Tensor:
        """(batch, channels, height, width) int64: places in the flattened image, as torch gives them."""
        made = self.geometry
        taps = unblock(self.won.float(), [self.batch, made.inputs, self.won.shape[1]]).long()
        taps = taps.view(self.batch, made.inputs, *made.out_size)
        corners = zip(made.out_size, made.stride, made.padding, strict=True)
        top, left = (torch.arange(n, device="cpu") * s - p for n, s, p in corners)
        top = top.view(-1, 1)
        found = (top + taps // made.kernel[1]) * made.size[1] + left + taps % made.kernel[1]
        # zeros behind a rectifier are equals, of which the first wins
        return torch.where(taps < 0, top.clamp(min=0) * made.size[1] + left.clamp(min=0), found)


def max_pool(x: Tensor, geometry: Geometry, rectify: bool) -> tuple[Tensor, Tensor]:
    """The largest of every window of the blocks x, rectified if wanted, and which tap it was (int8)."""
    height, width = geometry.out_size
    y = empty([x.shape[0], height * width, *x.shape[2:]])
    won = torch.empty(y.shape, dtype=torch.int8, device="cpu")
    call("leanbayes_pool", geometry.numbers(x.shape[0] * LANES), x.contiguous(), y, won, int(rectify))
    return y, won


def max_pool_gradient(grad: Tensor, won: Tensor, geometry: Geometry) -> Tensor:
    """The gradient of the blocks that were pooled."""
    dx = empty([grad.shape[0], geometry.size[0] * geometry.size[1], *grad.shape[2:]])
    call("leanbayes_pool_backward", geometry.numbers(grad.shape[0] * LANES), grad.contiguous(), won, dx)
    return dx
