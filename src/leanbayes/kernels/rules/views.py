"""Views and copies of whole activations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..blocked import Blocked, Cell
from .common import aten, by_channel, is_active, like, rule


@rule(aten.detach.default, aten.alias.default)
def _detach(x: Any) -> Any:
    return Blocked(x.cell, x.shape)


@rule(aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default)
def _view(x: Any, size: Sequence[int], stride: Any = None) -> Any:
    """Between (batch, channels, *size) and (batch, features) nothing changes in the blocks."""
    if not is_active(x):
        return NotImplemented
    shape = list(size)
    if shape.count(-1) == 1:
        known = torch.Size([n for n in shape if n != -1]).numel()
        if known == 0 or x.numel() % known:
            return NotImplemented
        shape[shape.index(-1)] = x.numel() // known
    return Blocked(x.cell, shape) if x.cell.fits(shape) else NotImplemented  # type: ignore[arg-type]


@rule(aten.clone.default)
def _clone(x: Any, memory_format: Any = None) -> Any:
    if not is_active(x) or memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        return NotImplemented
    return like(x, x.cell.blocks, x.cell.clean)  # blocks are never written to


@rule(aten.empty_like.default)
def _empty_like(x: Any, **options: Any) -> Any:
    if not is_active(x) or any(v is not None for k, v in options.items() if k != "memory_format"):
        return NotImplemented
    if options.get("memory_format") not in (None, torch.contiguous_format, torch.preserve_format):
        return NotImplemented
    return like(x, torch.empty_like(x.cell.blocks), clean=False)


@rule(aten.bernoulli_.float)
def _bernoulli_(x: Any, p: float = 0.5, *, generator: Any = None) -> Any:
    if not is_active(x):
        return NotImplemented
    x.cell.put(torch.empty_like(x.cell.blocks).bernoulli_(p, generator=generator))
    return x


@rule(aten.expand.default)
def _expand(x: Any, size: Sequence[int], *, implicit: bool = False) -> Any:
    """One position to many, as the gradient of a mean needs it."""
    if not is_active(x) or x.cell.positions != 1 or x.dim() != len(size) or not by_channel(x):
        return NotImplemented
    shape = [n if m == -1 else m for n, m in zip(x.shape, size, strict=True)]
    if shape[:2] != list(x.shape[:2]) or any(n != 1 for n in x.shape[2:]):
        return NotImplemented
    count, _, channels, lanes = x.cell.blocks.shape
    many = x.cell.blocks.expand(count, torch.Size(shape[2:]).numel(), channels, lanes).contiguous()
    return Blocked(Cell(many, x.cell.batch, x.cell.clean), shape)  # type: ignore[arg-type]
