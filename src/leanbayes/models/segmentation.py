"""The U-Net: an encoder and a decoder with connections across, for a label in every pixel."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import iterable_of, one_of, whole_number
from ..errors import ConfigError, DataError
from .options import check_sizes

Norm = Literal["batch", "instance", "none"]
_NORMS = {"batch": nn.BatchNorm2d, "instance": nn.InstanceNorm2d}
WIDTHS = (32, 64, 128, 192)


class UNet(nn.Module):
    """Convolutions at one resolution after the other, down and up again; see `unet`."""

    def __init__(self, in_channels: int, widths: Sequence[int], norm: Norm, num_classes: int | None) -> None:
        super().__init__()
        inputs = [in_channels, *widths[:-1]]
        self.down = nn.ModuleList(block(i, o, norm) for i, o in zip(inputs, widths, strict=True))
        self.up = nn.ModuleList(block(fine + coarse, fine, norm) for fine, coarse in pairwise(widths))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Identity() if num_classes is None else nn.Conv2d(widths[0], num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes, height, width) of images (batch, channels, height, width)."""
        least = 2 ** (len(self.down) - 1)
        if isinstance(x, Tensor) and (x.ndim != 4 or min(x.shape[2:]) < least):  # a tracer of torch.fx passes by
            raise DataError(
                f"unet: expected images (batch, channels, height, width) of at least {least}x{least} pixels for "
                f"{len(self.down)} resolutions, received shape {tuple(x.shape)}; enlarge them, or take fewer widths"
            )
        passed = [self.down[0](x)]
        for part in self.down[1:]:
            passed.append(part(self.pool(passed[-1])))
        at = passed.pop()
        for part in reversed(self.up):
            across = passed.pop()
            # To the size of what comes across, rather than by 2: an odd side is rounded down on the way.
            at = part(torch.cat([across, F.interpolate(at, size=across.shape[-2:], mode="nearest")], 1))
        return self.head(at)  # type: ignore[no-any-return]


def unet(
    num_classes: int | None = 2, *, in_channels: int = 1, widths: Sequence[int] = WIDTHS, norm: Norm = "batch"
) -> UNet:
    """A U-Net (Ronneberger et al., 2015), by default the one of variational nested dropout, 32-64-128-192 (C.1.3).

    num_classes: channels of the output; 1 gives the logit of class 1. None leaves the last convolution away, so that
        the output is feature maps, ``widths[0]`` of them, as `leanbayes.ProbabilisticUNet` takes them.
    widths: channels at each resolution, the finest first; each is half as fine as the one before.
    norm: behind every convolution: "batch", "instance" or "none".

    Shapes: (batch, in_channels, height, width) -> (batch, num_classes, height, width), for sides of any size, even or
    odd, from 2^(len(widths) - 1) on.

    >>> model = unet(widths=(4, 8))
    >>> model(torch.zeros(1, 1, 9, 6)).shape
    torch.Size([1, 2, 9, 6])
    >>> sum(p.numel() for p in unet().parameters())
    1541986
    """
    check_sizes("unet", in_channels=in_channels, **({} if num_classes is None else {"num_classes": num_classes}))
    return UNet(in_channels, *check_options("unet.", widths, norm), num_classes)


def check_options(of: str, widths: Sequence[int], norm: Norm) -> tuple[list[int], Norm]:
    """Widths and norm, if they are such; of: what stands before their names in a message."""
    chosen = iterable_of(f"{of}widths", widths, "numbers of channels", whole_number, hint="try (32, 64, 128, 192)")
    if not chosen:
        raise ConfigError(f"{of}widths: expected at least one number of channels, received none; try {WIDTHS}")
    return chosen, one_of(f"{of}norm", norm, (*_NORMS, "none"))  # type: ignore[return-value]


def block(inputs: int, outputs: int, norm: Norm) -> nn.Sequential:
    """Two convolutions of 3x3, each with its norm and a ReLU."""
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers.append(nn.Conv2d(channels, outputs, 3, padding=1, bias=norm == "none"))
        if norm != "none":
            layers.append(_NORMS[norm](outputs, affine=True))
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)
