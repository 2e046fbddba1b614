"""Cutting the inputs of a decoder: whatever reads the code reads fewer numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..convert.channels import channel_graph
from ..convert.slicing import slice_
from ..errors import ConversionError


def cut_inputs_(decoder: nn.Module, size: int, length: int, like: Tensor) -> None:
    """Cut a decoder of codes (batch, size) so that it takes (batch, length), in place.

    A linear layer in front of the decoder stands for the code, and the channel graph says who reads its outputs.

    >>> decoder = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> cut_inputs_(decoder, 8, 3, torch.zeros(()))
    >>> decoder[0]
    Linear(in_features=3, out_features=4, bias=True)
    """
    whole = nn.Sequential(nn.Linear(1, size), decoder).to(like.device, like.dtype)
    graph = channel_graph(whole, torch.zeros(2, 1, device=like.device, dtype=like.dtype))
    group = next((group for group in graph if any(use.module == "0" for use in group.producers)), None)
    if group is None or group.fixed:
        why = "; ".join(group.reasons) if group is not None else "nobody reads it"
        raise ConversionError(
            f"the inputs of the decoder cannot be cut to {length} numbers: {why}; let it start with a linear layer"
        )
    slice_(whole, graph, {group.name: list(range(length))})
