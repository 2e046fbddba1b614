"""ResNeXt for CIFAR (Xie et al., 2017): residual bottlenecks around a grouped convolution."""

from __future__ import annotations

from torch import Tensor, nn

from ..errors import ConfigError
from .options import check_sizes, kaiming_
from .resnet import projection


class Bottleneck(nn.Module):
    """relu(bn(expand(relu(bn(grouped(relu(bn(reduce(x)))))))) + shortcut(x)), figure 3(c) of the paper.

    reduce and expand are 1x1 convolutions, grouped is 3x3 in ``cardinality`` groups. The ``inner`` channels between
    them belong to this block alone, so that they can be ordered or dropped without touching an addition.

    Shapes: (batch, in_channels, H, W) -> (batch, channels, H / stride, W / stride).
    """

    def __init__(self, in_channels: int, inner: int, channels: int, cardinality: int, stride: int = 1) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(in_channels, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.grouped = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, groups=cardinality, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.expand = nn.Conv2d(inner, channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = projection(in_channels, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """The residual function plus the shortcut."""
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.reduce(x)))
        out = self.relu(self.bn2(self.grouped(out)))
        return self.relu(self.bn3(self.expand(out)) + shortcut)  # type: ignore[no-any-return]


class ResNeXt(nn.Module):
    """A 3x3 stem, three stages of bottlenecks, each twice as wide as the one before, pooling and a Linear."""

    stage1: nn.Sequential
    stage2: nn.Sequential
    stage3: nn.Sequential

    def __init__(
        self, num_classes: int, in_channels: int, blocks: int, cardinality: int, inner: int, stem: int
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, stem, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(stem)
        self.relu = nn.ReLU(inplace=True)
        before = stem
        for stage in range(3):
            channels, stride = 4 * stem * 2**stage, 1 if stage == 0 else 2
            first = Bottleneck(before, inner * 2**stage, channels, cardinality, stride)
            rest = [Bottleneck(channels, inner * 2**stage, channels, cardinality) for _ in range(blocks - 1)]
            self.add_module(f"stage{stage + 1}", nn.Sequential(first, *rest))
            before = channels
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(before, num_classes)
        kaiming_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape (batch, num_classes)."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.stage3(self.stage2(self.stage1(x)))
        return self.fc(self.avgpool(x).flatten(1))  # type: ignore[no-any-return]


def resnext_cifar(
    num_classes: int = 10,
    *,
    in_channels: int = 3,
    depth: int = 29,
    cardinality: int = 8,
    base_width: int = 64,
    width: float = 1.0,
) -> ResNeXt:
    """ResNeXt for small images; by default ResNeXt-29 8x64d, the smaller of the two that Xie et al. run on CIFAR.

    "Variational Nested Dropout" names "the ResNeXt-Cifar model" without its size. Images of any size will do: what is
    left after a reduction by 4 is averaged.

    depth: 9 n + 2 layers, n bottlenecks a stage. cardinality: groups of the 3x3 convolutions. base_width: channels a
    group in the first stage. width: multiplies all channels, those of a group included.

    Bottlenecks are called stage1.0 to stage3.2, their layers reduce, bn1, grouped, bn2, expand, bn3 and downsample.

    Shapes: (batch, in_channels, H, W), 32x32 or 64x64 in the paper -> (batch, num_classes).

    >>> sum(p.numel() for p in resnext_cifar().parameters())
    34426698
    """
    if depth < 11 or (depth - 2) % 9:
        raise ConfigError(f"resnext_cifar: expected a depth of 9 n + 2 (11, 20, 29, ...), received {depth}")
    sizes = {"in_channels": in_channels, "cardinality": cardinality, "base_width": base_width}
    check_sizes("resnext_cifar", num_classes=num_classes, **sizes)
    if not min(64, base_width) * width >= 1:
        raise ConfigError(
            f"resnext_cifar: expected a width that leaves a channel a group (1/{min(64, base_width)} or more), "
            f"received {width!r}"
        )
    inner = cardinality * int(base_width * width)
    return ResNeXt(num_classes, in_channels, (depth - 2) // 9, cardinality, inner, int(64 * width))
