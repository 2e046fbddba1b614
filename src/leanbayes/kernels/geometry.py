"""The shape of a sparse operation: which activations its weights meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

LANES = 32
"""Data side by side in a blocked activation."""
MAX_STRIDE = 8


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

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of the output."""
        zipped = zip(self.size, self.kernel, self.stride, self.padding, strict=True)
        height, width = ((n + 2 * p - k) // s + 1 for n, k, s, p in zipped)
        return height, width

    def numbers(self, blocks: int) -> list[int]:
        """What the compiled kernels read, in their order."""
        return [
            self.outputs, self.inputs, self.groups, *self.kernel, *self.stride, *self.padding, *self.size,
            *self.out_size, blocks, LANES.bit_length() - 1,
        ]  # fmt: skip


def of_linear(outputs: int, inputs: int) -> Geometry:
    """A Linear as a convolution.

    >>> of_linear(3, 4).out_size
    (1, 1)
    """
    return Geometry(outputs, inputs, 1, (1, 1), (1, 1), (0, 0), (1, 1))


def of_conv(shell: nn.Conv2d, size: tuple[int, int]) -> Geometry:
    """A Conv2d on images of (height, width)."""
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
