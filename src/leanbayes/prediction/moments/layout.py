"""Rules of functions that move numbers about: mean and variance move alike."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .law import Moments
from .rules import NoRule, rule
from .waiting import share_of


def _moved(name: str) -> Any:
    """The rule of a method of Tensor that moves the numbers of one tensor."""

    def apply(x: Moments, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, Moments) or any(isinstance(a, Moments) for a in (*args, *kwargs.values())):
            raise NoRule("the places are random")
        mean, variance = (getattr(part, name)(*args, **kwargs) for part in (x.mean, x.variance))
        if isinstance(mean, Tensor):
            same = mean.shape[:2] == x.mean.shape[:2] and mean.numel() == mean.shape[:2].numel()
            return Moments(mean, variance, across=x.across if same and name in _KEEP else None)
        return tuple(map(Moments, mean, variance))

    return apply


_NAMES = (
    "view", "reshape", "flatten", "unflatten", "ravel", "permute", "transpose", "t", "movedim", "moveaxis", "swapaxes",
    "swapdims", "squeeze", "unsqueeze", "expand", "repeat", "repeat_interleave", "tile", "narrow", "select",
    "index_select", "gather", "chunk", "split", "unbind", "roll", "flip", "rot90", "diagonal", "take_along_dim",
)  # fmt: skip
_KEEP = ("view", "reshape", "flatten", "squeeze")
"""Of these, what keeps (batch, channels, 1, ...) in order."""
for _name in _NAMES:
    rule(_name)(_moved(_name))


@rule("clone", "contiguous", "detach", "alias", "data")
def _same(x: Moments, **options: Any) -> Moments:
    return Moments(x.mean.clone(), x.variance.clone(), x.share, x.covariance, x.across)


@rule("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")
def _no_dropout(x: Moments, p: float = 0.5, training: bool = True) -> Moments:
    """The identity in evaluation mode."""
    if training and p > 0:
        raise NoRule("it is dropout that the model applies by itself; lb.Dropout has a rule")
    return x


@rule("to", "type_as")
def _to(x: Moments, *args: Any, **kwargs: Any) -> Moments:
    like = next((a for a in args if isinstance(a, Moments)), None)
    if like is not None:
        args = (like.mean,)
    made = x.mean.to(*args, **kwargs)
    if not made.is_floating_point():
        raise NoRule("it rounds to whole numbers")
    return Moments(made, x.variance.to(made), None if x.share is None else x.share.to(made), x.covariance)


def _cast(dtype: torch.dtype) -> Any:
    return lambda x: _to(x, dtype)


rule("float")(_cast(torch.float))
rule("double")(_cast(torch.double))
rule("half")(_cast(torch.half))
rule("bfloat16")(_cast(torch.bfloat16))


@rule("T", "mT")
def _transposed(x: Moments) -> Moments:
    return x.map(lambda part: part.mT if part.ndim > 1 else part)


@rule("view_as", "expand_as", "reshape_as")
def _as_other(x: Moments, other: Any) -> Moments:
    shape = other.mean.shape if isinstance(other, Moments) else other.shape
    return x.map(lambda part: part.reshape(shape) if part.numel() == shape.numel() else part.expand(shape))


@rule("getitem")
def _item(x: Moments, index: Any) -> Moments:
    if not isinstance(x, Moments) or isinstance(index, Moments):
        raise NoRule("the places are random")
    return x.map(lambda part: part[index])


@rule("setitem")
def _set_item(x: Moments, index: Any, value: Any) -> Moments:
    mean, variance = x.mean.clone(), x.variance.clone()
    mean[index] = value.mean if isinstance(value, Moments) else value
    variance[index] = value.variance if isinstance(value, Moments) else 0.0
    return Moments(mean, variance)


def _side_by_side(function: Any) -> Any:
    def apply(tensors: Any, dim: int = 0) -> Moments:
        parts = [x if isinstance(x, Moments) else Moments.fixed(x) for x in tensors]
        mean, variance = (function([vars(p)[name] for p in parts], dim) for name in ("mean", "variance"))
        if function is not torch.cat or dim != 1 or mean.ndim < 3 or all(p.share is None for p in parts):
            return Moments(mean, variance)
        return Moments(mean, variance, torch.cat([share_of(p) for p in parts], 2))

    return apply


rule("cat", "concat", "concatenate")(_side_by_side(torch.cat))
rule("stack")(_side_by_side(torch.stack))


@rule("pad")
def _pad(x: Moments, pad: Any, mode: str = "constant", value: float | None = None) -> Moments:
    outside = F.pad(x.mean, pad, mode, value) if mode == "constant" else F.pad(x.mean, pad, mode)
    keeps = len(pad) <= 2 * (x.mean.ndim - 2)  # channels stay channels
    return Moments(outside, F.pad(x.variance, pad, mode), x.share if keeps else None)


@rule("pixel_shuffle")
def _pixel_shuffle(x: Moments, upscale_factor: int) -> Moments:
    return x.map(lambda part: F.pixel_shuffle(part, upscale_factor))


@rule("pixel_unshuffle")
def _pixel_unshuffle(x: Moments, downscale_factor: int) -> Moments:
    return x.map(lambda part: F.pixel_unshuffle(part, downscale_factor))


@rule("channel_shuffle", "native_channel_shuffle")
def _channel_shuffle(x: Moments, groups: int) -> Moments:
    return x.map(lambda part: F.channel_shuffle(part, groups))
