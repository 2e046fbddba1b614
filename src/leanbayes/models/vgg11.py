"""VGG11 with BatchNorm for small images, as variational nested dropout has it, and a smaller relative."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from ..errors import ConfigError

# channels of each convolution at width 1; a pooling ends a stage
_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))
_SMALL = ((16,), (32,), (64, 64))


def vgg11_bn(
    num_classes: int = 10, *, in_channels: int = 3, image_size: int = 32, width: float = 1.0, hidden: int = 256
) -> nn.Sequential:
    """Eight 3x3 convolutions, each with BatchNorm and ReLU, in five stages that halve the image, and two Linears.

    Simonyan and Zisserman (2014), configuration A, with the classifier of "Variational Nested Dropout" (Cui et al.,
    appendix C.1): one dense layer of 256 neurons with BatchNorm behind the convolutions. The paper trains it at
    width=1.5 and keeps two thirds.

    width: multiplies the channels of all convolutions; ``hidden`` stays.

    Layers are called conv1 to conv8, dense1 and dense2, their BatchNorms bn1 to bn9.

    Shapes: (batch, in_channels, image_size, image_size) -> (batch, num_classes).

    >>> sum(p.numel() for p in vgg11_bn().parameters())
    9360394
    """
    return _vgg("vgg11_bn", _STAGES, num_classes, in_channels, image_size, width, hidden)


def vgg_small(
    num_classes: int = 10, *, in_channels: int = 3, image_size: int = 32, width: float = 1.0, hidden: int = 64
) -> nn.Sequential:
    """The same with four convolutions of 16, 32, 64 and 64 channels in three stages, to train on a CPU in minutes.

    Layers are called conv1 to conv4, dense1 and dense2, their BatchNorms bn1 to bn5.

    Shapes: (batch, in_channels, image_size, image_size) -> (batch, num_classes).

    >>> sum(p.numel() for p in vgg_small().parameters())
    127242
    """
    return _vgg("vgg_small", _SMALL, num_classes, in_channels, image_size, width, hidden)


def _vgg(
    name: str,
    stages: tuple[tuple[int, ...], ...],
    num_classes: int,
    in_channels: int,
    image_size: int,
    width: float,
    hidden: int,
) -> nn.Sequential:
    first, smallest = stages[0][0], 2 ** len(stages)
    if isinstance(width, bool) or not isinstance(width, (int, float)) or not width * first >= 1:
        raise ConfigError(f"{name}: expected a width of 1/{first} or more, received {width!r}")
    if min(num_classes, in_channels, hidden) < 1:
        raise ConfigError(
            f"{name}: expected num_classes, in_channels and hidden of 1 or more, "
            f"received {num_classes}, {in_channels}, {hidden}"
        )
    side = image_size // smallest
    if side < 1:
        raise ConfigError(
            f"{name}: expected an image_size of {smallest} or more, received {image_size}; pad or enlarge the images"
        )
    layers: list[tuple[str, nn.Module]] = []
    before, number = in_channels, 0
    for stage, convolutions in enumerate(stages, 1):
        for channels in convolutions:
            number += 1
            after = int(channels * width)
            layers += [
                (f"conv{number}", nn.Conv2d(before, after, 3, padding=1)),
                (f"bn{number}", nn.BatchNorm2d(after)),
                (f"act{number}", nn.ReLU()),
            ]
            before = after
        layers.append((f"pool{stage}", nn.MaxPool2d(2)))
    layers += [
        ("flatten", nn.Flatten()),
        ("dense1", nn.Linear(before * side * side, hidden)),
        (f"bn{number + 1}", nn.BatchNorm1d(hidden)),
        (f"act{number + 1}", nn.ReLU()),
        ("dense2", nn.Linear(hidden, num_classes)),
    ]
    return nn.Sequential(OrderedDict(layers))
