"""The VGG-like network for CIFAR of Zagoruyko (2015), as variance networks has it."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from ..errors import ConfigError
from .activations import activation as activation_of

# channels of a convolution at width 1, and the rate of the dropout behind it; None where a pooling follows instead
_STAGES: tuple[tuple[tuple[int, float | None], ...], ...] = (
    ((64, 0.3), (64, None)),
    ((128, 0.4), (128, None)),
    ((256, 0.4), (256, 0.4), (256, None)),
    ((512, 0.4), (512, 0.4), (512, None)),
    ((512, 0.4), (512, 0.4), (512, None)),
)


def vgg_like(
    num_classes: int = 10,
    *,
    in_channels: int = 3,
    image_size: int = 32,
    width: float = 1.0,
    dropout: bool = True,
    dropout_last: bool = True,
    activation: str = "relu",
) -> nn.Sequential:
    """Thirteen 3x3 convolutions, each with BatchNorm and ReLU, in five stages that halve the image, and two Linears.

    Zagoruyko (2015) has dropout of 0.3 and 0.4 between the convolutions of a stage and of 0.5 around dense1.

    width: multiplies all channels, and the 512 neurons of dense1.
    dropout: whether there are dropout layers at all. dropout_last: whether the last stage has them; in "Variance
    Networks" it has none, since its convolutions are variance layers.
    activation: of dense1, "relu", "softplus" or "abs".

    Layers are called conv1 to conv13, dense1 and dense2, their BatchNorms bn1 to bn14, dropouts drop1, drop3, ...

    Shapes: (batch, in_channels, image_size, image_size) -> (batch, num_classes).

    >>> sum(p.numel() for p in vgg_like().parameters())
    14991946
    """
    if isinstance(width, bool) or not isinstance(width, (int, float)) or not width * 64 >= 1:
        raise ConfigError(f"vgg_like: expected a width of 1/64 or more, received {width!r}")
    side = image_size // 32
    if side < 1:
        raise ConfigError(
            f"vgg_like: expected an image_size of 32 or more, received {image_size}; pad or enlarge the images"
        )
    layers: list[tuple[str, nn.Module]] = []
    before, number = in_channels, 0
    for stage, convolutions in enumerate(_STAGES, 1):
        for channels, rate in convolutions:
            number += 1
            after = max(1, int(channels * width))
            layers += [
                (f"conv{number}", nn.Conv2d(before, after, 3, padding=1)),
                (f"bn{number}", nn.BatchNorm2d(after)),
                (f"act{number}", nn.ReLU()),
            ]
            if rate is not None and dropout and (stage < len(_STAGES) or dropout_last):
                layers.append((f"drop{number}", nn.Dropout(rate)))
            before = after
        layers.append((f"pool{stage}", nn.MaxPool2d(2)))
    hidden = max(1, int(512 * width))
    layers += [("flatten", nn.Flatten())]
    layers += [("drop13", nn.Dropout(0.5))] if dropout else []
    layers += [
        ("dense1", nn.Linear(before * side * side, hidden)),
        ("bn14", nn.BatchNorm1d(hidden)),
        ("act14", activation_of(activation, "vgg_like")),
    ]
    layers += [("drop14", nn.Dropout(0.5))] if dropout else []
    layers.append(("dense2", nn.Linear(hidden, num_classes)))
    return nn.Sequential(OrderedDict(layers))
