"""PyramidNet for CIFAR (Han et al., 2017): every block is a few channels wider than the one before."""

from __future__ import annotations

from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import number
from ..errors import ConfigError
from .options import check_sizes, kaiming_


class PyramidBlock(nn.Module):
    """bn(conv(relu(bn(conv(bn(x)))))) + x, two 3x3 convolutions, figure 6(d) of the paper.

    The shortcut has no parameters: x is averaged over 2x2 pixels where the block has stride 2, and padded with channels
    of zeros. So the channels of the stream cannot be dropped, but those between conv1 and conv2 can.

    Shapes: (batch, in_channels, H, W) -> (batch, channels, H / stride, W / stride).
    """

    def __init__(self, in_channels: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)
        self.downsample = nn.Identity() if stride == 1 else nn.AvgPool2d(stride, ceil_mode=True)
        self.extra = channels - in_channels

    def forward(self, x: Tensor) -> Tensor:
        """The residual function plus the padded shortcut."""
        out = self.relu(self.bn2(self.conv1(self.bn1(x))))
        shortcut = F.pad(self.downsample(x), (0, 0, 0, 0, 0, self.extra))
        return cast("Tensor", self.bn3(self.conv2(out)) + shortcut)


class PyramidNet(nn.Module):
    """A 3x3 stem, three stages of blocks that widen steadily, then BatchNorm, ReLU, pooling and a Linear."""

    stage1: nn.Sequential
    stage2: nn.Sequential
    stage3: nn.Sequential

    def __init__(self, num_classes: int, in_channels: int, blocks: int, alpha: float, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        # additive: block k of all has width + k alpha / (3 blocks) channels, rounded as the authors' code does
        widths = [round(width + k * alpha / (3 * blocks)) for k in range(3 * blocks + 1)]
        for stage in range(3):
            layers = [
                PyramidBlock(widths[k], widths[k + 1], stride=2 if stage > 0 and k == stage * blocks else 1)
                for k in range(stage * blocks, (stage + 1) * blocks)
            ]
            self.add_module(f"stage{stage + 1}", nn.Sequential(*layers))
        self.bn_final = nn.BatchNorm2d(widths[-1])
        self.relu = nn.ReLU(inplace=True)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(widths[-1], num_classes)
        kaiming_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape (batch, num_classes)."""
        x = self.bn1(self.conv1(x))
        x = self.stage3(self.stage2(self.stage1(x)))
        x = self.relu(self.bn_final(x))
        return self.fc(self.avgpool(x).flatten(1))  # type: ignore[no-any-return]


def pyramidnet_cifar(
    num_classes: int = 10, *, in_channels: int = 3, depth: int = 110, alpha: float = 270, width: int = 16
) -> PyramidNet:
    """The additive PyramidNet without bottlenecks; by default that of "Ensemble Model Patching", depth 110, alpha 270.

    depth: 6 n + 2 layers, n blocks a stage. width: channels of the stem. alpha: how many more the last block has.

    Blocks are called stage1.0, stage1.1, ..., their layers bn1, conv1, bn2, conv2 and bn3; bn_final is in front of fc.

    Shapes: (batch, in_channels, H, W), 32x32 in the paper -> (batch, num_classes).

    >>> sum(p.numel() for p in pyramidnet_cifar(100).parameters())
    28511307
    """
    if depth < 8 or (depth - 2) % 6:
        raise ConfigError(f"pyramidnet_cifar: expected a depth of 6 n + 2 (8, 14, 20, ...), received {depth}")
    check_sizes("pyramidnet_cifar", num_classes=num_classes, in_channels=in_channels, width=width)
    number("pyramidnet_cifar.alpha", alpha, at_least=0)
    return PyramidNet(num_classes, in_channels, (depth - 2) // 6, alpha, width)


def pyramidnet_small(
    num_classes: int = 10, *, in_channels: int = 3, depth: int = 20, alpha: float = 36, width: int = 16
) -> PyramidNet:
    """A PyramidNet that a CPU trains: depth 20, from 16 to 52 channels, otherwise `pyramidnet_cifar`.

    Shapes: (batch, in_channels, H, W) -> (batch, num_classes).

    >>> sum(p.numel() for p in pyramidnet_small().parameters())
    218538
    """
    return pyramidnet_cifar(num_classes, in_channels=in_channels, depth=depth, alpha=alpha, width=width)
