"""Convolutions of many samples with weights of their own, under vmap, where images and channels are few.

Torch's vmap makes one convolution with a group for each sample, which takes longer than one after the other.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from . import library, samples
from .buffers import empty
from .checks import side_by_side

MOST = 2**15
"""Weights of one sample, 128 KB: all of them are read again for every datum, so a cache has to hold them."""


def narrow(shell: nn.Module) -> bool:
    """Whether the kernel takes the place of a convolution where samples are vectorised.

    >>> narrow(nn.Conv2d(16, 32, 3, stride=2)), narrow(nn.Conv2d(128, 128, 3))
    (False, False)
    """
    return (
        isinstance(shell, nn.Conv2d)
        and shell.groups == 1
        and shell.stride == shell.dilation == (1, 1)
        and shell.padding_mode == "zeros"
        and not isinstance(shell.padding, str)
        and shell.in_channels * shell.out_channels * shell.kernel_size[0] * shell.kernel_size[1] <= MOST
        and (found := library.library()) is not None
        and found.leanbayes_level(-1) > 0  # four lanes are slower than torch
    )


def of_samples(shell: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """The output of a convolution while samples are vectorised; None where it is torch's to compute."""
    if not samples.vectorised() or not narrow(shell) or not _fits(shell, x, weight, bias):
        return None
    given = [x, weight] if bias is None else [x, weight, bias]
    if not all(map(samples.served, given)) or not any(map(samples.is_batched, given)):
        return None
    x, weight, *rest = map(samples.samples_of, given)
    return samples.batched(convolve(x, weight, rest[0] if rest else None, shell.padding))


def _fits(shell: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether shapes are those of a batch of images; torch has the errors for others."""
    if x.dim() != 4 or x.shape[0] == 0 or weight.shape[1:] != (x.shape[1], *shell.kernel_size):
        return False
    sizes = zip(x.shape[2:], shell.padding, shell.kernel_size, strict=True)
    return all(n + 2 * p >= k for n, p, k in sizes) and (bias is None or bias.shape == weight.shape[:1])


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
    """A convolution of every sample.

    Shapes: (samples, data, inputs, height, width), (samples, outputs, inputs, ...) and (samples, outputs) to
    (samples, data, outputs, ...); the samples of an argument may be 1, which all then share.
    """
    given = [x, weight] if bias is None else [x, weight, bias]
    count = max(map(len, given))
    data, inputs, *size = x.shape[1:]
    outputs, kernel = weight.shape[1], weight.shape[3:]
    out = [n + 2 * p - k + 1 for n, p, k in zip(size, padding, kernel, strict=True)]
    y = empty([count, data, outputs, *out])
    shape = [count, data, inputs, outputs, *kernel, *padding, *size]
    library.call("leanbayes_convolve", shape, *map(side_by_side, given), *[None] * (bias is None), y)
    return y
