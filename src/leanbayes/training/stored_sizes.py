"""Stored tensors whose size may differ from the model's: sparse weights, and states of version 0.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ..ordering.unit import OrderingUnit
from ..posteriors.sparse import Sparse


def completed(model: nn.Module, stored: Mapping[str, Any]) -> dict[str, Any]:
    """The stored state with that of ordered channels completed, of which version 0.1 wrote three numbers."""
    found = dict(stored)
    for name, module in model.named_modules(remove_duplicate=False):
        state = found.get(key := f"{name}._extra_state")
        if isinstance(module, OrderingUnit) and isinstance(state, Tensor) and state.shape == (3,):
            found[key] = module.completed(state)
    return found


def sparse_weights(model: nn.Module, stored: Mapping[str, Any]) -> dict[str, tuple[Sparse, int]]:
    """The sparse weights of a model by name, each with its number of stored weights in the state."""
    found = {}
    for name, module in model.named_modules(remove_duplicate=False):
        index = stored.get(f"{name}.index")
        if isinstance(module, Sparse) and isinstance(index, Tensor) and index.ndim == 1:
            found[name] = module, min(len(index), module.shape.numel())
    return found
