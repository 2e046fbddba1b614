"""Max pooling over windows that do not overlap: the same values as torch's, several times as fast on the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..walk import modules


@contextlib.contextmanager
def fast_max_pooling(model: nn.Module) -> Iterator[None]:
    """Run a block in which every `nn.MaxPool2d` of a model takes maxima of whole rows where its windows tile the input.

    torch compares the numbers of a window one by one on the CPU, which can take longer than the convolution before it.
    A maximum is exact, so outputs are the same. Without gradients only: those of equal numbers would differ.

    >>> layer, x = nn.MaxPool2d(2), torch.randn(2, 3, 8, 6)
    >>> with torch.no_grad(), fast_max_pooling(layer):
    ...     y = layer(x)
    >>> torch.equal(y, layer(x)), "forward" in vars(layer)
    (True, False)
    """
    layers = [m for m in modules(model) if type(m) is nn.MaxPool2d and "forward" not in m.__dict__]
    for layer in layers:
        layer.__dict__["forward"] = partial(_forward, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def _forward(layer: nn.MaxPool2d, input: Tensor) -> Any:
    (height, width), plain = _pair(layer.kernel_size), type(input) is not Tensor or input.device.type != "cpu"
    tiles = (
        (height, width) == _pair(layer.stride)
        and (_pair(layer.padding), _pair(layer.dilation)) == ((0, 0), (1, 1))
        and not (layer.return_indices or input.shape[-2] % height or input.shape[-1] % width)
    )
    if plain or torch.is_grad_enabled() or not tiles or input.ndim not in (3, 4) or not input.numel():
        return nn.MaxPool2d.forward(layer, input)
    rows = input[..., ::height, :]
    for i in range(1, height):
        rows = torch.maximum(rows, input[..., i::height, :])
    found = rows[..., ::width]
    for i in range(1, width):
        found = torch.maximum(found, rows[..., i::width])
    return found.contiguous()  # windows of one number are a view


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
