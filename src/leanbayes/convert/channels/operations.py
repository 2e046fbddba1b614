"""The rules of operations for channels.

Functions that modules share (`elementwise`, `spatial`, `flatten`, ...) take their options as arguments; the rules below
them read those options from a call.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ...layers.contract import option
from .flow import Count, Flow, Layout, Opaque, Part, Plain, Sizes
from .rules import PLAIN_ATTRIBUTES, Call, not_followed, operation_rule

POINTWISE = """
relu relu6 leaky_relu rrelu elu selu celu gelu silu mish sigmoid tanh softplus softsign logsigmoid hardtanh hardswish
hardsigmoid hardshrink softshrink tanhshrink threshold dropout dropout1d dropout2d dropout3d feature_dropout
alpha_dropout feature_alpha_dropout abs neg pos exp expm1 log log1p log2 log10 sqrt rsqrt square pow reciprocal sign
sin cos erf floor ceil round clamp clamp_min clamp_max clip nan_to_num contiguous clone detach alias to float double
half bfloat16 type type_as cpu cuda zeros_like ones_like rand_like randn_like empty_like full_like bernoulli add sub
subtract mul multiply div divide truediv floordiv mod maximum minimum fmax fmin where lerp addcmul addcdiv eq ne lt le
gt ge logical_not expand_as
"""
POOLS = ("max", "avg", "adaptive_max", "adaptive_avg", "lp")


@operation_rule(POINTWISE, any_arguments=True)
def elementwise(flow: Flow, call: Call) -> Any:
    """Ties the channels of all operands; an operand without a channel dimension, or of size 1, is broadcast."""
    layouts = [value for value in call.values if isinstance(value, Layout)]
    if not layouts or any(isinstance(value, (Sizes, Count)) for value in call.values):
        return not_followed(flow, call)  # computes with the number of channels
    base = max(layouts, key=lambda layout: layout.features)
    for other in layouts:
        if other.dim != base.dim:
            return not_followed(flow, call)
        if other.features == 1 != base.features:
            flow.fix(other, "is broadcast over other channels")
        else:
            flow.tie(base, other, f"is paired by {call.step.name} with channels laid out differently")
    for value in call.values:
        if isinstance(value, Opaque) and not _broadcast(value.shape, base.dim):
            flow.fix(base, value.reason)
    ndims = [layout.ndim for layout in layouts]
    return replace(base, ndim=None if None in ndims else max(ndims), shape=None)  # type: ignore[type-var]


def _broadcast(shape: tuple[int, ...] | None, dim: int) -> bool:
    """Whether a tensor has no dimension dim, or one of size 1."""
    return shape is not None and (len(shape) < -dim or shape[dim] == 1)


def softmax(flow: Flow, call: Call, dim: Any) -> Any:
    """Couples the channels if it normalises across them."""
    if not isinstance(dim, int) or (dim >= 0 and call.x.ndim is None):
        return not_followed(flow, call)
    if call.x.is_dim(dim):
        flow.fix(call.x, "is normalised across channels by softmax")
    return call.x


def spatial(flow: Flow, call: Call, dims: int) -> Any:
    """Works on the last ``dims`` dimensions, on every channel alike."""
    indices = call.kwargs.get("return_indices", option(call.module, "return_indices") or False)
    return call.x if call.x.dim < -dims and not indices else not_followed(flow, call)


@operation_rule(
    "interpolate upsample upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d "
    "upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d"
)
def interpolate(flow: Flow, call: Call) -> Any:
    """Works on the dimensions after dimension 1."""
    return spatial(flow, call, -call.x.dim - 1 if call.x.ndim is None else call.x.ndim - 2)


def flatten(flow: Flow, call: Call, start: int, end: int) -> Any:
    """Merges dimensions: channels merged with later dimensions become blocks of features."""
    x = call.x
    if x.ndim is None:
        return not_followed(flow, call)
    channel, start, end = x.dim + x.ndim, start % x.ndim, end % x.ndim
    if start < channel <= end:
        return not_followed(flow, call)
    gone = end - start
    after = x.at(channel - gone if channel > end else channel, x.ndim - gone)
    if channel != start or start == end:
        return after
    if x.shape is not None:
        return after.times(math.prod(x.shape[start + 1 : end + 1]))
    return after.times(0) if x.even else not_followed(flow, call)


@operation_rule("softmax log_softmax softmin")
def _softmax(flow: Flow, call: Call) -> Any:
    return softmax(flow, call, call.get(1, "dim"))


@operation_rule(" ".join(f"{kind}_pool{n}d" for kind in POOLS for n in (1, 2, 3)))
def _pool(flow: Flow, call: Call) -> Any:
    return spatial(flow, call, int(call.step.name[-2]))


@operation_rule("pad")
def _pad(flow: Flow, call: Call) -> Any:
    pads = call.get(1, "pad")
    return spatial(flow, call, len(pads) // 2) if isinstance(pads, tuple) else not_followed(flow, call)


@operation_rule("flatten")
def _flatten(flow: Flow, call: Call) -> Any:
    start, end = call.get(1, "start_dim", 0), call.get(2, "end_dim", -1)
    known = isinstance(start, int) and isinstance(end, int)
    return flatten(flow, call, start, end) if known else not_followed(flow, call)


@operation_rule("cat concat concatenate", any_arguments=True)
def _cat(flow: Flow, call: Call) -> Any:
    """Concatenates channels along their dimension; along another one the channels stay the same."""
    tensors, dim = call.get(0, "tensors"), call.get(1, "dim axis", 0)
    like = next((value for value in tensors if isinstance(value, Layout)), None) if isinstance(tensors, tuple) else None
    if like is None or not isinstance(dim, int) or (dim >= 0 and like.ndim is None):
        return not_followed(flow, call)
    if not like.is_dim(dim):
        return elementwise(flow, call)
    parts: list[Part] = []
    for value in tensors:
        if isinstance(value, Opaque) and value.shape is not None:
            value = flow.read(value, like.dim, value.shape[like.dim])
        if not isinstance(value, Layout) or value.dim != like.dim or not value.features:
            return not_followed(flow, call)
        parts += value.parts
    return replace(like, parts=tuple(parts), shape=None)


@operation_rule("mean sum amax amin logsumexp")
def _reduce(flow: Flow, call: Call) -> Any:
    """Reduces dimensions other than that of the channels."""
    x, dims, keep = call.x, call.get(1, "dim axis"), call.get(2, "keepdim", False)
    dims = dims if isinstance(dims, tuple) else (dims,)
    if x.ndim is None or not dims or any(not isinstance(d, int) or x.is_dim(d) for d in dims):
        return not_followed(flow, call)
    behind = sum(d % x.ndim > x.dim + x.ndim for d in dims)
    return x if keep else replace(x, dim=x.dim + behind, ndim=x.ndim - len(dims), shape=None)


@operation_rule("squeeze")
def _squeeze(flow: Flow, call: Call) -> Any:
    x, dim = call.x, call.get(1, "dim")
    if not isinstance(dim, int) or x.shape is None or x.is_dim(dim):
        return not_followed(flow, call)
    return x if x.shape[dim] != 1 else getitem(flow, call, _everything_but(dim % x.ndim, 0))


@operation_rule("unsqueeze")
def _unsqueeze(flow: Flow, call: Call) -> Any:
    x, dim = call.x, call.get(1, "dim")
    if not isinstance(dim, int) or x.ndim is None:
        return not_followed(flow, call)
    return getitem(flow, call, _everything_but(dim % (x.ndim + 1), None))


def _everything_but(dim: int, entry: int | None) -> tuple[Any, ...]:
    return (*(slice(None),) * dim, entry)


@operation_rule("getitem", any_arguments=True)
def _getitem(flow: Flow, call: Call) -> Any:
    if isinstance(call.x, Sizes):
        return _size(flow, call.x.of, call.args[1])
    if not isinstance(call.x, Layout) or any(isinstance(value, (Sizes, Count)) for value in call.values):
        return not_followed(flow, call)
    return getitem(flow, call, call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],))


def getitem(flow: Flow, call: Call, index: tuple[Any, ...]) -> Any:
    """Takes slices, single entries and new axes, if all channels are taken."""
    x = call.x
    if x.ndim is None or any(i is not None and i is not ... and not isinstance(i, (int, slice)) for i in index):
        return not_followed(flow, call)
    here = index.index(...) if ... in index else len(index)
    rest = x.ndim - sum(i is not None and i is not ... for i in index)
    index = (*index[:here], *(slice(None),) * rest, *index[here + 1 :])
    dims = iter(range(x.ndim))
    taken = [(None if i is None else next(dims), i) for i in index]
    left = [dim for dim, i in taken if not isinstance(i, int)]
    channel = x.dim + x.ndim
    if (channel, slice(None)) not in taken:
        return not_followed(flow, call)
    return x.at(left.index(channel), len(left))


@operation_rule("permute transpose swapaxes swapdims")
def _permute(flow: Flow, call: Call) -> Any:
    x, ndim = call.x, call.x.ndim
    dims = call.kwargs.get("dims", call.args[1:])
    dims = dims[0] if len(dims) == 1 and isinstance(dims[0], tuple) else dims
    if ndim is None or not all(isinstance(d, int) for d in dims):
        return not_followed(flow, call)
    order = list(range(ndim))
    if call.step.name == "permute" and len(dims) == ndim:
        order = [d % ndim for d in dims]
    elif call.step.name != "permute" and len(dims) == 2:
        a, b = (d % ndim for d in dims)
        order[a], order[b] = b, a
    else:
        return not_followed(flow, call)
    return x.at(order.index(x.dim + ndim), ndim)


@operation_rule("getattr")
def _getattr(flow: Flow, call: Call) -> Any:
    if call.args[1] == "shape":
        return Sizes(call.x)
    if call.args[1] in PLAIN_ATTRIBUTES:
        return Plain()
    return call.x if call.args[1] == "data" else not_followed(flow, call)


@operation_rule("size")
def _size_method(flow: Flow, call: Call) -> Any:
    dim = call.get(1, "dim")
    return Sizes(call.x) if dim is None else _size(flow, call.x, dim)


@operation_rule("dim ndimension is_floating_point get_device")
def _plain(flow: Flow, call: Call) -> Plain:
    return Plain()


def _size(flow: Flow, x: Layout, index: Any) -> Any:
    """An entry or a slice of a shape: a plain number unless it is the number of channels."""
    if index == 0 and not x.is_dim(0):
        return Plain(is_batch_size=True)
    if isinstance(index, int) and (index < 0 or x.ndim is not None):
        return Count(x) if x.is_dim(index) else Plain()
    known = isinstance(index, slice) and not any(isinstance(i, Plain) for i in (index.start, index.stop, index.step))
    if known and x.ndim is not None and x.dim + x.ndim not in range(x.ndim)[index]:
        return Plain()
    return flow.opaque("has its number of channels used as a number", [x])


@operation_rule("view reshape", any_arguments=True)
def _view(flow: Flow, call: Call) -> Any:
    """Follows channels that stay a dimension of their own or merge with later dimensions."""
    x, sizes = call.x, call.kwargs.get("shape", call.args[1:])
    sizes = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple) else sizes
    after = call.step.shape
    if not isinstance(x, Layout) or any(isinstance(size, Sizes) for size in sizes):
        return not_followed(flow, call)
    if x.shape is None or after is None:  # without shapes only x.view(n, -1) is certain
        flat = sizes == (Plain(is_batch_size=True), -1)
        return flatten(flow, call, 1, -1) if flat and x.ndim is not None and x.is_dim(1) else not_followed(flow, call)
    place = _place(x.shape, after, x.dim + len(x.shape))
    if place is None or len(sizes) != len(after):
        return not_followed(flow, call)
    dim, block = place
    size = sizes[dim]
    if any(isinstance(other, Count) for other in (*sizes[:dim], *sizes[dim + 1 :])):
        return not_followed(flow, call)
    if isinstance(size, Count) and block == 1:
        flow.tie(x, size.of, f"is reshaped by {call.step.name} to the number of other channels")
    elif size != -1:
        return not_followed(flow, call, "is reshaped to a constant number of features (write -1, or flatten)")
    return x.at(dim, len(after)).times(block)


def _place(before: tuple[int, ...], after: tuple[int, ...], channel: int) -> tuple[int, int] | None:
    """The channel dimension after a reshape, and how many consecutive features a channel becomes; None if unknown."""
    for dim in range(min(channel, 1), len(after)):  # not the batch dimension, though a batch of one would fit
        if math.prod(after[:dim]) != math.prod(before[:channel]):
            continue
        for end in range(channel + 1, len(before) + 1):
            whole = math.prod(before[channel:end])
            if after[dim] == whole and math.prod(after[dim + 1 :]) == math.prod(before[end:]):
                return dim, whole // before[channel]
    return None
