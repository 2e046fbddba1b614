"""The papers' networks, by name or by function; nothing here needs torchvision.

No torch here: the command line lists the names without paying for an import of torch.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..lazy import attach

if TYPE_CHECKING:
    from torch import nn

    from .convolutional import convnet as convnet
    from .lenet import lenet5 as lenet5
    from .mobilenet import mobilenet_v2 as mobilenet_v2
    from .perceptron import mlp as mlp
    from .pyramidnet import pyramidnet_cifar as pyramidnet_cifar, pyramidnet_small as pyramidnet_small
    from .resnet import resnet18 as resnet18, resnet18_cifar as resnet18_cifar
    from .resnext import resnext_cifar as resnext_cifar
    from .segmentation import unet as unet
    from .vgg import vgg11_bn as vgg11_bn, vgg_like as vgg_like, vgg_small as vgg_small

__getattr__, _, _NETWORKS = attach(
    __name__,
    {
        "convolutional": "convnet",
        "lenet": "lenet5",
        "mobilenet": "mobilenet_v2",
        "perceptron": "mlp",
        "pyramidnet": "pyramidnet_cifar pyramidnet_small",
        "resnet": "resnet18 resnet18_cifar",
        "resnext": "resnext_cifar",
        "segmentation": "unet",
        "vgg": "vgg11_bn vgg_like vgg_small",
    },
)
__all__ = ["build", "names", *_NETWORKS]


def names() -> tuple[str, ...]:
    """The names that `build` knows.

    >>> "lenet5" in names(), "resnet18" in names()
    (True, True)
    """
    return tuple(_NETWORKS)


def build(name: str, **options: Any) -> nn.Module:
    """A network by name; the options are those of the function of that name.

    >>> import torch
    >>> build("mlp", in_features=4, hidden=(8,), out_features=2)(torch.zeros(1, 4)).shape
    torch.Size([1, 2])
    """
    if name not in _NETWORKS:
        raise ConfigError(f"model: expected one of {', '.join(_NETWORKS)}, received {name!r}")
    function = __getattr__(name)
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        raise ConfigError(f"model {name}: {error}; its options: {inspect.signature(function)}") from error
    return function(**options)  # type: ignore[no-any-return]


def __dir__() -> list[str]:
    return __all__
