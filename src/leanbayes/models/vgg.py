"""Networks of the VGG family for small images, with BatchNorm behind every convolution."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from .. import checks
from .options import activation as activation_of, check_image_size, check_sizes

# channels of each convolution at width 1; a pooling ends a stage
_ELEVEN = ((64,), (128,), (256, 256), (512, 512), (512, 512))
_LIKE = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
_SMALL = ((16,), (32,), (64, 64))


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
    checks.number("vgg_like.width", width, at_least=1 / _LIKE[0][0])
    rates = (0.3, 0.4, 0.4, 0.4, 0.4) if dropout_last else (0.3, 0.4, 0.4, 0.4, 0.0)
    return _vgg(
        "vgg_like", _LIKE, num_classes, in_channels, image_size, width, max(1, int(512 * width)),
        rates=(*rates, 0.5) if dropout else (), activation=activation,
    )  # fmt: skip


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
    return _vgg("vgg11_bn", _ELEVEN, num_classes, in_channels, image_size, width, hidden)


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
    rates: tuple[float, ...] = (),
    activation: str = "relu",
) -> nn.Sequential:
    """rates: of the dropout between the convolutions of each stage, and of that around dense1."""
    first, smallest = stages[0][0], 2 ** len(stages)
    checks.number(f"{name}.width", width, at_least=1 / first)
    check_sizes(name, num_classes=num_classes, in_channels=in_channels, hidden=hidden)
    check_image_size(name, image_size, at_least=smallest)
    side = image_size // smallest
    layers: list[tuple[str, nn.Module]] = []
    before, number = in_channels, 0
    for stage, convolutions in enumerate(stages):
        for place, channels in enumerate(convolutions, 1):
            number += 1
            after = int(channels * width)
            layers += [
                (f"conv{number}", nn.Conv2d(before, after, 3, padding=1)),
                (f"bn{number}", nn.BatchNorm2d(after)),
                (f"act{number}", nn.ReLU()),
            ]
            if rates and rates[stage] and place < len(convolutions):
                layers.append((f"drop{number}", nn.Dropout(rates[stage])))
            before = after
        layers.append((f"pool{stage + 1}", nn.MaxPool2d(2)))
    around = [(f"drop{number + k}", nn.Dropout(rates[-1])) for k in range(2)] if rates else []
    layers += [
        ("flatten", nn.Flatten()),
        *around[:1],
        ("dense1", nn.Linear(before * side * side, hidden)),
        (f"bn{number + 1}", nn.BatchNorm1d(hidden)),
        (f"act{number + 1}", activation_of(activation, name)),
        *around[1:],
        ("dense2", nn.Linear(hidden, num_classes)),
    ]
    return nn.Sequential(OrderedDict(layers))
