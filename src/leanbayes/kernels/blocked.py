"""A batch of activations that stays in blocks between sparse layers, whatever code runs in between.

`Blocked` looks like the tensor (batch, channels, *size) it stands for. Operations it knows (rectifiers, sums, products,
batch norm, pooling) run on the blocks; for any other it becomes an ordinary tensor first. So a user's own forward()
goes on as it is, and the layout is converted at the edges of a sparse region only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .layout import block, unblock
from .norm import Normalise


class Blocked(torch.Tensor):
    """See the module; ``blocks`` is (blocks, positions, channels, lanes)."""

    blocks: Tensor

    @staticmethod
    def __new__(cls, blocks: Tensor, shape: tuple[int, ...]) -> Blocked:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, shape, dtype=blocks.dtype, device=blocks.device, requires_grad=False
        )
        made.blocks = blocks
        return made  # type: ignore[no-any-return]

    def __init__(self, blocks: Tensor, shape: tuple[int, ...]) -> None:
        super().__init__()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        # below autograd: what arrives here went around __torch_function__, and would lose its gradient unnoticed
        raise NotImplementedError(f"{func} reached blocked activations by a way that torch functions do not take")

    def plain(self) -> Tensor:
        """The ordinary tensor."""
        return unblock(self.blocks, list(self.shape))

    def with_blocks(self, blocks: Tensor, size: tuple[int, ...] | None = None) -> Blocked:
        """Another activation of the same batch; its channels are those of the blocks."""
        return Blocked(blocks, (self.shape[0], blocks.shape[2], *(self.shape[2:] if size is None else size)))

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Blocked(shape={tuple(self.shape)}, dtype={self.dtype})"

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _ABOUT:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func in _KNOWN:
            done = _KNOWN[func](*args, **kwargs)
            if done is not NotImplemented:
                return done
        args = torch.utils._pytree.tree_map(_unblocked, args)
        return func(*args, **torch.utils._pytree.tree_map(_unblocked, kwargs))


def blocked(x: Tensor) -> Blocked:
    """A tensor (batch, channels, *size) in blocks; one that is already comes back as it is.

    >>> from leanbayes.kernels.library import library
    >>> x = torch.randn(5, 3, 2, 2)
    >>> library() is None or bool((torch.relu(blocked(x)).plain() == torch.relu(x)).all())
    True
    """
    return x if isinstance(x, Blocked) else Blocked(block(x), tuple(x.shape))


def _unblocked(x: Any) -> Any:
    return x.plain() if isinstance(x, Blocked) else x


# what is asked about a tensor without looking at its numbers
_ABOUT: set[Any] = {
    getattr(torch.Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "requires_grad", "layout", "is_cuda", "is_sparse", "is_leaf")
} | {torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.is_floating_point, torch.Tensor.__len__}
_KNOWN: dict[Any, Callable[..., Any]] = {}


def _known(*functions: Any) -> Callable[[Any], Any]:
    def decorate(rule: Any) -> Any:
        _KNOWN.update(dict.fromkeys(functions, rule))
        return rule

    return decorate


def _elementwise(function: Callable[..., Tensor]) -> Callable[..., Any]:
    def rule(x: Any, *args: Any, inplace: bool = False, **kwargs: Any) -> Any:
        if not isinstance(x, Blocked) or any(isinstance(a, Tensor) for a in args):
            return NotImplemented
        blocks = function(x.blocks, *args, **kwargs)
        if not inplace:
            return x.with_blocks(blocks)
        x.blocks = blocks
        return x

    return rule


_KNOWN.update(
    {f: _elementwise(torch.relu) for f in (F.relu, torch.relu, torch.Tensor.relu)}
    | {f: _elementwise(torch.abs) for f in (torch.abs, torch.Tensor.abs)}
    | {f: _elementwise(torch.sigmoid) for f in (torch.sigmoid, torch.Tensor.sigmoid)}
    | {f: _elementwise(torch.tanh) for f in (torch.tanh, torch.Tensor.tanh)}
    | {f: _elementwise(f) for f in (F.gelu, F.silu, F.elu, F.leaky_relu, F.softplus, F.hardtanh, F.relu6)}
)


@_known(torch.relu_, F.relu_, torch.Tensor.relu_)
def _relu_(x: Any) -> Any:
    x.blocks = torch.relu(x.blocks)
    return x


@_known(torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__)
def _add(x: Any, other: Any, *, alpha: float = 1) -> Any:
    pair = _pair(x, other)
    return NotImplemented if pair is None else pair[0].with_blocks(torch.add(pair[0].blocks, pair[1], alpha=alpha))


@_known(torch.Tensor.__iadd__, torch.Tensor.add_)
def _add_(x: Any, other: Any, *, alpha: float = 1) -> Any:
    done = _add(x, other, alpha=alpha)
    if done is NotImplemented or not isinstance(x, Blocked):
        return NotImplemented
    x.blocks = done.blocks
    return x


@_known(torch.mul, torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__)
def _mul(x: Any, other: Any) -> Any:
    pair = _pair(x, other)
    return NotImplemented if pair is None else pair[0].with_blocks(pair[0].blocks * pair[1])


def _pair(x: Any, other: Any) -> tuple[Blocked, Any] | None:
    """The two as blocks, where that is simple: alike in shape, or one of them a number."""
    if not isinstance(x, Blocked):
        x, other = other, x
    if isinstance(other, (int, float)):
        return x, other
    if isinstance(other, Tensor) and other.shape == x.shape and other.dtype == x.dtype:
        return x, blocked(other).blocks
    return None


@_known(F.batch_norm)
def _batch_norm(
    x: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    if not isinstance(x, Blocked) or any(isinstance(t, Blocked) for t in (running_mean, running_var, weight, bias)):
        return NotImplemented
    if not training:
        scale = torch.rsqrt(running_var + eps) * (1 if weight is None else weight)
        level = (0 if bias is None else bias) - running_mean * scale
        return x.with_blocks(torch.addcmul(level[:, None], x.blocks, scale[:, None]))
    batch = x.shape[0]
    count = batch * x.blocks.shape[1]
    if count < 2:
        return NotImplemented  # torch's own error is the right one
    y, mean, variance = Normalise.apply(x.blocks, weight, bias, batch, eps, False)
    if running_mean is not None:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean), momentum)
            running_var.lerp_((variance * (count / (count - 1))).to(running_var), momentum)
    return x.with_blocks(y)


def _pooled(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """Pooling sees blocks as images in channels-last order, with channels x lanes for channels: no copy."""

    def rule(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, Blocked) or x.dim() != 4 or kwargs.pop("return_indices", False):
            return NotImplemented
        count, _, channels, lanes = x.blocks.shape
        images = x.blocks.view(count, *x.shape[2:], channels * lanes).permute(0, 3, 1, 2)
        out = function(images, *args, **kwargs)
        size = tuple(out.shape[2:])
        return x.with_blocks(out.permute(0, 2, 3, 1).reshape(count, size[0] * size[1], channels, lanes), size)

    return rule


_KNOWN.update({f: _pooled(f) for f in (F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d)})


@_known(torch.flatten, torch.Tensor.flatten)
def _flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """(batch, channels, 1, 1) to (batch, channels) changes nothing in the blocks."""
    if isinstance(x, Blocked) and (start_dim, end_dim) == (1, -1) and x.blocks.shape[1] == 1:
        return x.with_blocks(x.blocks, ())
    return NotImplemented


@_known(F.dropout)
def _dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return x.with_blocks(F.dropout(x.blocks, p, training)) if isinstance(x, Blocked) else NotImplemented
