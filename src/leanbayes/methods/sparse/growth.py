"""The dense gradient of a sparse layer in pieces, and the places with the largest values in it.

For an operation that is linear in its weight, dL/dw at an inactive place is the same sum of input times output gradient
as at an active one, also under local reparameterisation, since an inactive weight has no variance.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight

from ...kernels.blocked import Blocked, Cell
from ...layers.contract import option

PIECE = 2**22
"""The most values of a dense gradient that are in memory at once."""
SMALL = 64
"""The most output positions for which matrix products are faster than a convolution's own gradient."""
MANY = 2**27
"""Multiplications from which on a gradient is computed in bfloat16 where that is faster: it is only ranked."""
WIDE = 32
"""The fewest channels with which that is done."""
STRIDE = 61
"""Every so many scores are looked at to guess how high those of the best places are."""
_CONVOLUTIONS = (conv1d_weight, conv2d_weight, conv3d_weight)


@dataclass(frozen=True)
class Activation:
    """A tensor of a pass, or the blocks and the shape of one that is blocked."""

    values: Tensor
    shape: tuple[int, ...] | None = None

    @classmethod
    def of(cls, x: Tensor) -> Activation:
        """The values of an activation, in blocks or not."""
        return cls(x.blocks, tuple(x.shape)) if isinstance(x, Blocked) and x.cell.is_activation else cls(x.detach())

    def plain(self) -> Tensor:
        """The tensor, detached."""
        return self.values if self.shape is None else Cell(self.values, self.shape[0]).plain(torch.Size(self.shape))

    def half(self) -> Tensor:
        """The tensor in bfloat16, detached, an image in channels-last order."""
        if self.shape is None or len(self.shape) != 4:
            return self.plain().bfloat16()
        images = self.values.bfloat16().permute(0, 3, 1, 2).flatten(0, 1)[: self.shape[0]]
        return images.view(len(images), *self.shape[2:], -1).permute(0, 3, 1, 2)

    def batch_last(self) -> Tensor:
        """(channels, *size, batch) of a blocked tensor, detached."""
        assert self.shape is not None
        channels = self.values.shape[2]
        return self.values.permute(2, 1, 0, 3).reshape(channels, *self.shape[2:], -1)[..., : self.shape[0]]


@dataclass(frozen=True)
class Use:
    """One use of a weight in a pass: the layer's options, its input and the gradient at its output.

    plain: whether these are (batch, channels, *size); else they are (channels, *size, batch).
    half: whether they are in bfloat16 to be faster.
    """

    shell: nn.Module
    x: Tensor
    grad: Tensor
    plain: bool = True
    half: bool = False

    @classmethod
    def of(cls, shell: nn.Module, x: Activation, grad: Activation) -> Use:
        """The use, in the layout and the precision in which its gradient is computed fastest."""
        if _half_is_enough(shell, x, grad):
            return cls(shell, x.half(), grad.half(), half=True)
        if not isinstance(shell, nn.Conv2d) or grad.shape is None or x.shape is None or shell.groups > 1:
            return cls(shell, x.plain(), grad.plain())
        if grad.values.shape[1] > SMALL:
            return cls(shell, x.plain(), grad.plain())
        return cls(shell, x.batch_last(), grad.batch_last(), plain=False)


@dataclass(frozen=True)
class Whole:
    """A use of a weight by code that read it without calling its layer: the gradient of the whole weight."""

    shell: nn.Module
    grad: Tensor


def _half_is_enough(shell: Any, x: Activation, grad: Activation) -> bool:
    """Whether the gradient of a Conv2d takes long, and the processor has instructions for bfloat16."""
    if not isinstance(shell, nn.Conv2d) or not x.values.is_cpu or x.values.dtype != torch.float32:
        return False
    given, found = x.shape or x.values.shape, grad.shape or grad.values.shape
    if len(given) != 4 or min(given[1], found[1]) < WIDE * shell.groups or shell.padding_mode != "zeros":
        return False
    multiplied = math.prod(found) * given[1] // shell.groups * math.prod(shell.kernel_size)
    return multiplied >= MANY and bfloat16_is_fast()


@functools.cache
def bfloat16_is_fast() -> bool:
    """Whether torch's convolutions in bfloat16 run on instructions for it."""
    asked = option(torch.ops.mkldnn, "_is_mkldnn_bf16_supported") if torch.backends.mkldnn.is_available() else None
    return asked is not None and bool(asked()) and torch.cpu._is_avx512_bf16_supported()


def gradient_pieces(uses: Sequence[Use | Whole], shape: torch.Size, dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
    """dL/dw of a weight in flat pieces, summed over its uses: (first place, values)."""
    ready = [(use, *_laid_out(use, dtype)) for use in uses if isinstance(use, Use)]
    whole = [use.grad.to(dtype) for use in uses if isinstance(use, Whole)]
    row = shape[1:].numel()
    for start, stop in _rows(shape[0], row, option(uses[0].shell, "groups") or 1):
        pieces = [_gradient(use, x, grad, shape, start, stop).to(dtype) for use, x, grad in ready]
        piece = sum(pieces + [grad[start:stop] for grad in whole])
        assert isinstance(piece, Tensor)
        yield start * row, piece.reshape(-1)


def best_places(
    pieces: Iterable[tuple[int, Tensor]], index: Tensor, count: int
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """The places with the highest scores among those not in ``index``, and the scores at ``index``.

    pieces: (first place, scores) in order. index: (n,). Returns ((scores, places), each of at most ``count``, highest
    first) and (n,).

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
        values, found = _highest(scores, min(count, len(scores) - len(at)))
        found = found + start
        best = values if best is None else torch.cat([best, values])
        places = found if places is None else torch.cat([places, found])
        if len(best) > count:
            best, order = best.topk(count)
            places = places[order]
    assert best is not None
    assert places is not None
    order = best.argsort(descending=True, stable=True)
    return (best[order], places[order]), own


def _highest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest scores and their places, as `torch.topk` finds them, sooner where they are few of many."""
    some = scores[::STRIDE]
    likely = 1.2 * count / STRIDE + 8
    if likely < len(some) / 8:
        high = scores >= some.kthvalue(len(some) - int(likely)).values
        places = high.nonzero().flatten()
        if len(places) >= count:
            top = scores[places].topk(count)
            return top.values, places[top.indices]
    top = scores.topk(count)
    return top.values, top.indices


def _rows(outputs: int, row: int, groups: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows of a weight, small enough, each a part of one group or a number of whole groups."""
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
    """Input and output gradient in the weight's precision, with padding that a convolution's gradient does not do."""
    shell: Any = use.shell
    if use.half:
        dtype = torch.bfloat16
    x, grad = use.x.to(dtype), use.grad.to(dtype)
    if not use.plain:
        return x, grad
    if isinstance(shell, nn.Linear):
        return x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    if x.dim() == len(shell.kernel_size) + 1:  # without a batch
        x, grad = x.unsqueeze(0), grad.unsqueeze(0)
    if _pads(shell):
        mode = "constant" if shell.padding_mode == "zeros" else shell.padding_mode
        x = F.pad(x, shell._reversed_padding_repeated_twice, mode=mode)
    return x, grad


def _pads(shell: Any) -> bool:
    """Whether the padding is more than the same number of zeros on both sides."""
    return shell.padding_mode != "zeros" or shell.padding == "same"


def _gradient(use: Use, x: Tensor, grad: Tensor, shape: torch.Size, start: int, stop: int) -> Tensor:
    """Rows of dL/dw: x^T g of a Linear, the correlation of input and output gradient of a convolution."""
    shell: Any = use.shell
    if not use.plain:
        return _by_products(shell, x, grad[start:stop])
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


def _by_products(shell: Any, x: Tensor, grad: Tensor) -> Tensor:
    """The gradient of a Conv2d as matrix products by tap and row, since the batch is contiguous."""
    (down, right), (height, width) = shell.stride, shell.kernel_size
    top, left = (0, 0) if shell.padding == "valid" else shell.padding
    rows, columns = grad.shape[1], grad.shape[2]
    found = grad.new_zeros(height * width, grad.shape[0], x.shape[0])
    phases = [x[:, :, phase::right].contiguous() for phase in range(right)]
    for tap in range(height * width):
        above, before = tap // width - top, tap % width - left
        images, shift = phases[before % right], before // right
        first, last = max(0, -shift), min(columns, images.shape[2] - shift)
        for row in range(rows):
            at = row * down + above
            if 0 <= at < x.shape[1] and first < last:
                ours, theirs = grad[:, row, first:last], images[:, at, first + shift : last + shift]
                found[tap].addmm_(ours.flatten(1), theirs.flatten(1).t())
    return found.permute(1, 2, 0).reshape(grad.shape[0], x.shape[0], height, width)
