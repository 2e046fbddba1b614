"""Digests of data: whether two runs see the same values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import batches


class Fingerprint:
    """A digest of all data of a set, whatever the sizes of the batches they come in.

    >>> x, one, two = torch.arange(6.0).view(3, 2), Fingerprint(), Fingerprint()
    >>> one.add(x)
    >>> two.add(x[:1])
    >>> two.add(x[1:])
    >>> str(one) == str(two), str(one)[:2]
    (True, '3:')
    """

    def __init__(self) -> None:
        self.count = 0
        self._parts: dict[str, tuple[Any, str]] = {}  # digest and form of the values under each name

    def add(self, inputs: Any, targets: Any = None) -> None:
        """Add a batch."""
        self.count += batches.size(inputs)
        for name, value in leaves((inputs,) if targets is None else (inputs, targets), ""):
            digest, form = self._parts.get(name, (hashlib.blake2b(digest_size=16), ""))
            now = f"{value.dtype} {tuple(value.shape[1:])};" if isinstance(value, Tensor) else "other;"
            if now != form:  # once, unless rows of another length follow
                digest.update(now.encode())
            add_bytes(digest, value)
            self._parts[name] = digest, now

    def __str__(self) -> str:
        whole = hashlib.blake2b(digest_size=8)
        for name in sorted(self._parts):
            whole.update(f"{name}:{self._parts[name][0].hexdigest()};".encode())
        return f"{self.count}:{whole.hexdigest()}"


def add_nested(digest: Any, value: Any) -> None:
    """Add numbers, text, arrays and tensors, however nested, to a digest; objects of other types are left out."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        digest.update(f"{value.dtype} {value.shape};".encode())
        digest.update(np.ascontiguousarray(value).data)
    elif isinstance(value, (bool, int, float, str)):
        digest.update(f"{value!r};".encode())
    elif isinstance(value, dict):
        add_nested(digest, list(value.items()))
    elif isinstance(value, (tuple, list)):
        for item in value:
            add_nested(digest, item)


def add_tensor(digest: Any, tensor: Tensor) -> None:
    """Add the dtype, shape and values of a tensor to a digest."""
    digest.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
    add_bytes(digest, tensor)


def add_bytes(digest: Any, value: Any) -> None:
    """Add the values of a tensor, or the repr of anything else, to a digest."""
    if not isinstance(value, Tensor):
        digest.update(f"{value!r};".encode())
    elif value.is_meta:
        digest.update(b"no values;")
    elif value.numel():
        dense = value.detach().to_dense() if value.layout != torch.strided else value.detach()
        dense = dense.dequantize() if dense.is_quantized else dense
        digest.update(dense.cpu().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8).numpy().data)


def leaves(value: Any, name: str, keys_only: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the values of a nested batch, each with its path; keys_only: without the places in tuples and lists."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from leaves(value[key], f"{key}:" if keys_only else f"{name}.{key}", keys_only)
    elif isinstance(value, (tuple, list)):
        for place, item in enumerate(value):
            yield from leaves(item, "" if keys_only else f"{name}.{place}", keys_only)
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        yield name, torch.from_numpy(np.ascontiguousarray(value))
    else:
        yield name, value
