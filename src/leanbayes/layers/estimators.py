"""Three estimators of the output of a linear operation with random weights; every output element has the same marginal.

For a weight with independent Gaussian elements N(mu, sigma^2) and an operation f that is linear in it:

| name | one pass computes | noise is shared |
| --- | --- | --- |
| local | f(x, mu) + sqrt(f(x^2, sigma^2)) * eps, eps per output element (Kingma et al., 2015) | by nothing |
| weight | f(x, mu + sigma * eps), eps per weight (Blundell et al., 2015) | by the whole batch |
| flipout | f(x, mu) + s_out * f(s_in * x, sigma * eps), random signs per datum (Wen et al., 2018) | up to signs |

Local reparameterisation has the least gradient variance; in a convolution it drops the covariance between positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .perturb import perturb

if TYPE_CHECKING:
    from .bayes import BayesLayer


def local(layer: BayesLayer, x: Tensor, *extra: Any, **named: Any) -> Tensor:
    """Noise on the outputs: f(x, mu) + sqrt(f(x^2, sigma^2)) * eps."""
    mean = layer.compute(x, layer.mean("weight"), layer.mean("bias"), *extra, **named)
    with _full_precision(x):
        squared = x if layer.takes_indices else _Square.apply(_at_least_fp32(x))
        variance = layer.compute(squared, layer.variance("weight"), layer.variance("bias"), *extra, **named)
        return perturb(mean, variance)


def weight(layer: BayesLayer, x: Tensor, *extra: Any, **named: Any) -> Tensor:
    """One whole draw of the weights for the whole batch."""
    return layer.compute(x, layer.draw("weight"), layer.draw("bias"), *extra, **named)


def flipout(layer: BayesLayer, x: Tensor, *extra: Any, **named: Any) -> Tensor:
    """One draw for the batch, decorrelated between data by random signs on its rows and columns."""
    mean = layer.compute(x, layer.mean("weight"), layer.mean("bias"), *extra, **named)
    deviation = layer.deviation("weight")
    flipped = x if layer.takes_indices else x * _signs(x, layer.operation.spatial)
    noise = layer.compute(flipped, deviation, layer.deviation("bias"), *extra, **named)
    return mean + noise * _signs(noise, max(layer.operation.spatial, 0))


ESTIMATORS: dict[str, Callable[..., Tensor]] = {"local": local, "weight": weight, "flipout": flipout}


def _signs(x: Tensor, spatial: int) -> Tensor:
    """Independent signs per datum and channel, constant over the last ``spatial`` dimensions."""
    shape = x.shape[: x.ndim - spatial] + (1,) * spatial
    return torch.randint(0, 2, shape, dtype=x.dtype, device=x.device) * 2 - 1  # not in place, which vmap would refuse


class _Square(torch.autograd.Function):
    """x^2, with a backward of two passes over memory where torch's own takes three."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return (grad * x).mul_(2)


def _at_least_fp32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _full_precision(x: Tensor) -> torch.autocast:
    # squares of small sigmas underflow in half precision: the variance path stays out of autocast
    return torch.autocast(x.device.type, enabled=False)
