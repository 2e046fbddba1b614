"""Gaussian noise on the outputs of a layer, mean + sqrt(variance) * eps: half of what local reparameterisation adds.

Drawing the noise takes torch as long as a convolution, and seven times as long in channels-last order. The compiled
kernel draws it inside the one pass that it makes over memory; elsewhere (other devices and precisions, compiled graphs,
vmap, no kernels) torch does the same in several passes. The two draw different numbers from one seed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels import library
from ..kernels.once import first_derivatives


def perturb(mean: Tensor, variance: Tensor) -> Tensor:
    """mean + sqrt(variance) * eps with standard normals eps, of the shape and dtype of the mean.

    Where the variance is zero (or a fast convolution rounds it below) the noise and its gradient are zero, without an
    epsilon that would drown a small sigma.

    >>> _ = torch.manual_seed(0)
    >>> noisy = perturb(torch.full((100_000,), 3.0), torch.full((100_000,), 4.0))
    >>> round(noisy.mean().item(), 1), round(noisy.std().item(), 1)
    (3.0, 2.0)
    """
    if _compiled(mean, variance):
        # torch's generator decides: a seed of the user's repeats a run
        seed = int(torch.randint(2**62, (), device="cpu"))
        return _Compiled.apply(mean, variance, seed)  # type: ignore[no-any-return]
    return _Perturb.apply(mean, variance, _normals_like(variance))[0]  # type: ignore[no-any-return]


def _compiled(mean: Tensor, variance: Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()
        and torch._C._functorch.maybe_current_level() is None  # type: ignore[attr-defined]
        and type(mean) is type(variance) is Tensor
        and mean.dtype == variance.dtype == torch.float32
        and mean.device.type == variance.device.type == "cpu"
        and mean.shape == variance.shape
        and mean.stride() == variance.stride()
        and mean.layout == variance.layout == torch.strided
        and not (mean.is_neg() or variance.is_neg())
        and _dense(mean)
        and library.library() is not None
    )


def _dense(x: Tensor) -> bool:
    """Whether the elements lie side by side, in whatever order."""
    return x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last))


def _normals_like(x: Tensor) -> Tensor:
    """torch.randn_like, which takes seven times as long for elements in channels-last order."""
    if x.is_contiguous() or not _dense(x):
        return torch.randn_like(x)
    return torch.randn_like(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


_INSTEAD = 'for second ones draw whole weights: with lb.using(estimator="weight")'


class _Compiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, seed: int) -> Tensor:
        out, slope = torch.empty_like(mean), torch.empty_like(mean)
        flat = [t.detach().as_strided((t.numel(),), (1,)) for t in (mean, variance, out, slope)]
        library.call("leanbayes_perturb", *flat, seed)
        ctx.save_for_backward(slope)
        return out

    @staticmethod
    @first_derivatives(_INSTEAD)
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (slope,) = ctx.saved_tensors
        return grad, grad * slope, None


class _Perturb(torch.autograd.Function):
    """All it remembers is eps / sqrt(variance), twice the slope in the variance.

    Written out because the same from torch's parts passes over memory twice as often, and these tensors are as large as
    the layer's output.
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
    @first_derivatives(_INSTEAD)
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
