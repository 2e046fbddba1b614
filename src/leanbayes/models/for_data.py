"""A network for a data set: its name and options, as they are saved with a model."""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from . import names

if TYPE_CHECKING:
    from ..data import DataSet


SQUARE = ("convnet", "lenet5", "mobilenet_v2", "vgg11_bn", "vgg_like", "vgg_small")  # the others pool whatever is left


def fitting(name: str, data: DataSet, outputs: int | None = None) -> dict[str, Any]:
    """The name and options of a network for the shapes of a data set; "auto" chooses by the size of the images.

    outputs: how many numbers it gives for a datum; one for each class, or one for a regression, by default.

    >>> from leanbayes.data import load
    >>> fitting("auto", load("digits"))
    {'name': 'convnet', 'options': {'num_classes': 10, 'in_channels': 1, 'image_size': 8}}
    >>> fitting("lenet-5", load("digits"))
    Traceback (most recent call last):
    leanbayes.errors.ConfigError: model: expected auto, convnet, ..., received 'lenet-5'; did you mean 'lenet5'?
    """
    known = ["auto", *names()]
    if name not in known:
        close = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "your own is package.module:factory"
        raise ConfigError(f"model: expected {', '.join(known)}, received {name!r}; {hint}")
    outputs = outputs or data.num_classes or 1
    images = len(data.input_shape) == 3
    if data.task == "segmentation":
        name = "unet" if name == "auto" else name
        if name != "unet" or not images:
            raise ConfigError(
                f"model: expected auto or unet, which give every pixel a class, for images of {data.name}, received "
                f"{name} and data of shape {data.input_shape}; your own is package.module:factory"
            )
    elif name == "unet":
        raise ConfigError(f"model: unet gives every pixel a class, {data.name} is a {data.task}; choose auto")
    if name == "auto":
        side = data.input_shape[-1] if images else 0
        name = "mlp" if not images else "convnet" if side < 16 else "lenet5" if side < 32 else "resnet18_cifar"
    if name == "mlp":
        hidden = [50] if data.task == "regression" else [128, 128]
        return {
            "name": name,
            "options": {"in_features": math.prod(data.input_shape), "hidden": hidden, "out_features": outputs},
        }
    if not images:
        raise ConfigError(
            f"model: {name} reads images, (channels, height, width); {data.name} has data of shape {data.input_shape}; "
            "choose mlp"
        )
    channels, *sides = data.input_shape
    options: dict[str, Any] = {"num_classes": outputs, "in_channels": channels}
    if name in SQUARE:
        if sides[0] != sides[1]:
            raise ConfigError(f"model: {name} reads square images, {data.name} has {sides[0]}x{sides[1]}; choose mlp")
        options["image_size"] = sides[0]
    return {"name": name, "options": options}
