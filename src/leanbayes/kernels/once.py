"""Gradients that cannot be differentiated again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ..errors import LeanBayesError

Backward = Callable[..., Any]


def first_derivatives(instead: str) -> Callable[[Backward], Backward]:
    """Decorates the backward pass of a function of which there are no second derivatives: create_graph is refused.

    torch's `once_differentiable` alone would let second derivatives through where the gradient that comes in is a
    constant, without those of what the function has saved: wrong numbers, and no error.

    instead: what to do where second derivatives are needed.
    """

    def decorate(backward: Backward) -> Backward:
        once = once_differentiable(backward)

        @functools.wraps(backward)
        def checked(ctx: Any, *grads: Any) -> Any:
            # torch.func and compilers have the graph of every gradient made, wanted or not
            asked = not torch.compiler.is_compiling() and torch.is_grad_enabled()
            if asked and torch._C._functorch.maybe_current_level() is None:  # type: ignore[attr-defined]
                raise LeanBayesError(f"create_graph=True: expected to need first derivatives only; {instead}")
            return once(ctx, *grads)

        return checked

    return decorate
