"""ResNet-18 (He et al., 2016) with torchvision's layer names, so that its checkpoints load."""

from __future__ import annotations

from torch import Tensor, nn

from .options import check_sizes, kaiming_


def projection(in_channels: int, channels: int, stride: int) -> nn.Module | None:
    """The shortcut if shapes change, a 1x1 convolution with BatchNorm, else None."""
    if stride == 1 and in_channels == channels:
        return None
    return nn.Sequential(nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False), nn.BatchNorm2d(channels))


class BasicBlock(nn.Module):
    """relu(bn(conv(relu(bn(conv(x))))) + shortcut(x)), 3x3 convolutions.

    Shapes: (batch, in_channels, H, W) -> (batch, channels, H / stride, W / stride).
    """

    def __init__(self, in_channels: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = projection(in_channels, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """The residual function plus the shortcut."""
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + shortcut)  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """Four stages of basic blocks, each twice as wide as the one before, then global average pooling and a Linear.

    stem: "imagenet" (7x7 of stride 2, then max-pooling) or "cifar" (3x3, of stride 1 or another).
    """

    def __init__(
        self,
        stem: str,
        depths: tuple[int, int, int, int],
        num_classes: int,
        in_channels: int,
        width: int,
        stem_stride: int = 1,
    ) -> None:
        super().__init__()
        sizes = {"in_channels": in_channels, "width": width, "stem_stride": stem_stride}
        check_sizes("resnet", num_classes=num_classes, **sizes)
        large = stem == "imagenet"
        kernel, stride, padding = (7, 2, 3) if large else (3, stem_stride, 1)
        self.conv1 = nn.Conv2d(in_channels, width, kernel, stride=stride, padding=padding, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if large else nn.Identity()
        self.layer1 = _stage(width, width, depths[0])
        self.layer2 = _stage(width, 2 * width, depths[1], stride=2)
        self.layer3 = _stage(2 * width, 4 * width, depths[2], stride=2)
        self.layer4 = _stage(4 * width, 8 * width, depths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * width, num_classes)
        kaiming_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape (batch, num_classes)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))  # type: ignore[no-any-return]


def _stage(in_channels: int, channels: int, depth: int, stride: int = 1) -> nn.Sequential:
    rest = [BasicBlock(channels, channels) for _ in range(depth - 1)]
    return nn.Sequential(BasicBlock(in_channels, channels, stride), *rest)


def resnet18(num_classes: int = 1000, *, in_channels: int = 3, width: int = 64) -> ResNet:
    """ResNet-18 for ImageNet: at the default width its state dict is that of ``torchvision.models.resnet18``.

    Shapes: (batch, in_channels, H, W), 224x224 in the paper -> (batch, num_classes). On 32x32 images its last stage
    sees single pixels, where eight of nine weights of a 3x3 kernel meet nothing but padding: use `resnet18_cifar`.

    >>> sum(p.numel() for p in resnet18().parameters())
    11689512
    """
    return ResNet("imagenet", (2, 2, 2, 2), num_classes, in_channels, width)


def resnet18_cifar(num_classes: int = 10, *, in_channels: int = 3, width: int = 64, stem_stride: int = 1) -> ResNet:
    """ResNet-18 for small images: a 3x3 stem and no max-pooling; ``width`` channels in the first stage.

    stem_stride: 2 makes all that follows cost a quarter, and leaves 2x2 of 32x32 pixels to the last stage.

    Shapes: (batch, in_channels, H, W), 32x32 in the papers -> (batch, num_classes).

    >>> sum(p.numel() for p in resnet18_cifar().parameters())
    11173962
    """
    return ResNet("cifar", (2, 2, 2, 2), num_classes, in_channels, width, stem_stride)
