"""Whether a network has been trained: what is kept of it, and where its relatives start, depends on that."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy


def looks_trained(model: nn.Module) -> bool:
    """Whether a network has been trained, or was initialised by other means than torch's defaults.

    A BatchNorm that has seen a batch says so; and torch draws the weights of a Linear or a convolution from
    U(-b, b), b = 1 / sqrt(fan-in), which training soon leaves somewhere.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    >>> looks_trained(net)
    False
    >>> _ = net(torch.randn(5, 4))
    >>> looks_trained(net)
    True
    """
    return any(_has_moved(module) for module in model.modules())


def _has_moved(module: nn.Module) -> bool:
    seen, weight = module._buffers.get("num_batches_tracked"), module._parameters.get("weight")
    if seen is not None and not seen.is_meta and bool((seen > 0).any()):
        return True
    if not isinstance(module, (nn.Linear, _ConvNd)) or weight is None or is_lazy(weight):
        return False
    if weight.is_meta or not weight.numel():
        return False
    fan_in = weight[0].numel()  # as torch counts it, for transposed convolutions too
    return float(weight.detach().abs().max()) > 1.0001 / fan_in**0.5
