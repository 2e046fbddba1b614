"""Three ways to push weight noise through a linear operation, with the same marginal law of every output element.

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
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from .bayes import BayesLayer


def local(layer: BayesLayer, x: Tensor, *extra: Any, **named: Any) -> Tensor:
    """Noise on the outputs: f(x, mu) + sqrt(f(x^2, sigma^2)) * eps."""
    mean = layer.compute(x, layer.mean("weight"), layer.mean("bias"), *extra, **named)
    with _full_precision(x):
        squared = x if layer.takes_indices else _Square.apply(_at_least_fp32(x))
        variance = layer.compute(squared, layer.variance("weight"), layer.variance("bias"), *extra, **named)
        return _Perturb.apply(mean, variance, torch.randn_like(variance))[0]


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


class _Perturb(torch.autograd.Function):
    """mean + sqrt(variance) * eps; all it remembers is eps / sqrt(variance), twice the slope in the variance.

    Where the variance is zero (or a fast convolution rounds it below) the noise and its gradient are zero, without an
    epsilon that would drown a small sigma. Written out because the same from torch's parts passes over memory twice as
    often, and these tensors are as large as the layer's output.
    """

    @staticmethod
    def forward(mean: Tensor, variance: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        scaled = variance.rsqrt().mul_(noise).nan_to_num_(0.0, 0.0, 0.0)
        return torch.addcmul(mean, variance, scaled).to(mean.dtype), scaled

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.set_materialize_grads(False)  # no tensor of zeros for what has no gradient

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, Tensor | None, None]:
        (scaled,) = ctx.saved_tensors
        return grad, None if grad is None else (grad * scaled).mul_(0.5), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        """All three batched alike, which arithmetic in place needs."""
        pairs = zip(tensors, in_dims, strict=True)
        alike = [t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0) for t, d in pairs]
        return _Perturb.apply(*alike), (0, 0)


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
