"""`looks_trained`: whether a network has been trained."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy


def looks_trained(model: nn.Module) -> bool:
    """Whether a network has been trained, or initialised otherwise than by torch's defaults.

    It has if a BatchNorm has seen a batch, or if the weights of a Linear or a convolution are outside of torch's
    U(-b, b), b = 1 / sqrt(fan-in). Other initialisations, such as He's normal one, are outside too: if at least every
    other layer has a BatchNorm and none has seen a batch, the weights are not looked at.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    >>> looks_trained(net)
    False
    >>> _ = net(torch.randn(5, 4))
    >>> looks_trained(net)
    True
    """
    modules = list(model.modules())
    norms = [module for module in modules if _tracks(module)]
    if any(map(_has_seen, norms)):
        return True
    layers = [module for module in modules if isinstance(module, (nn.Linear, _ConvNd))]
    return 2 * len(norms) < len(layers) and any(map(_beyond_default, layers))


def _tracks(module: nn.Module) -> bool:
    mean = module._buffers.get("running_mean")
    return mean is not None and not is_lazy(mean) and not mean.is_meta


def _has_seen(norm: nn.Module) -> bool:
    """Whether a BatchNorm has statistics of data; old files have them without the number of batches."""
    count, mean = (norm._buffers.get(name) for name in ("num_batches_tracked", "running_mean"))
    return any(t is not None and bool((t != 0).any()) for t in (count, mean))


def _beyond_default(module: nn.Linear | _ConvNd) -> bool:
    weight = module._parameters.get("weight")
    if weight is None or is_lazy(weight) or weight.is_meta or not weight.numel():
        return False
    fan_in = weight[0].numel()  # as torch counts it, for transposed convolutions too
    return float(weight.detach().abs().max()) > 1.0001 / fan_in**0.5
