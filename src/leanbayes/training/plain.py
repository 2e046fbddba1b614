"""Nested values and tensors as named tensors and JSON, and back: checkpoints without pickle."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ArtifactError

# In JSON a list is a list and a scalar is itself; everything else is an object with one of these keys.
_BUILT = {"tuple": tuple, "set": set, "dict": dict, "Counter": Counter}


def encode(content: Any) -> tuple[dict[str, Tensor], Any]:
    """Tensors by name, and the rest as JSON; a TypeError for a value that is neither a tensor nor plain.

    >>> encode({"step": 3, 7: (math.inf, torch.ones(2))})
    ({'7/1': tensor([1., 1.])}, {'dict': [['step', 3], [7, {'tuple': [{'float': 'inf'}, {'tensor': '7/1'}]}]]})
    """
    tensors: dict[str, Tensor] = {}
    memory: set[int] = set()
    return tensors, _encode(content, "", tensors, memory)


def decode(tensors: dict[str, Tensor], value: Any) -> Any:
    """The value that `encode` was given; an ArtifactError if the stored value is damaged.

    >>> decode(*encode({"step": 3, 7: (math.inf, torch.ones(2))}))
    {'step': 3, 7: (inf, tensor([1., 1.]))}
    """
    try:
        return _decode(tensors, value)
    except (KeyError, TypeError, ValueError, RuntimeError, RecursionError, OverflowError) as error:
        raise ArtifactError(f"damaged: its content cannot be read ({type(error).__name__}: {error})") from error


def _encode(value: Any, name: str, tensors: dict[str, Tensor], memory: set[int]) -> Any:
    def inner(items: Iterable[tuple[Any, Any]]) -> list[Any]:
        return [_encode(v, f"{name}/{key}" if name else str(key), tensors, memory) for key, v in items]

    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, Tensor):
        return _encode_tensor(value, name, tensors, memory)
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim == 1:  # the state of a generator
        return {"array": value.tolist(), "dtype": value.dtype.name}
    if isinstance(value, dict):
        kind = "Counter" if isinstance(value, Counter) else "dict"
        keys = [_encode(key, "", {}, set()) for key in value]
        return {kind: [list(pair) for pair in zip(keys, inner(value.items()), strict=True)]}
    if type(value) in (list, tuple, set, torch.Size):
        items = inner(enumerate(value))
        return items if type(value) is list else {"set" if type(value) is set else "tuple": items}
    raise TypeError(f"expected tensors and plain values, received {type(value).__name__} at {name!r}")


def _encode_tensor(value: Tensor, name: str, tensors: dict[str, Tensor], memory: set[int]) -> dict[str, Any]:
    if value.layout is not torch.strided or value.is_quantized or value.is_complex():
        raise TypeError(f"expected a dense real tensor at {name!r}, received {value.layout} of {value.dtype}")
    while name in tensors:
        name += "'"
    # The order of the dimensions in memory is kept: results of a matrix product depend on it in the last bit.
    order = sorted(range(value.ndim), key=lambda d: -value.stride()[d])
    dense = value.detach().cpu().permute(order)
    plain = order == list(range(value.ndim)) or not dense.is_contiguous()
    dense = value.detach().cpu().contiguous() if plain else dense
    place = dense.untyped_storage().data_ptr()
    tensors[name] = dense.clone() if place in memory else dense  # tied tensors, and views of one
    memory.add(place)
    return {"tensor": name} if plain else {"tensor": name, "order": order}


def _decode(tensors: dict[str, Tensor], value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str, float)):
        return value
    if isinstance(value, list):
        return [_decode(tensors, item) for item in value]
    if "tensor" in value:
        stored = tensors[value["tensor"]].clone()  # in memory of its own, aligned as torch aligns it
        order = value.get("order", list(range(stored.ndim)))
        return stored.permute([order.index(d) for d in range(stored.ndim)]) if "order" in value else stored
    if "array" in value:
        return np.array(value["array"], dtype=value["dtype"])
    if "float" in value:
        return float(value["float"])
    ((kind, items),) = value.items()
    pairs = kind in ("dict", "Counter")
    made = [(_decode(tensors, k), _decode(tensors, v)) for k, v in items] if pairs else _decode(tensors, items)
    return Counter(dict(made)) if kind == "Counter" else _BUILT[kind](made)
