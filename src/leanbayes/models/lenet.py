"""LeNet-5 as Caffe has it, the small convolutional network of the sparse and variance papers."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from torch import nn

from ..checks import one_of
from .options import activation as activation_of, check_image_size


def lenet5(
    num_classes: int = 10,
    *,
    in_channels: int = 1,
    image_size: int = 28,
    batch_norm: bool | Literal["dense"] = False,
    bias: bool = True,
    activation: str = "relu",
) -> nn.Sequential:
    """Conv 20 of 5x5 - pool - conv 50 of 5x5 - pool - Linear 500 - Linear, with ReLU.

    "Variance Networks" (Neklyudov et al., 2019) runs it in two forms: with BatchNorm after every hidden layer and no
    biases (batch_norm=True, bias=False) where dense1 alone is a variance layer, and with BatchNorm after dense1 only
    (batch_norm="dense") where all four layers are. Weights start from torch's U(+-1/sqrt(fan-in)), as theirs do.
    activation: of dense1, "relu", "softplus" (for the curvature criterion) or "abs" (for a layer without means).

    Layers are called conv1, conv2, dense1 and dense2, their BatchNorms bn1, bn2 and bn3. At 28x28 dense1 reads 800
    features.

    Shapes: (batch, in_channels, image_size, image_size) -> (batch, num_classes).

    >>> sum(p.numel() for p in lenet5().parameters())
    431080
    """
    check_image_size("lenet5", image_size, at_least=16)
    one_of("lenet5.batch_norm", batch_norm, (True, False, "dense"))
    side = ((image_size - 4) // 2 - 4) // 2
    layers: list[tuple[str, nn.Module | None]] = [
        ("conv1", nn.Conv2d(in_channels, 20, 5, bias=bias)),
        ("bn1", nn.BatchNorm2d(20) if batch_norm is True else None),
        ("act1", nn.ReLU()),
        ("pool1", nn.MaxPool2d(2)),
        ("conv2", nn.Conv2d(20, 50, 5, bias=bias)),
        ("bn2", nn.BatchNorm2d(50) if batch_norm is True else None),
        ("act2", nn.ReLU()),
        ("pool2", nn.MaxPool2d(2)),
        ("flatten", nn.Flatten()),
        ("dense1", nn.Linear(50 * side * side, 500, bias=bias)),
        ("bn3", nn.BatchNorm1d(500) if batch_norm else None),
        ("act3", activation_of(activation, "lenet5")),
        ("dense2", nn.Linear(500, num_classes, bias=bias)),
    ]
    return nn.Sequential(OrderedDict((name, layer) for name, layer in layers if layer is not None))
