"""Faster max pooling and rectifiers for `predict` on the CPU, with the same values as torch's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..kernels import samples
from ..kernels.buffers import empty
from ..walk import modules

FEW = 2**13
"""Samples with fewer values do not use pooled memory, which takes longer than so small a layer."""


@contextlib.contextmanager
def fast_max_pooling(model: nn.Module) -> Iterator[None]:
    """Run a block in which `nn.MaxPool2d` layers take maxima of whole rows if their windows tile the input.

    torch compares the values of a window one by one on the CPU, which can take longer than the convolution before it.
    Outputs are the same. Only without gradients, since those of equal values would differ. Under vmap, outputs of these
    layers and of `nn.ReLU` are in memory that is used again.

    >>> layer, x = nn.MaxPool2d(2), torch.randn(2, 3, 8, 6)
    >>> with torch.no_grad(), fast_max_pooling(layer):
    ...     y = layer(x)
    >>> torch.equal(y, layer(x)), "forward" in vars(layer)
    (True, False)
    """
    layers = [m for m in modules(model) if type(m) in _FORWARD and "forward" not in m.__dict__]
    for layer in layers:
        layer.__dict__["forward"] = partial(_FORWARD[type(layer)], layer)
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
    if not _kept(input):
        return _largest(_largest(input, height, -2), width, -1).contiguous()  # windows of one number are a view
    of_samples = samples.samples_of(input)
    return samples.batched(_largest(_largest(of_samples, height, -2, empty), width, -1, empty).contiguous())


def _largest(x: Tensor, window: int, dim: int, memory: Callable[[torch.Size], Tensor] | None = None) -> Tensor:
    """The maxima of neighbours along a dimension."""
    first, *others = x.unflatten(dim, (-1, window)).unbind(dim)
    out = memory(first.shape) if memory and others else None
    for other in others:
        first = torch.maximum(first, other) if out is None else torch.maximum(first, other, out=out)
    return first


def _rectified(layer: nn.ReLU, input: Tensor) -> Tensor:
    if layer.inplace or not _kept(input):
        return nn.ReLU.forward(layer, input)
    x = samples.samples_of(input)
    return samples.batched(torch.clamp_min(x, 0, out=empty(x.shape)))


_FORWARD: dict[type[nn.Module], Callable[..., Any]] = {nn.MaxPool2d: _forward, nn.ReLU: _rectified}


def _kept(x: Tensor) -> bool:
    """Whether outputs go to memory that is used again."""
    return x.numel() >= FEW and samples.vectorised() and samples.served(x) and samples.is_batched(x)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
