"""A small convolutional network for small images, such as the embedded digits."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from .options import check_image_size


def convnet(
    num_classes: int = 10, *, in_channels: int = 1, image_size: int = 8, width: int = 16, hidden: int = 64
) -> nn.Sequential:
    """Conv ``width`` of 3x3 - conv 2 x ``width`` of 3x3 - pool - Linear ``hidden`` - Linear, with ReLU.

    Layers are called conv1, conv2, dense1 and dense2.

    Shapes: (batch, in_channels, image_size, image_size) -> (batch, num_classes).

    >>> sum(p.numel() for p in convnet().parameters())
    38282
    """
    check_image_size("convnet", image_size, at_least=2)
    side = image_size // 2
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(in_channels, width, 3, padding=1),
        "act1": nn.ReLU(),
        "conv2": nn.Conv2d(width, 2 * width, 3, padding=1),
        "act2": nn.ReLU(),
        "pool": nn.MaxPool2d(2),
        "flatten": nn.Flatten(),
        "dense1": nn.Linear(2 * width * side * side, hidden),
        "act3": nn.ReLU(),
        "dense2": nn.Linear(hidden, num_classes),
    }
    return nn.Sequential(OrderedDict(layers))
