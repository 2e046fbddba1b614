"""Where a sparse weight should grow: the dense gradient of a layer in pieces, and the best places in it.

For an operation that is linear in its weight, dL/dw at an inactive place is the same sum of input times output gradient
as at an active one, local reparameterisation included: an inactive weight has no variance to pass a gradient through.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight

from ..kernels.blocked import Blocked
from ..kernels.layout import unblock

PIECE = 2**20
"""The most numbers of a dense gradient that exist at once."""
_CONVOLUTIONS = (conv1d_weight, conv2d_weight, conv3d_weight)


@dataclass(frozen=True)
class Activation:
    """A tensor of a pass, or the blocks and the shape of one that is blocked."""

    values: Tensor
    shape: tuple[int, ...] | None = None

    @classmethod
    def of(cls, x: Tensor) -> Activation:
        """What holds the numbers of an activation."""
        return cls(x.blocks, tuple(x.shape)) if isinstance(x, Blocked) else cls(x)

    def plain(self, values: Tensor | None = None) -> Tensor:
        """The tensor, or other values in its layout, without history."""
        found = (self.values if values is None else values).detach()
        return found if self.shape is None else unblock(found, list(self.shape))


@dataclass(frozen=True)
class Use:
    """One use of a weight in a pass: the layer's options, its input and the gradient at its output, both plain."""

    shell: nn.Module
    x: Tensor
    grad: Tensor


def gradient_pieces(uses: list[Use], shape: torch.Size, dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
    """dL/dw of a weight, flat, piece by piece: the place where each begins, and its values, summed over the uses."""
    ready = [(use.shell, *_laid_out(use, dtype)) for use in uses]
    row = shape[1:].numel()
    for start, stop in _rows(shape[0], row, getattr(uses[0].shell, "groups", 1)):
        piece = sum(_gradient(shell, x, grad, shape, start, stop) for shell, x, grad in ready)
        assert isinstance(piece, Tensor)
        yield start * row, piece.reshape(-1)


def best_places(
    pieces: Iterable[tuple[int, Tensor]], index: Tensor, count: int
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """The places with the highest scores among those not in ``index``, and the scores of those that are.

    pieces: (place where it begins, scores) in turn. index: (n,). Returns ((scores, places), each of at most ``count``,
    highest first) and (n,).

    >>> best_places([(0, torch.tensor([1.0, 9.0])), (2, torch.tensor([5.0, 2.0]))], torch.tensor([1]), 2)
    ((tensor([5., 2.]), tensor([2, 3])), tensor([9.]))
    """
    index = index.long()
    own = torch.empty(0)
    best = places = None
    for start, scores in pieces:
        inside = (index >= start) & (index < start + len(scores))
        at = index[inside] - start
        own = own if best is not None else scores.new_zeros(len(index))
        own[inside] = scores[at]
        scores = scores.index_fill(0, at, -1.0)
        top = scores.topk(min(count, len(scores) - len(at)))
        found = top.indices + start
        best = top.values if best is None else torch.cat([best, top.values])
        places = found if places is None else torch.cat([places, found])
        if len(best) > count:
            best, order = best.topk(count)
            places = places[order]
    assert best is not None
    assert places is not None
    order = best.argsort(descending=True, stable=True)
    return (best[order], places[order]), own


def _rows(outputs: int, row: int, groups: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows of a weight that are small enough, each a part of one group or a number of whole ones."""
    per_group, most = outputs // groups, max(1, PIECE // row)
    start = 0
    while start < outputs:
        if most < per_group:
            stop = min(start + most, (start // per_group + 1) * per_group)
        else:
            stop = min(start + most // per_group * per_group, outputs)
        yield start, stop
        start = stop


def _laid_out(use: Use, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Input and output gradient in the weight's precision, the input with the padding that is not plain zeros."""
    shell: Any = use.shell
    x, grad = use.x.to(dtype), use.grad.to(dtype)
    if isinstance(shell, nn.Linear):
        return x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    if x.dim() == len(shell.kernel_size) + 1:  # without a batch
        x, grad = x.unsqueeze(0), grad.unsqueeze(0)
    if _pads(shell):
        mode = "constant" if shell.padding_mode == "zeros" else shell.padding_mode
        x = F.pad(x, shell._reversed_padding_repeated_twice, mode=mode)
    return x, grad


def _pads(shell: Any) -> bool:
    """Whether padding is more than a number of zeros on every side."""
    return shell.padding_mode != "zeros" or shell.padding == "same"


def _gradient(shell: Any, x: Tensor, grad: Tensor, shape: torch.Size, start: int, stop: int) -> Tensor:
    """Rows of dL/dw: x^T g of a Linear, the correlation of input and output gradient of a convolution."""
    grad = grad[:, start:stop]
    if isinstance(shell, nn.Linear):
        return grad.t() @ x
    per_group = shape[0] // shell.groups
    first, last = start // per_group, (stop - 1) // per_group + 1
    size = (stop - start, *shape[1:])
    padding = 0 if _pads(shell) or shell.padding == "valid" else shell.padding
    weight_gradient: Any = _CONVOLUTIONS[len(shell.kernel_size) - 1]
    found: Tensor = weight_gradient(
        x[:, first * shape[1] : last * shape[1]], size, grad, shell.stride, padding, shell.dilation, last - first
    )
    return found
