"""What the rules share: how one is registered, and what may be combined with what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..blocked import RULES, Blocked, Cell, blocks_of
from ..deferred import Pass, Upstream

aten = torch.ops.aten
Rule = Callable[..., Any]


def rule(*operations: Any) -> Callable[[Rule], Rule]:
    def decorate(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(operations, rule))
        return rule

    return decorate


def is_active(x: Any) -> bool:
    return isinstance(x, Blocked) and x.cell.is_activation


def alike(x: Blocked, other: Any) -> bool:
    """Whether two activations have the same shape and the same blocks."""
    return (
        is_active(other)
        and x.shape == other.shape
        and (x.cell.positions, x.cell.channels) == (other.cell.positions, other.cell.channels)
    )


def by_channel(x: Blocked) -> bool:
    """Whether dimension 1 is that of the channels: not so in an image that was flattened."""
    return x.shape[1] == x.cell.channels


def like(x: Blocked, held: Tensor | Pass | Upstream, clean: bool = True) -> Blocked:
    return Blocked(Cell(held, x.cell.batch, clean), x.shape)


def pass_of(x: Blocked) -> Pass:
    """What is known of x, to be continued."""
    held = x.cell.held
    return held if isinstance(held, Pass) else Pass(x.cell.blocks, x.cell.batch)


def gradient_of(grad: Any, x: Blocked) -> Blocked:
    """A gradient as blocks like those of the activation it belongs to."""
    if is_active(grad) and alike(x, grad):
        return grad  # type: ignore[no-any-return]
    return like(x, blocks_of(grad, x.cell.positions, x.cell.channels))
