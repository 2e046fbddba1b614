"""A reference slicer and its masked twin, from nothing but the channel graph."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from leanbayes.convert.channels import ChannelGraph, Group, Use, channel_graph

Keep = Mapping[str, Sequence[int]]


def _kept(pairs: Sequence[tuple[Group, Use]], keep: Keep, size: int) -> list[int]:
    dropped = {group.name: set(range(group.size)) - set(keep.get(group.name, range(group.size))) for group, _ in pairs}
    gone = {feature for group, use in pairs for feature in use.features(dropped[group.name])}
    return [feature for feature in range(size) if feature not in gone]


def sliced(model: nn.Module, graph: ChannelGraph, keep: Keep) -> nn.Module:
    """A copy of the model without the channels that are not kept."""
    for name, channels in keep.items():
        graph[name].check(channels)
    model = copy.deepcopy(model)
    for name, m in model.named_modules():
        into, out, carried = (graph.inputs(name), graph.outputs(name), graph.carried(name))
        if isinstance(m, nn.Linear):
            rows, columns = _kept(out, keep, m.out_features), _kept(into, keep, m.in_features)
            m.weight, m.in_features, m.out_features = nn.Parameter(m.weight[rows][:, columns]), len(columns), len(rows)
        elif isinstance(m, nn.Embedding):
            rows = _kept(out, keep, m.embedding_dim)
            m.weight, m.embedding_dim = nn.Parameter(m.weight[:, rows]), len(rows)
        elif isinstance(m, nn.modules.conv._ConvNd) and carried:  # depthwise
            each = m.out_channels // m.groups
            rows = _kept(carried, keep, m.out_channels)
            m.weight = nn.Parameter(m.weight[sorted({f // each for f in rows}) if m.transposed else rows])
            m.in_channels = m.groups = len(rows) // each
            m.out_channels = len(rows)
        elif isinstance(m, nn.modules.conv._ConvNd):
            fan_in, fan_out = m.in_channels // m.groups, m.out_channels // m.groups
            rows, columns = _kept(out, keep, m.out_channels), _kept(into, keep, m.in_channels)
            weight = m.weight.new_zeros(m.out_channels, m.in_channels, *m.kernel_size)  # as if it were not grouped
            for g in range(m.groups):
                i, o = slice(g * fan_in, (g + 1) * fan_in), slice(g * fan_out, (g + 1) * fan_out)
                weight[o, i] = m.weight[i].transpose(0, 1) if m.transposed else m.weight[o]
            blocks = [part.chunk(m.groups, 1)[g] for g, part in enumerate(weight[rows][:, columns].chunk(m.groups))]
            m.weight = nn.Parameter(torch.cat([b.transpose(0, 1) for b in blocks] if m.transposed else blocks))
            m.in_channels, m.out_channels = len(columns), len(rows)
        elif carried:  # norm layers and PReLU
            rows = _kept(carried, keep, getattr(m, "num_features", getattr(m, "num_channels", len(m.weight))))
            if isinstance(m, nn.GroupNorm):
                m.num_groups, m.num_channels = len(rows) * m.num_groups // m.num_channels, len(rows)
            for key in ("weight", "running_mean", "running_var"):
                if getattr(m, key, None) is not None:
                    value = getattr(m, key)[rows]
                    setattr(m, key, nn.Parameter(value) if key == "weight" else value)
            m.num_features = len(rows)
        else:
            continue
        if getattr(m, "bias", None) is not None:
            m.bias = nn.Parameter(m.bias[rows])
    return model


def masked(model: nn.Module, graph: ChannelGraph, keep: Keep) -> nn.Module:
    """A copy of the model whose consumers see zeros in place of the channels that are not kept."""
    model = copy.deepcopy(model)
    for name, m in model.named_modules():
        pairs = graph.inputs(name)

        def mask(module: nn.Module, args: Any, pairs: Any = pairs) -> Any:
            x, dim = args[0], pairs[0][1].dim
            ones = torch.zeros(x.shape[dim], dtype=x.dtype)
            ones[_kept(pairs, keep, len(ones))] = 1.0
            return (x * ones.view(-1, *(1,) * (-dim - 1)), *args[1:])

        if pairs:
            m.register_forward_pre_hook(mask)
    return model


def half(group: Group, rng: random.Random) -> list[int]:
    """A random half of a group's channels that its constraints allow."""
    whole = [c.runs for c in group.constraints if c.kind == "whole"]
    equal = [c.runs for c in group.constraints if c.kind == "equal"]
    units = max(equal, default=1)
    run = group.size // units  # channels of one run of a grouped convolution
    unit = max((group.size // runs for runs in whole), default=1)  # channels of one group of a GroupNorm
    count = max(1, run // unit // 2)
    chosen = [sorted(rng.sample(range(run // unit), count)) for _ in range(units)]
    return [u * run + c * unit + i for u in range(units) for c in chosen[u] for i in range(unit)]


def randomised(model: nn.Module) -> nn.Module:
    """Nothing at zero or one, so that no mistake hides; BatchNorm in eval mode."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.data = torch.rand_like(tensor) * 0.5 + 0.2
            tensor.data *= torch.where(torch.rand_like(tensor) < 0.4, -1.0, 1.0) if tensor.ndim > 1 else 1.0
    return model.double().eval()


def assert_slicing_is_masking(
    model: nn.Module, x: Any, graph: ChannelGraph | None = None, seed: int = 0
) -> ChannelGraph:
    """Every free group cut alone, then all together."""
    torch.manual_seed(seed)
    model, rng = randomised(model), random.Random(seed)
    graph = graph or channel_graph(model, x)
    halves = {group.name: half(group, rng) for group in graph.free}
    original = model(x)
    for keep in [*({name: channels} for name, channels in halves.items()), halves]:
        expected, got = masked(model, graph, keep)(x), sliced(model, graph, keep)(x)
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
        dropped = any(len(channels) < graph[name].size for name, channels in keep.items())
        assert not dropped or (expected - original).abs().max() > 1e-9, f"dropping {set(keep)} changed nothing"
    return graph
