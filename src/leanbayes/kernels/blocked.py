"""A batch of activations that stays in blocks between sparse layers, whatever code runs in between.

`Blocked` looks like the tensor (batch, channels, *size) it stands for. Operations it knows (rectifiers, sums, products,
batch norm, pooling) run on the blocks; for any other it becomes an ordinary tensor first. So a user's own forward()
goes on as it is, and the layout is converted at the edges of a sparse region only. What comes from a sparse operation
is a `Unit` until someone needs the numbers, so that norm, sum and rectifier behind it are one pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .geometry import MAX_STRIDE, Geometry
from .layout import block, unblock
from .norm import Norm, Normalise, moments
from .pooling import MaxPool
from .unit import Unit


class Blocked(torch.Tensor):
    """See the module; ``blocks`` is (blocks, positions, channels, lanes).

    A shape (batch, features) with several positions is an image that was flattened.
    """

    held: Tensor | Unit

    @staticmethod
    def __new__(cls, held: Tensor | Unit, shape: tuple[int, ...]) -> Blocked:
        like = held.y if isinstance(held, Unit) else held
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, shape, dtype=like.dtype, device=like.device, requires_grad=False
        )
        made.held = held
        return made  # type: ignore[no-any-return]

    def __init__(self, held: Tensor | Unit, shape: tuple[int, ...]) -> None:
        super().__init__()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        # below autograd: what arrives here went around __torch_function__, and would lose its gradient unnoticed
        raise NotImplementedError(f"{func} reached blocked activations by a way that torch functions do not take")

    @property
    def blocks(self) -> Tensor:
        """The numbers, with their history."""
        if isinstance(self.held, Unit):
            self.held = self.held.value()
        return self.held

    @property
    def unit(self) -> Unit | None:
        """The operation that this is the output of, where nobody has needed the numbers yet."""
        return self.held if isinstance(self.held, Unit) else None

    @property
    def channels(self) -> int:
        """Of the blocks."""
        return int((self.held.y if isinstance(self.held, Unit) else self.held).shape[2])

    @property
    def flattened(self) -> bool:
        """Whether this is an image in one row of features."""
        return self.dim() == 2 and self.shape[1] != self.channels

    def plain(self) -> Tensor:
        """The ordinary tensor."""
        blocks = self.blocks
        return unblock(blocks, [self.shape[0], self.channels, blocks.shape[1]]).view(self.shape)

    def with_blocks(self, held: Tensor | Unit, size: tuple[int, ...] | None = None) -> Blocked:
        """Another activation of the same batch; without a size of the same shape but for its channels."""
        if size is None and self.flattened:
            return Blocked(held, tuple(self.shape))
        channels = (held.y if isinstance(held, Unit) else held).shape[2]
        return Blocked(held, (self.shape[0], channels, *(self.shape[2:] if size is None else size)))

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
        x.held = blocks
        return x

    return rule


_KNOWN.update(
    {f: _elementwise(torch.abs) for f in (torch.abs, torch.Tensor.abs)}
    | {f: _elementwise(torch.sigmoid) for f in (torch.sigmoid, torch.Tensor.sigmoid)}
    | {f: _elementwise(torch.tanh) for f in (torch.tanh, torch.Tensor.tanh)}
    | {f: _elementwise(f) for f in (F.gelu, F.silu, F.elu, F.leaky_relu, F.softplus, F.hardtanh, F.relu6)}
)


@_known(F.relu, torch.relu, torch.Tensor.relu)
def _relu(x: Any, inplace: bool = False) -> Any:
    done = x.with_blocks(torch.relu(x.blocks) if x.unit is None else x.unit.rectify())
    return _written(x, done) if inplace else done


@_known(torch.relu_, F.relu_, torch.Tensor.relu_)
def _relu_(x: Any) -> Any:
    return _relu(x, inplace=True)


@_known(torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__)
def _add(x: Any, other: Any, *, alpha: float = 1) -> Any:
    if alpha == 1 and isinstance(other, Blocked) and isinstance(x, Blocked) and x.shape == other.shape:
        for one, another in ((x, other), (other, x)):
            if one.unit is not None and one is not another and (sum := one.unit.plus(another.blocks)) is not None:
                return one.with_blocks(sum)
    pair = _pair(x, other)
    return NotImplemented if pair is None else pair[0].with_blocks(torch.add(pair[0].blocks, pair[1], alpha=alpha))


@_known(torch.Tensor.__iadd__, torch.Tensor.add_)
def _add_(x: Any, other: Any, *, alpha: float = 1) -> Any:
    if not isinstance(x, Blocked):
        return NotImplemented
    done = _add(x, other, alpha=alpha)
    return done if done is NotImplemented else _written(x, done)


def _written(x: Blocked, done: Blocked) -> Blocked:
    x.held = done.held
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
    if isinstance(other, Blocked) and other.flattened != x.flattened:
        return None
    if isinstance(other, Tensor) and other.shape == x.shape and other.dtype == x.dtype and not x.flattened:
        return x, blocked(other).blocks
    return None


@_known(F.batch_norm)
def _batch_norm(
    x: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    if not isinstance(x, Blocked) or any(isinstance(t, Blocked) for t in (running_mean, running_var, weight, bias)):
        return NotImplemented
    if x.flattened:
        return NotImplemented
    batch = x.shape[0]
    count = batch * x.shape[2:].numel()
    if not training:
        mean, variance = (t.detach().to(x.dtype, copy=True) for t in (running_mean, running_var))
        norm = Norm(weight, bias, mean, variance, float(eps), own=False)
    elif count < 2:
        return NotImplemented  # torch's own error is the right one
    else:
        unit = x.unit
        numbers = unit.y if unit is not None and unit.plain else x.blocks
        norm = Norm(weight, bias, *moments(numbers, batch), float(eps), own=True)
        if running_mean is not None:
            with torch.no_grad():
                running_mean.lerp_(norm.mean.to(running_mean), momentum)
                running_var.lerp_((norm.variance * (count / (count - 1))).to(running_var), momentum)
    unit = None if x.unit is None else x.unit.normed(norm)
    return x.with_blocks(Normalise.apply(x.blocks, weight, bias, norm, batch, False) if unit is None else unit)


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


_KNOWN.update({f: _pooled(f) for f in (F.avg_pool2d, F.adaptive_avg_pool2d)})
_other_max_pool = _pooled(F.max_pool2d)


@_known(F.max_pool2d)
def _max_pool(
    x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # fmt: skip
    if not isinstance(x, Blocked) or x.dim() != 4 or return_indices:
        return NotImplemented
    kernel, step, pad = (_both(v) for v in (kernel_size, kernel_size if stride in (None, []) else stride, padding))
    made = Geometry(x.channels, x.channels, 1, kernel, step, pad, (x.shape[2], x.shape[3]))
    simple = not ceil_mode and _both(dilation) == (1, 1) and max(step) <= MAX_STRIDE and kernel[0] * kernel[1] < 128
    if not simple or any(2 * p > k for p, k in zip(pad, kernel, strict=True)) or min(made.out_size) < 1:
        return _other_max_pool(x, kernel_size, stride, padding, dilation, ceil_mode)
    # a rectifier in front is the same as one behind, where there is less to do
    before = None if x.unit is None else x.unit.before_rectifier()
    blocks = x.blocks if before is None else before.value()
    return x.with_blocks(MaxPool.apply(blocks, made, before is not None), made.out_size)


def _both(value: Any) -> tuple[int, int]:
    """A number for both sides, or one for each."""
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


@_known(torch.flatten, torch.Tensor.flatten)
def _flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """(batch, channels, *size) to (batch, features) changes nothing in the blocks."""
    if isinstance(x, Blocked) and x.dim() > 2 and (start_dim, end_dim) == (1, -1):
        return Blocked(x.blocks, (x.shape[0], x.shape[1:].numel()))
    return NotImplemented


@_known(torch.Tensor.view, torch.Tensor.reshape, torch.reshape)
def _view(x: Any, *shape: Any, **kwargs: Any) -> Any:
    sides = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    if isinstance(x, Blocked) and sides in ((x.shape[0], -1), (x.shape[0], x.shape[1:].numel())) and not kwargs:
        return _flatten(x, 1)
    return NotImplemented


@_known(F.dropout)
def _dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return x.with_blocks(F.dropout(x.blocks, p, training)) if isinstance(x, Blocked) else NotImplemented
