"""LeNet-5 as Caffe has it, the small convolutional network of the sparse and variance papers."""

from __future__ import annotations

from torch import nn

from ..errors import ConfigError


def lenet5(
    num_classes: int = 10,
    *,
    in_channels: int = 1,
    image_size: int = 28,
    batch_norm: bool = False,
    bias: bool = True,
) -> nn.Sequential:
    """Conv 20 of 5x5 - pool - conv 50 of 5x5 - pool - Linear 500 - Linear, with ReLU.

    batch_norm, bias: "Variance Networks" (Neklyudov et al., 2019) runs it with BatchNorm after every hidden layer and
    without biases.

    At 28x28 the first Linear reads 800 features.

    Shapes: (batch, in_channels, image_size, image_size) -> (batch, num_classes).

    >>> sum(p.numel() for p in lenet5().parameters())
    431080
    """
    side = ((image_size - 4) // 2 - 4) // 2
    if side < 1:
        raise ConfigError(
            f"lenet5: expected an image_size of 16 or more, received {image_size}; pad or enlarge the images"
        )

    def hidden(layer: nn.Module, norm: nn.Module) -> list[nn.Module]:
        return [layer, norm, nn.ReLU()] if batch_norm else [layer, nn.ReLU()]

    layers = [
        *hidden(nn.Conv2d(in_channels, 20, 5, bias=bias), nn.BatchNorm2d(20)),
        nn.MaxPool2d(2),
        *hidden(nn.Conv2d(20, 50, 5, bias=bias), nn.BatchNorm2d(50)),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *hidden(nn.Linear(50 * side * side, 500, bias=bias), nn.BatchNorm1d(500)),
        nn.Linear(500, num_classes, bias=bias),
    ]
    return nn.Sequential(*layers)
