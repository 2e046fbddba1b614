"""Rules of Bayesian layers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ...kernels.blocked import Blocked
from ...layers import sparse
from ...layers.bayes import BayesLayer, FixedLayer
from ...posteriors import Gaussian
from ...posteriors.sparse import Sparse
from .law import Moments
from .linear import Filter, Weight, weighted
from .rules import NoRule, module_rule


@module_rule(BayesLayer, FixedLayer)
def _bayes_layer(layer: BayesLayer, x: Moments | Tensor, *extra: Any, **named: Any) -> Moments | Tensor:
    """Independent Gaussian weights, dense or sparse; an Embedding's rows are read off."""
    fixed = isinstance(layer, FixedLayer)
    if not fixed and not all(q.gaussian for q in layer.posteriors.values()):
        raise NoRule("its weights are not independent Gaussians")
    mean, bias = layer.mean("weight"), layer.mean("bias")
    assert mean is not None
    if layer.takes_indices:
        variance = layer.compute(x, layer.variance("weight"), None, *extra, **named)  # type: ignore[arg-type]
        return Moments(layer.compute(x, mean, None, *extra, **named), variance)  # type: ignore[arg-type]
    q, example = layer.posterior("weight"), x if isinstance(x, Tensor) else x.mean
    rho = q.rho if type(q) is Gaussian and q.keep is None and q.rho.dtype == torch.float32 else None
    spread = None if fixed or rho is not None else layer.variance("weight")
    weight = Weight(mean, spread, bias, None if fixed else layer.variance("bias"), rho)
    if isinstance(x, Tensor) and not weight.is_random and weight.bias_variance is None:
        return layer.compute(x, mean, bias, *extra, **named)
    conv = filter_of(layer.shell, mean)
    if conv is None and isinstance(q, Sparse) and sparse.suitable(layer, example):
        return weighted(partial(_at_nonzeros, layer, q), x, replace(weight, joins=False), conv)
    return weighted(lambda t, w, b: layer.compute(t, w, b, *extra, **named), x, weight, conv)


def _at_nonzeros(layer: BayesLayer, q: Sparse, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The operation by the kernels, with a weight that is zero elsewhere."""
    out = sparse.at_nonzeros(layer, x, weight.flatten()[q.index.long()], bias)
    return out.plain() if isinstance(out, Blocked) else out


def filter_of(shell: nn.Module, weight: Tensor) -> Filter | None:
    """How a convolution looks at its input; None for other layers."""
    if not isinstance(shell, _ConvNd) or shell.transposed:
        return None
    return Filter.of(weight.shape[2:], shell.stride, shell.padding, shell.dilation, shell.groups)
