"""Folding BatchNorm into the convolution or Linear before it, with the same outputs in evaluation mode.

w' = w gamma / sqrt(var + eps) by output channel, b' = (b - mean) gamma / sqrt(var + eps) + beta.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import ConversionError
from .trace import trace

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def fold_batchnorm_(model: nn.Module, example_input: Any = None) -> dict[str, str]:
    """Fold the BatchNorms of a plain model into the layers before them, in place; returns layer by norm.

    Folds norms with running statistics whose only input is a Linear or a convolution with no other output, and puts an
    `nn.Identity` in their place. Transposed convolutions, layers that are called twice or share their weight, and
    Bayesian or sparse layers keep their norm. The model is followed as by `channel_graph`.

    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()).eval()
    >>> x = torch.randn(2, 1, 8, 8)
    >>> before = model(x)
    >>> fold_batchnorm_(model), torch.allclose(model(x), before, atol=1e-6)
    ({'1': '0'}, True)
    """
    steps = {step.node: step for step in trace(model, example_input)}
    calls = Counter(step.name for step in steps.values() if step.kind == "module")
    owners = Counter(id(p) for m in model.modules() for p in m._parameters.values() if p is not None)
    found: dict[str, str] = {}
    for step in steps.values():
        before = steps.get(step.args[0]) if step.args else None
        if step.kind != "module" or before is None or before.kind != "module" or len(before.node.users) != 1:
            continue
        norm: Any = model.get_submodule(step.name)
        layer: Any = model.get_submodule(before.name)
        if not can_fold(layer, norm) or len(layer.weight) != norm.num_features:
            continue
        if calls[step.name] > 1 or calls[before.name] > 1 or owners[id(layer.weight)] > 1:
            continue
        if isinstance(layer, nn.Linear) and before.shape is not None and len(before.shape) != 2:
            continue  # the norm sees another dimension
        _fold(layer, norm)
        replace_(model, before.name, step.name)
        found[step.name] = before.name
    return found


def can_fold(layer: nn.Module, norm: nn.Module) -> bool:
    """Whether they are a plain Linear or convolution and a norm with running statistics."""
    return type(layer) in _LAYERS and isinstance(norm, _BatchNorm) and norm.running_mean is not None


def folded(model: nn.Module) -> dict[str, str]:
    """The names of norms that were folded, with the names of their layers."""
    names = {id(module): name for name, module in model.named_modules()}
    gone = ((m.__dict__.get("folded"), name) for name, m in model.named_modules())
    return {names[id(norm)]: name for norm, name in gone if id(norm) in names}


def replace_(model: nn.Module, layer: str, norm: str) -> None:
    """Give a layer a bias and remove its norm, whatever their values."""
    found, gone = (model.get_submodule(name) for name in (layer, norm))
    if not can_fold(found, gone):
        raise ConversionError(f"{norm!r}: expected a BatchNorm behind {layer!r}, received {type(gone).__name__}")
    if found._parameters["bias"] is None:  # a new dictionary: whoever holds the old one can go back
        empty = nn.Parameter(found.weight.new_zeros(len(found.weight)))  # type: ignore[operator, arg-type]
        found._parameters = {**found._parameters, "bias": empty}
    parent, _, name = norm.rpartition(".")
    # the module itself, since names change if the model becomes a part of a larger one
    found.__dict__["folded"] = model.get_submodule(parent)._modules[name] = nn.Identity()


@torch.no_grad()
def _fold(layer: Any, norm: Any) -> None:
    scale = (norm.running_var + norm.eps).rsqrt()
    if norm.affine:
        scale = scale * norm.weight
    bias = -norm.running_mean if layer.bias is None else layer.bias - norm.running_mean
    layer.weight.mul_(scale.reshape(-1, *(1,) * (layer.weight.ndim - 1)))
    layer.bias = nn.Parameter(bias * scale + (norm.bias if norm.affine else 0.0), layer.weight.requires_grad)
