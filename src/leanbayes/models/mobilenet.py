"""MobileNetV2 (Sandler et al., 2018), with fewer reductions where images are small."""

from __future__ import annotations

from torch import Tensor, nn

from ..checks import number
from .options import check_image_size, check_sizes, kaiming_

# expansion, channels at width 1, blocks and stride of each stage: table 2 of the paper
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """bn(project(relu6(bn(depthwise(relu6(bn(expand(x))))))), plus x where the shapes agree.

    expand and project are 1x1 convolutions, depthwise is 3x3 with a filter a channel. The channels between expand and
    project belong to this block alone. With an expansion of 1 there is no expand, and depthwise filters the input.

    Shapes: (batch, in_channels, H, W) -> (batch, channels, H / stride, W / stride).
    """

    def __init__(self, in_channels: int, channels: int, expansion: int, stride: int = 1) -> None:
        super().__init__()
        inner = in_channels * expansion
        self.expand: nn.Module | None = None
        if expansion > 1:
            self.expand = nn.Conv2d(in_channels, inner, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(inner)
        self.depthwise = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, groups=inner, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.project = nn.Conv2d(inner, channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)
        self.relu6 = nn.ReLU6()
        self.residual = stride == 1 and in_channels == channels

    def forward(self, x: Tensor) -> Tensor:
        """The block's function, plus its input where the shapes agree."""
        out = x if self.expand is None else self.relu6(self.bn1(self.expand(x)))
        out = self.relu6(self.bn2(self.depthwise(out)))
        out = self.bn3(self.project(out))
        return out + x if self.residual else out  # type: ignore[no-any-return]


class MobileNetV2(nn.Module):
    """A 3x3 stem, seven stages of inverted residuals, a 1x1 convolution, pooling and a Linear.

    halvings: how often the image is halved, by the last ones of the five convolutions of stride 2 in the paper.
    """

    stage1: nn.Sequential
    stage2: nn.Sequential
    stage3: nn.Sequential
    stage4: nn.Sequential
    stage5: nn.Sequential
    stage6: nn.Sequential
    stage7: nn.Sequential

    def __init__(self, num_classes: int, in_channels: int, width: float, halvings: int) -> None:
        super().__init__()
        stem, head = _rounded(32 * width), _rounded(1280 * max(1.0, width))
        self.conv1 = nn.Conv2d(in_channels, stem, 3, stride=2 if halvings == 5 else 1, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(stem)
        self.relu6 = nn.ReLU6()
        before, left = stem, 4  # halvings in the stages, this one and those behind it
        for stage, (expansion, channels, blocks, stride) in enumerate(_STAGES, 1):
            after = _rounded(channels * width)
            first = InvertedResidual(before, after, expansion, stride if left <= halvings else 1)
            rest = [InvertedResidual(after, after, expansion) for _ in range(blocks - 1)]
            self.add_module(f"stage{stage}", nn.Sequential(first, *rest))
            before, left = after, left - (stride == 2)
        self.head = nn.Conv2d(before, head, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(head)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(head, num_classes)
        kaiming_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape (batch, num_classes)."""
        x = self.relu6(self.bn1(self.conv1(x)))
        x = self.stage4(self.stage3(self.stage2(self.stage1(x))))
        x = self.stage7(self.stage6(self.stage5(x)))
        x = self.relu6(self.bn2(self.head(x)))
        return self.fc(self.avgpool(x).flatten(1))  # type: ignore[no-any-return]


def mobilenet_v2(
    num_classes: int = 10, *, in_channels: int = 3, image_size: int = 32, width: float = 1.0
) -> MobileNetV2:
    """MobileNetV2 for images of 32x32, 64x64 (Tiny ImageNet) or more, without the dropout in front of its classifier.

    image_size: below 64 the first two convolutions of stride 2 get stride 1, below 128 the first one does, so that the
    last stages see 4x4 pixels; from 128 on the network is the paper's, which reduces by 32. No parameter depends on it.
    width: multiplies all channels, rounded to multiples of 8; below 1 the head keeps its 1,280.

    Blocks are called stage1.0 to stage7.0, their layers expand, bn1, depthwise, bn2, project and bn3.

    Shapes: (batch, in_channels, image_size, image_size) -> (batch, num_classes).

    >>> sum(p.numel() for p in mobilenet_v2().parameters())
    2236682
    """
    check_sizes("mobilenet_v2", num_classes=num_classes, in_channels=in_channels)
    number("mobilenet_v2.width", width, above=0)
    check_image_size("mobilenet_v2", image_size, at_least=8)
    return MobileNetV2(num_classes, in_channels, width, 3 if image_size < 64 else 4 if image_size < 128 else 5)


def _rounded(channels: float) -> int:
    """To a multiple of 8, never to less than nine tenths."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8
