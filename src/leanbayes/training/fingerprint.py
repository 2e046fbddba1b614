"""Whether two runs see the same data, without going through them all."""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset

from . import rng
from .data import Feed, Keyed, Rows

_MOST_BYTES = 2**26  # of a tensor


def fingerprint(feed: Feed) -> str | None:
    """A digest of data at the start, in the middle and at the end; of all where they are a few tensors.

    None where looking at the data could have effects: they are no data set, or workers are to open its files.
    """
    loader: Any = feed.loader
    dataset = getattr(loader, "dataset", None)
    dataset = dataset.dataset if isinstance(dataset, Keyed) else dataset
    if isinstance(dataset, IterableDataset) or getattr(loader, "num_workers", None) != 0:
        return None
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(dataset, (Rows, TensorDataset)):
        for tensor in dataset.tensors:
            _add(digest, tensor[:: 1 + tensor.numel() * tensor.element_size() // _MOST_BYTES])
        return digest.hexdigest()
    if feed.num_data is None:
        return None
    with rng.seeded_host(0):
        for index in sorted({0, feed.num_data // 2, feed.num_data - 1}):
            with contextlib.suppress(Exception):  # whoever loads it in training will say why
                _add(digest, dataset[index])  # type: ignore[index]
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    """Add numbers, text and tensors, whatever their nesting; other objects have no value that could be compared."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        digest.update(f"{value.dtype} {value.shape};".encode())
        digest.update(np.ascontiguousarray(value).data)
    elif isinstance(value, (bool, int, float, str)):
        digest.update(f"{value!r};".encode())
    elif isinstance(value, dict):
        _add(digest, list(value.items()))
    elif isinstance(value, (tuple, list)):
        for item in value:
            _add(digest, item)
