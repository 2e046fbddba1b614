"""The shape of a sparse operation: which activations its weights meet."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import nn

from ..errors import DataError

LANES = 16
"""Data side by side in a blocked activation: a cache line of them."""
MAX_STRIDE = 8
MOST = 2**31 - 2**10
"""Elements of what the kernels count in 32 bits."""
NEAR = 72 * 1024
"""Bytes of gradients near a group of positions in the backward pass; more than a first cache has, which costs less than
coming back to inputs does."""


@dataclass(frozen=True)
class Geometry:
    """A convolution of `inputs` channels of (height, width) to `outputs`; a Linear is one of a single position."""

    outputs: int
    inputs: int
    groups: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    size: tuple[int, int]

    @functools.cached_property
    def out_size(self) -> tuple[int, int]:
        """Height and width of the output."""
        zipped = zip(self.size, self.kernel, self.stride, self.padding, strict=True)
        height, width = ((n + 2 * p - k) // s + 1 for n, k, s, p in zipped)
        return height, width

    def check(self) -> None:
        """Refuse what is no convolution, or one that the kernels cannot compute."""
        sides = (*self.kernel, *self.stride, *self.size)
        if min(self.outputs, self.inputs, self.groups, *sides) < 1 or min(self.padding) < 0:
            raise DataError(f"expected positive sizes and a padding of at least 0, received {self}")
        if self.inputs % self.groups or self.outputs % self.groups:
            raise DataError(
                f"expected channels that {self.groups} groups divide, received {self.inputs} inputs and "
                f"{self.outputs} outputs"
            )
        if max(self.stride) > MAX_STRIDE:
            raise DataError(f"expected strides of at most {MAX_STRIDE}, received {self.stride}; use the dense path")
        if min(self.out_size) < 1:
            least = tuple(max(k - 2 * p, 1) for k, p in zip(self.kernel, self.padding, strict=True))
            raise DataError(
                f"expected images of at least {least} for a kernel of {self.kernel} with a padding of {self.padding}, "
                f"received {self.size}; give larger images or pad them"
            )

        taps = self.kernel[0] * self.kernel[1]
        positions = prod(n + 2 * p for n, p in zip(self.size, self.padding, strict=True))
        if max(self.weights, self.outputs * taps, self.inputs * taps * MAX_STRIDE, positions) > MOST:
            raise DataError(
                f"expected a weight and images of at most {MOST} elements, received {self}; the kernels count in 32 "
                "bits, use the dense path"
            )

    @property
    def weights(self) -> int:
        """Elements of the dense weight."""
        return self.outputs * (self.inputs // self.groups) * self.kernel[0] * self.kernel[1]

    def numbers(self, batch: int, tile: int = 1) -> list[int]:
        """What the compiled kernels read, in their order."""
        return [
            self.outputs, self.inputs, self.groups, *self.kernel, *self.stride, *self.padding, *self.size,
            *self.out_size, batch, tile,
        ]  # fmt: skip

    def tile(self, count: int) -> int:
        """Outputs that the backward pass of ``count`` nonzeros takes at a time.

        As many as give an input fourteen nonzeros, since it costs something to come back to it, or as have their
        gradients near a group of four positions in half of `NEAR`; but not many more than that holds.
        """
        if self.out_size == (1, 1):
            near, phases = 4, self.kernel[0] * self.kernel[1]
        else:
            rows, columns = (-(-k // s) for k, s in zip(self.kernel, self.stride, strict=True))
            near, phases = rows * (columns + 3), self.stride[0] * self.stride[1]
        pairs, room = phases * self.outputs * self.inputs, NEAR // (near * 8 * LANES)
        good = min(max(14 * pairs // max(count, 1), room // 2), room)
        return min(max(good, 3 * pairs // max(count, 1), 1), self.outputs)


def of_linear(outputs: int, inputs: int, size: tuple[int, int] = (1, 1)) -> Geometry:
    """A Linear as a convolution; of an image of (height, width) that was flattened, as one with a kernel of its size.

    >>> of_linear(3, 4).out_size, of_linear(3, 8, (2, 2)).inputs
    ((1, 1), 2)
    """
    if min(size) < 1 or inputs % (size[0] * size[1]):
        raise DataError(
            f"expected activations with {inputs} features for a Linear of {inputs} inputs, received images of "
            f"{size[0] * size[1]} positions, of which no number of channels has so many; check the size of the images"
        )
    return Geometry(outputs, inputs // (size[0] * size[1]), 1, size, (1, 1), (0, 0), size)


def of_conv(shell: nn.Conv2d, size: tuple[int, int]) -> Geometry:
    """A Conv2d on images of (height, width)."""
    if (why := refusal(shell)) is not None:
        raise DataError(f"expected a Conv2d that the kernels can compute, received one with {why}; use the dense path")
    options: Any = shell
    padding = (0, 0) if options.padding == "valid" else options.padding
    return Geometry(
        options.out_channels, options.in_channels, options.groups, options.kernel_size, options.stride, padding, size
    )


def refusal(shell: nn.Module) -> str | None:
    """Why the compiled kernels cannot serve a module, or None where they can.

    >>> refusal(nn.Conv2d(3, 4, 3, dilation=2))
    'dilation'
    """
    if isinstance(shell, nn.Linear):
        return None
    if not isinstance(shell, nn.Conv2d):
        return f"no kernel for {type(shell).__name__}"
    if shell.dilation != (1, 1):
        return "dilation"
    if shell.padding_mode != "zeros":
        return f"padding mode {shell.padding_mode}"
    if shell.padding == "same":
        return 'padding="same"'
    if max(shell.stride) > MAX_STRIDE:
        return f"a stride above {MAX_STRIDE}"
    return None
