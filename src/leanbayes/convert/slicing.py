"""Removing channels from a plain network: smaller weights and norm layers, the same outputs.

The channel graph (`leanbayes.convert.channels`) says which channels may be removed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from .. import checks
from ..errors import ConversionError
from ..layers.contract import option, original
from ..layers.operations import by_input
from ..posteriors.base import Posterior
from ..posteriors.sparse import Sparse, SparsePoint
from .channels import ChannelGraph, Group, Use

Keep = Mapping[str, Sequence[int]]
Cut = Callable[[Tensor], Tensor]
_PER_CHANNEL = ("num_features", "num_channels", "num_parameters")


def slice_(model: nn.Module, graph: ChannelGraph, keep: Keep) -> nn.Module:
    """Cut the channels of groups, except those to keep, out of a plain model, in place; returns the model.

    keep: sorted channels by the name of their group; other groups stay whole. All are checked before anything is cut.
    The outputs are those of the model with the same channels masked at their consumers.

    >>> from leanbayes.convert.channels import channel_graph
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> slice_(model, channel_graph(model), {"0": [1, 5, 6]})
    Sequential(
      (0): Linear(in_features=4, out_features=3, bias=True)
      (1): ReLU()
      (2): Linear(in_features=3, out_features=2, bias=True)
    )
    """
    for name, channels in keep.items():
        graph[name].check(channels)
    touched = {use.module for name in keep for use in _uses(graph[name])}
    modules = dict(model.named_modules())
    _check_tied(model, touched)
    done: set[int] = set()
    for name in sorted(touched):
        module = modules[name]
        if id(module) not in done:
            done.add(id(module))
            _slice_module(module, graph.inputs(name), graph.outputs(name), graph.carried(name), keep)
    return model


def _uses(group: Group) -> tuple[Use, ...]:
    return (*group.producers, *group.consumers, *group.through)


def _check_tied(model: nn.Module, touched: set[str]) -> None:
    """Refuse to cut a tensor that two modules share."""
    owners: dict[int, set[int]] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            owners.setdefault(id(parameter), set()).add(id(module))
    for name in touched:
        for key, parameter in model.get_submodule(name)._parameters.items():
            if parameter is not None and len(owners[id(parameter)]) > 1:
                raise ConversionError(
                    f"{name}.{key} is tied to another module's: its channels cannot be cut for one of them alone"
                )


Pairs = Sequence[tuple[Group, Use]]


def kept_features(pairs: Pairs, keep: Keep, size: int) -> list[int]:
    """The features of a module that are left when groups lose channels; features of no group stay."""
    gone: set[int] = set()
    for group, use in pairs:
        if group.name in keep:
            gone.update(use.features(sorted(set(range(group.size)) - set(keep[group.name]))))
    return [feature for feature in range(size) if feature not in gone]


def _slice_module(m: Any, into: Pairs, out: Pairs, carried: Pairs, keep: Keep) -> None:
    """Cut one module."""
    options: dict[str, int]
    cut: Cut
    if isinstance(kind := original(m), nn.Linear):
        rows, columns = kept_features(out, keep, m.out_features), kept_features(into, keep, m.in_features)
        cut, options = _rows_and_columns(rows, columns), {"in_features": len(columns), "out_features": len(rows)}
    elif isinstance(kind, nn.Embedding):
        rows = kept_features(out, keep, m.embedding_dim)
        cut, options = _rows_and_columns(range(m.num_embeddings), rows), {"embedding_dim": len(rows)}
    elif isinstance(kind, _ConvNd) and carried:  # depthwise: as many groups as inputs
        each = m.out_channels // m.groups
        rows = kept_features(carried, keep, m.out_channels)
        inputs = sorted({row // each for row in rows})
        first = inputs if m.transposed else rows
        cut = _rows_and_columns(first, None)
        options = {"in_channels": len(inputs), "groups": len(inputs), "out_channels": len(rows)}
    elif isinstance(kind, _ConvNd):
        rows, columns = kept_features(out, keep, m.out_channels), kept_features(into, keep, m.in_channels)
        cut = _of_conv(m.groups, m.transposed, m.in_channels, m.out_channels, rows, columns)
        options = {"in_channels": len(columns), "out_channels": len(rows)}
    else:
        rows, options = _per_channel(m, carried, keep)
        cut = _rows_and_columns(rows, None)
    _apply(m, cut, rows, options)


def _per_channel(m: Any, carried: Pairs, keep: Keep) -> tuple[list[int], dict[str, int]]:
    """Of norm layers and PReLU: the channels left, and the options that count them."""
    names = [name for name in _PER_CHANNEL if option(m, name) is not None]
    if not names:
        raise ConversionError(f"{type(m).__name__}: expected a module whose channels can be cut; keep them all")
    rows = kept_features(carried, keep, option(m, names[0]))
    options = dict.fromkeys(names, len(rows))
    if isinstance(m, nn.GroupNorm):
        options["num_groups"] = len(rows) * m.num_groups // m.num_channels
    return rows, options


@torch.no_grad()
def _apply(m: Any, cut: Cut, rows: Sequence[int], options: Mapping[str, int]) -> None:
    """Replace the tensors and sizes of a module by those of the kept part."""
    described = m
    if "posteriors" in m._modules:
        first: Cut = _rows_and_columns(rows, None)
        for name, q in m.posteriors.items():
            m.posteriors[name] = posterior_part(q, cut if name == "weight" else first)
        described = m.shell
    if m._parameters.get("weight") is not None:
        m.weight = nn.Parameter(_laid_out_as(m.weight, cut(m.weight)), m.weight.requires_grad)
    for name, value in options.items():
        if option(described, name) != value:
            # for `save` and `load`, which cuts a network of the whole size again
            m.__dict__["sliced"] = {**m.__dict__.get("sliced", {}), name: value}
        setattr(described, name, value)
    if m._parameters.get("bias") is not None:
        m.bias = nn.Parameter(m.bias[list(rows)], m.bias.requires_grad)
    for name, buffer in m._buffers.items():
        if buffer is not None and buffer.ndim:  # statistics; a count has no channels
            m._buffers[name] = buffer[list(rows)]


def sizes(model: nn.Module) -> dict[str, dict[str, int]]:
    """The present sizes of the modules that `slice_` has cut, by name."""
    found = ((name, m.__dict__.get("sliced")) for name, m in model.named_modules())
    return {name: dict(options) for name, options in found if options}


_SIZES = {
    nn.Linear: ("in_features", "out_features"),
    _ConvNd: ("in_channels", "out_channels", "groups"),
    nn.Embedding: ("embedding_dim",),
}


def resize_(module: Any, options: Mapping[str, int]) -> None:
    """Give a plain module the sizes of one that was cut, in place; its values become ones.

    >>> layer = nn.Linear(4, 3)
    >>> resize_(layer, {"in_features": 2})
    >>> layer, layer.weight.shape
    (Linear(in_features=2, out_features=3, bias=True), torch.Size([3, 2]))
    """
    known = next((names for kind, names in _SIZES.items() if isinstance(module, kind)), ())
    known = known or tuple(name for name in _PER_CHANNEL if option(module, name) is not None)
    known += ("num_groups",) * isinstance(module, nn.GroupNorm)
    for name, value in options.items():
        most = option(module, name) or 0 if name in known else 0
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ConversionError(
                f"{type(module).__name__}.{name}: expected a size of at most {most}, received {checks.short(value)}; "
                "build the network that was cut"
            )
    for name, value in options.items():
        setattr(module, name, value)
    module.__dict__["sliced"] = dict(options)
    weight, bias = _shapes(module, option(module, known[0]))
    shapes = {"weight": weight, "bias": bias}
    # new dictionaries, so that the old ones can be restored
    module._parameters = {
        name: None if p is None else nn.Parameter(p.new_ones(shapes[name]), p.requires_grad)
        for name, p in module._parameters.items()
    }
    module._buffers = {
        name: b.new_empty(bias) if b is not None and b.ndim else b for name, b in module._buffers.items()
    }


def _shapes(m: Any, channels: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of a module's weight and of its values per output channel; channels: of a norm layer or PReLU."""
    if isinstance(m, nn.Linear):
        return (m.out_features, m.in_features), (m.out_features,)
    if isinstance(m, nn.Embedding):
        return (m.num_embeddings, m.embedding_dim), ()
    if isinstance(m, _ConvNd):
        ends = (m.in_channels, m.out_channels) if m.transposed else (m.out_channels, m.in_channels)
        return (ends[0], ends[1] // m.groups, *m.kernel_size), (m.out_channels,)
    return (channels,), (channels,)


@torch.no_grad()
def scale_inputs_(module: nn.Module, scale: Tensor) -> None:
    """Multiply the weights of a Linear or convolution by a number for each of its inputs, (inputs,), in place.

    >>> layer = nn.Linear(2, 1)
    >>> layer.weight.data.fill_(1.0)
    tensor([[1., 1.]])
    >>> scale_inputs_(layer, torch.tensor([0.5, 2.0]))
    >>> layer.weight.data
    tensor([[0.5000, 2.0000]])
    """
    q: Any = module.posteriors["weight"] if "posteriors" in module._modules else None  # type: ignore[index]
    shape: Any = module.weight.shape if q is None else q.shape
    factors = by_input(original(module), scale, shape)
    if q is None:
        module.weight.mul_(factors)  # type: ignore[operator]
    else:
        q.loc.mul_(factors.reshape(-1)[q.index.long()])


def posterior_part(q: Posterior, cut: Cut) -> Posterior:
    """The posterior of a part of a weight, with all its parameters and its mask cut.

    >>> from leanbayes.posteriors import MultiplicativeGaussian
    >>> q = MultiplicativeGaussian.from_tensor(torch.ones(4, 3), granularity="neuron")
    >>> part = posterior_part(q, lambda t: t[:2, 1:])
    >>> part.shape, part.log_alpha.shape
    (torch.Size([2, 2]), torch.Size([2, 1]))
    """
    if isinstance(q, Sparse):
        return sparse_part(q, cut)
    part = copy.copy(q)
    part._parameters = {
        name: nn.Parameter(_cut_shared(p.detach(), q.shape, cut), p.requires_grad)
        for name, p in q._parameters.items()
        if p is not None
    }
    part._buffers = {name: None if b is None else cut(b.expand(q.shape)).clone() for name, b in q._buffers.items()}
    return part


def _cut_shared(values: Tensor, shape: torch.Size, cut: Cut) -> Tensor:
    """A part of values that broadcast to a shape; dimensions of size 1 keep it."""
    found = cut(values.expand(shape))
    for dim in range(-values.ndim, 0):
        if values.shape[dim] == 1:
            found = found.narrow(dim, 0, 1)
    return _laid_out_as(values, found)


def _laid_out_as(before: Tensor, after: Tensor) -> Tensor:
    """A copy of a tensor in channels-last order if ``before`` is."""
    last = before.ndim == 4 and not before.is_contiguous() and before.is_contiguous(memory_format=torch.channels_last)
    return after.clone(memory_format=torch.channels_last if last else torch.contiguous_format)


def sparse_part(q: Sparse, cut: Cut) -> SparsePoint:
    """The values of a sparse weight that a cut leaves.

    >>> q = SparsePoint.from_tensor(torch.tensor([[1.0, 0.0], [2.0, 3.0]]), count=3)
    >>> sparse_part(q, lambda t: t[:, 1:]).mean.detach()
    tensor([[0.],
            [3.]])
    """
    places = cut(torch.arange(1, q.shape.numel() + 1, device=q.device).view(q.shape))  # 0 is for nothing
    slots = torch.zeros(q.shape.numel() + 1, dtype=torch.long, device=q.device)
    slots[q.index.long() + 1] = torch.arange(1, len(q.index) + 1, device=q.device)
    left = slots[places.flatten()]
    index = left.nonzero().flatten()
    loc = nn.Parameter(q.active_mean().detach()[left[index] - 1], q.loc.requires_grad)
    return SparsePoint(loc, index, places.shape)


def _rows_and_columns(rows: Sequence[int], columns: Sequence[int] | None) -> Cut:
    first = list(rows)
    return (lambda t: t[first]) if columns is None else (lambda t: t[first][:, list(columns)])


def _of_conv(
    groups: int, transposed: bool, width_in: int, width_out: int, rows: Sequence[int], columns: Sequence[int]
) -> Cut:
    """The cut of a convolution's weight, (out, in / groups, ...), or (in, out / groups, ...) if transposed."""
    fan_in, fan_out = width_in // groups, width_out // groups

    def within(features: Sequence[int], group: int, size: int) -> list[int]:
        return [f - group * size for f in features if f // size == group]

    def cut(t: Tensor) -> Tensor:
        parts = []
        for group in range(groups):
            inputs, outputs = within(columns, group, fan_in), within(rows, group, fan_out)
            first, second, size = (inputs, outputs, fan_in) if transposed else (outputs, inputs, fan_out)
            parts.append(t[group * size : (group + 1) * size][first][:, second])
        return torch.cat(parts)

    return cut
