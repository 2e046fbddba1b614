"""A small convolutional network for small images, such as the embedded digits."""

from __future__ import annotations

from torch import nn

from ..errors import ConfigError


def convnet(
    num_classes: int = 10, *, in_channels: int = 1, image_size: int = 8, width: int = 16, hidden: int = 64
) -> nn.Sequential:
    """Conv ``width`` of 3x3 - conv 2 x ``width`` of 3x3 - pool - Linear ``hidden`` - Linear, with ReLU.

    Shapes: (batch, in_channels, image_size, image_size) -> (batch, num_classes).

    >>> sum(p.numel() for p in convnet().parameters())
    38282
    """
    if image_size < 2:
        raise ConfigError(f"convnet: expected an image_size of 2 or more, received {image_size}")
    side = image_size // 2
    return nn.Sequential(
        nn.Conv2d(in_channels, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * side * side, hidden),
        nn.ReLU(),
        nn.Linear(hidden, num_classes),
    )
