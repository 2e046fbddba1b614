"""Passes over blocked activations that wait, so that several become one.

What a network does between two sparse operations (a norm, a sum, a rectifier) is memory traffic. `Pass` holds what is
still to be done in the forward pass, `Upstream` what is still to be done to a gradient; both are data without history,
and the blocks they refer to are never written to again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .buffers import empty
from .norm import Norm, finish, norm_input

if TYPE_CHECKING:
    from .blocked import Cell


@dataclass(frozen=True)
class Pass:
    """rectify(norm(y) + other), without the parts that are None or False."""

    y: Tensor
    batch: int
    norm: Norm | None = None
    other: Tensor | None = None
    rectified: bool = False

    @property
    def untouched(self) -> bool:
        """Whether nothing waits."""
        return self.norm is None and self.other is None and not self.rectified

    @property
    def only_rectified(self) -> bool:
        """Whether a rectifier alone waits."""
        return self.rectified and self.norm is None and self.other is None

    @property
    def sign_from_y(self) -> bool:
        """Whether the rectifier is directly behind the norm: its mask then follows from y, without the output."""
        return self.rectified and self.norm is not None and self.other is None

    def normed(self, norm: Norm) -> Pass:
        """With a norm behind it; only for a pass that is `untouched`."""
        return replace(self, norm=norm)

    def plus(self, other: Tensor) -> Pass | None:
        """With a sum behind it, or None where there is no room for one."""
        return None if self.other is not None or self.rectified else replace(self, other=other)

    def rectify(self) -> Pass:
        """With a rectifier behind it."""
        return replace(self, rectified=True)

    def value(self) -> Tensor:
        """The blocks that come out."""
        return self.y if self.untouched else finish(self.y, self.batch, self.norm, self.other, self.rectified)


@dataclass(frozen=True)
class Upstream:
    """A gradient on its way back through a rectifier and a norm: norm'(mask(grad)), without the parts that are None.

    mask: the output of the rectifier, whose sign decides. y, line: what was normalised, and the numbers per channel
    that give the gradient of y (see upstream in kernels.c). from_y: the mask follows from y and line, mask is None.
    """

    grad: Tensor
    batch: int
    mask: Cell | None = None
    y: Tensor | None = None
    line: Tensor | None = None
    from_y: bool = False

    def arguments(self) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, bool]:
        """grad, out, y, line, rectified as the kernels take them."""
        out = None if self.mask is None else self.mask.blocks
        return self.grad, out, self.y, self.line, self.from_y or self.mask is not None

    def value(self) -> Tensor:
        """The blocks of the gradient."""
        grad, out, y, line, rectified = self.arguments()
        if line is not None:
            assert y is not None
            return norm_input(y, self.batch, grad, out, rectified, line)
        if out is None:
            return grad
        made = empty(grad.shape)
        torch.ops.aten.threshold_backward.grad_input(grad, out, 0, grad_input=made)
        return made
