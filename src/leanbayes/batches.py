"""What a batch is: inputs and targets, how a model is called with them, and which tensor its output is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .errors import DataError


def split(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets of a batch: ``(x, y)``, ``(x1, x2, ..., y)``, a mapping with "labels", or inputs alone.

    >>> split({"input_ids": 1, "labels": 2})
    ({'input_ids': 1}, 2)
    """
    if isinstance(batch, Mapping):
        rest = {k: v for k, v in batch.items() if k not in ("labels", "label", "targets")}
        targets = next((batch[k] for k in ("labels", "label", "targets") if k in batch), None)
        return rest, targets
    if isinstance(batch, (tuple, list)):
        if len(batch) == 1:
            return batch[0], None
        if len(batch) == 2:
            return batch[0], batch[1]
        if len(batch) > 2:
            return tuple(batch[:-1]), batch[-1]
        raise DataError("expected a batch of (inputs, targets), received an empty one")
    return batch, None


def call(model: nn.Module, inputs: Any) -> Any:
    """Call a model the way its inputs ask for: a mapping by keyword, a tuple by position, a tensor alone."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    return model(inputs)


def output_tensor(output: Any) -> Tensor:
    """The tensor that carries the prediction: the output itself, its ``logits``, or the first of a tuple."""
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(output, (tuple, list)) and output and isinstance(output[0], Tensor):
        return output[0]
    raise DataError(
        f"expected the model to return a tensor, 'logits' in a dict or object, or a tuple that starts with a tensor, "
        f"received {type(output).__name__}; wrap the model in a module that returns the tensor"
    )


def size(inputs: Any) -> int:
    """The number of data in a batch of inputs."""
    first = first_tensor(inputs)
    if first.ndim == 0:
        raise DataError("expected inputs with a batch dimension, received a scalar")
    return first.shape[0]


def first_tensor(inputs: Any) -> Tensor:
    """The first tensor among the inputs."""
    values = (
        inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, (tuple, list)) else [inputs]
    )
    for value in values:
        if isinstance(value, Tensor):
            return value
    raise DataError(f"expected a tensor, or a tuple or mapping of tensors, received {type(inputs).__name__}")


def to(inputs: Any, device: torch.device | str) -> Any:
    """Inputs or targets on a device, whatever their nesting."""
    return map_tensors(lambda t: t.to(device), inputs)


def rows(inputs: Any, start: int, stop: int) -> Any:
    """Data ``start:stop`` of the inputs."""
    return map_tensors(lambda t: t[start:stop], inputs)


def map_tensors(function: Any, value: Any) -> Any:
    """Apply a function to every tensor in a nested tuple, list or mapping."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {k: map_tensors(function, v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        mapped = [map_tensors(function, v) for v in value]
        return type(value)(*mapped) if hasattr(value, "_fields") else type(value)(mapped)
    return value
