"""The importance of channels of a trained network, by which they are ordered at the start."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ...convert.channels import Group, Use
from ...layers.contract import original
from ...ordering.placement import Steps


def by_importance(model: nn.Module, group: Group, steps: Steps) -> Steps:
    """The same cut with the most important channels in the first groups; no weight is moved.

    The importance is the norm of a channel's outgoing weights times that of its incoming ones, or times the factor of
    the norm layer after them if there is one. Channels tied by a grouped convolution or a GroupNorm keep their order.

    >>> from leanbayes.convert.channels import channel_graph
    >>> from leanbayes.ordering.placement import cut
    >>> model = nn.Sequential(nn.Linear(2, 4, bias=False), nn.ReLU(), nn.Linear(4, 1))
    >>> with torch.no_grad():
    ...     _ = model[0].weight.copy_(torch.tensor([[1.0, 0], [4, 0], [2, 0], [3, 0]])), model[2].weight.fill_(1)
    >>> group = channel_graph(model)["0"]
    >>> by_importance(model, group, cut(group, groups=4, base=1)).of
    (3, 0, 2, 1)
    """
    score = importance(model, group)
    if score is None:
        return steps
    order = score.argsort(descending=True, stable=True).tolist()
    of = dict(zip(order, sorted(steps.of), strict=True))
    return dataclasses.replace(steps, of=tuple(of[channel] for channel in range(group.size)))


@torch.no_grad()
def importance(model: nn.Module, group: Group) -> Tensor | None:
    """The importance of each channel of a group, (size,), or None if the weights do not tell."""
    if group.constraints:
        return None
    norms: list[Tensor | None] = [factor for use in group.through if (factor := _factor(model, group, use)) is not None]
    loud = norms or [_norm(model, group, use, out=True) for use in group.producers]
    heard = [_norm(model, group, use, out=False) for use in group.consumers]
    if any(part is None for part in (*loud, *heard)):
        return None
    return torch.stack(loud).sum(0) * torch.stack(heard).square().sum(0).sqrt()  # type: ignore[arg-type]


def _factor(model: nn.Module, group: Group, use: Use) -> Tensor | None:
    """|gamma| of a norm layer."""
    weight = model.get_submodule(use.module)._parameters.get("weight")
    if weight is None or weight.is_meta or weight.ndim != 1:
        return None
    return _by_channel(weight.detach().double().abs(), group, use)


def _norm(model: nn.Module, group: Group, use: Use, out: bool) -> Tensor | None:
    """The norm of a layer's weights for each channel that it produces or consumes."""
    module = model.get_submodule(use.module)
    weight, kind = module._parameters.get("weight"), original(module)
    if weight is None or weight.is_meta or not isinstance(kind, (nn.Linear, _ConvNd)):
        return None
    shape: Any = kind
    if isinstance(kind, _ConvNd) and (shape.groups > 1 or shape.transposed):
        return None
    squares = weight.detach().double().square()
    features = squares.flatten(1).sum(1) if out else squares.movedim(1, 0).flatten(1).sum(1)
    return _by_channel(features, group, use).sqrt()


def _by_channel(features: Tensor, group: Group, use: Use) -> Tensor:
    """Values of a module's features, summed over the block of each channel."""
    mine = features[use.offset : use.offset + group.size * use.block]
    return mine.view(group.size, use.block).sum(1)
