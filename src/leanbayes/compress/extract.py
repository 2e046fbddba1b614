"""`extract`: the network to deploy, without what only training and sampling need."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .. import batches, checks
from ..convert.apply import carry_hooks, restore_, swap_
from ..convert.channels import ChannelGraph, channel_graph
from ..convert.record import conversions
from ..convert.trace import original
from ..errors import ConversionError
from ..layers.bayes import BayesLayer
from ..layers.fixed import FixedLayer
from ..methods.sparse.rigl import Rigl
from ..methods.structured_pruning.layer import ChannelNoiseLayer
from ..ordering.unit import units
from ..posteriors.base import Posterior
from ..posteriors.sparse import Sparse, SparsePoint
from .slicing import Keep, kept_features, scale_inputs_, slice_
from .width import set_width_

SPARSE_BELOW = 0.5
"""The share of weights left below which a value and its place take less than the whole tensor."""


def extract(
    model: nn.Module,
    width: float | Mapping[str, float] | None = None,
    *,
    sparse: bool = True,
    example_input: Any = None,
    graph: ChannelGraph | None = None,
) -> nn.Module:
    """A new model for deployment, in evaluation mode: the network at the means; the given one stays as it is.

    - Dense layers become the plain modules they were, with the means as their parameters; norm layers stay.
    - Layers with few weights left, by sparse training or by `prune_`, keep those alone: values and places on disk and
      in memory, and the kernels of `leanbayes.kernels` where they serve. ``sparse=False`` makes plain modules of them
      too, zeros included (for ONNX, say).
    - A nested network is cut to a ``width``, as `set_width_` understands it, or to the one that is set: the channels
      beyond are not there any more. BatchNorm statistics are those of the model: `recalibrate_` it at that width
      before, or the result after.
    - Channels that `prune_channels_` removed are cut out of the layers on both sides, as far as the rest of the network
      allows. Who feeds whom is found by tracing: give an ``example_input`` where shapes matter, or a ``graph``
      (`leanbayes.convert.channels.ChannelGraph`) where tracing fails.

    Weights without a mean, and ensembles, have no such network: they raise. What is kept for averaging over draws is
    the model itself; a sparse one stores its active weights alone already.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    >>> _ = lb.bayesianize_(model, {"0": lb.SparseSubspace(density=0.05), "2": lb.MeanField()})
    >>> small = extract(model)
    >>> small[0].posteriors["weight"], small[2]
    (SparsePoint(shape=(100, 64), active=320 (5.0%)), Linear(in_features=100, out_features=10, bias=True))

    >>> model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    >>> _ = lb.bayesianize_(model, lb.Nested(groups=8, base_groups=2))
    >>> extract(model, width=0.25)[0]
    Linear(in_features=64, out_features=8, bias=True)
    """
    checks.flag("sparse", sparse, error=ConversionError)
    if example_input is not None:
        example_input = batches.accept(example_input, name="example_input", arguments=True)
    _check(model)
    plain = copy.deepcopy(model)
    if width is not None:
        set_width_(plain, width)
    cut = any(isinstance(m, ChannelNoiseLayer) and m.scale.keep is not None for m in model.modules())
    if graph is None:
        graph = channel_graph(plain, example_input) if cut else ChannelGraph(tuple(u.group for u in units(plain)))
    keep = {**(unread(plain, graph) if cut else {}), **_ordered(plain)}
    scales = _scales(plain)
    methods = dict.fromkeys(conversions(plain).values())
    fixed = _fix_(plain) if sparse else []
    if conversions(plain):
        restore_(plain)
    for method in methods:
        method.detach(plain)
    for name, scale in scales:
        scale_inputs_(plain.get_submodule(name), scale)
    slice_(plain, graph, keep)
    emptied = {}
    for layer in fixed:
        q: Any = layer.posteriors["weight"]
        if not len(q.index):  # all that was left of it has been cut out
            emptied[id(layer)] = layer.restored()
            continue
        # as it is saved and loaded: so many weights of a layer, which do not move
        layer.__dict__["method"] = Rigl(density=q.density, replacement=0.0)
    swap_(plain, emptied)
    return plain.eval()


def _ordered(model: nn.Module) -> dict[str, list[int]]:
    """The channels that the ordering units of a model keep, where those are not all."""
    found = {}
    for unit in units(model):
        nodes = unit.width or unit.limit  # at the means widths that are not set are the largest
        if nodes < unit.nodes and unit.legacy:
            raise ConversionError(
                f"'{unit.name}': masks before BatchNorm (legacy=True) are not zeros behind it, so that cutting these "
                "channels would change the outputs; extract at full width"
            )
        if nodes < unit.nodes:
            found[unit.name] = unit.kept_channels(nodes)
    return found


def _scales(model: nn.Module) -> list[tuple[str, Tensor]]:
    """What `set_width_(..., rescale=True)` multiplies inputs of modules by, by their name."""
    found = []
    for unit in units(model):
        if unit.rescale:
            for use in dict.fromkeys(unit.group.consumers):
                shell: Any = original(model.get_submodule(use.module))
                size = shell.in_features if isinstance(shell, nn.Linear) else shell.in_channels
                found.append((use.module, unit.spread(unit.keep().detach(), use, size)))
    return found


def _check(model: nn.Module) -> None:
    """There is a network at the means, or an error that says what to do instead."""
    checks.module("model", model, error=ConversionError)
    if "" in conversions(model):
        raise ConversionError("the model itself is a Bayesian layer; put it into an nn.Sequential first")
    for name, module in model.named_modules():
        if isinstance(module, Posterior) and not module.has_mean:
            raise ConversionError(
                f"{name.replace('.posteriors', '')}: its mean is zero by construction, and all that was learned is in "
                "the variances: there is no network at the means to extract; save the model and predict with samples"
            )
        if not getattr(module, "has_mean", True):
            raise ConversionError(
                f"{name or type(model).__name__}: an ensemble is several networks, and the mean of their weights is "
                "none of them; take one with leanbayes.methods.ensemble.layer.member(model, number)"
            )


def _fix_(model: nn.Module) -> list[FixedLayer]:
    """Put layers with fixed values at the places left wherever these are few, and return them."""
    points: dict[int, SparsePoint] = {}  # a tied posterior is one object in two layers
    replacements: dict[int, nn.Module] = {}
    made = []
    for name in conversions(model):
        layer = model.get_submodule(name)
        q = layer._posterior("weight") if isinstance(layer, BayesLayer) else None
        if q is None or Rigl().refuses(plain := layer.restored()) is not None:  # type: ignore[operator]
            continue
        if id(q) not in points:
            if not 0 < (count := int(alive(q).sum())) < SPARSE_BELOW * q.shape.numel():
                continue
            points[id(q)] = _point(q, count)
        fixed = FixedLayer(plain, {"weight": points[id(q)]}, {})
        carry_hooks(layer, fixed)
        replacements[id(layer)] = fixed
        made.append(fixed)
    swap_(model, replacements)
    return made


@torch.no_grad()
def _point(q: Posterior, count: int) -> SparsePoint:
    """The means at the places left, in ascending order."""
    index = alive(q).flatten().nonzero().flatten()
    assert len(index) == count
    values = q.mean.flatten()[index]
    return SparsePoint(nn.Parameter(values, q.like.requires_grad), index, q.shape)


def alive(q: Posterior) -> Tensor:
    """Where a posterior has a weight: its active places, if it is sparse, that have not been pruned."""
    places = torch.ones(q.shape, dtype=torch.bool, device=q.device)
    if isinstance(q, Sparse):
        places = torch.zeros_like(places).flatten().index_fill(0, q.index.long(), True).view(q.shape)
    return places if q.keep is None else places & q.keep


def unread(model: nn.Module, graph: ChannelGraph) -> Keep:
    """The channels to keep of every group that has some which no consumer reads, by its name.

    A consumer reads what it multiplies with a weight that has not been pruned. Cutting a channel may leave others
    unread: they go too. A group that may not lose these very channels (see its constraints) keeps all.
    """
    keep: dict[str, list[int]] = {}
    modules = dict(model.named_modules())
    while True:
        found = {}
        for group in graph.free:
            left = [c for c in range(group.size) if c in keep.get(group.name, range(group.size))]
            read: set[int] = set()
            for use in group.consumers:
                features = _read(modules[use.module], kept_rows(graph, use.module, modules[use.module], keep))
                read.update(c for c in left if any(features[f] for f in use.features([c])))
            wanted = sorted(read) or left[:1]
            if len(wanted) < len(left) and group.consumers and _allowed(group, wanted):
                found[group.name] = wanted
        if not found:
            return keep
        keep |= found


def kept_rows(graph: ChannelGraph, name: str, module: Any, keep: Keep) -> list[int]:
    """The outputs of a consumer that are left."""
    size = getattr(module, "out_features", None) or module.out_channels
    return kept_features(graph.outputs(name), keep, size)


def _read(module: Any, rows: list[int]) -> list[bool]:
    """Which inputs of a Linear or convolution meet a weight that is there, in one of these outputs; by feature."""
    linear = hasattr(module, "in_features")
    width: int = module.in_features if linear else module.in_channels
    if isinstance(module, ChannelNoiseLayer):
        return [True] * width if module.scale.keep is None else module.scale.keep.tolist()  # type: ignore[no-any-return]
    q = module._posterior("weight") if isinstance(module, BayesLayer) else None
    groups = 1 if linear else module.groups
    if q is None or groups > 1 or getattr(module, "transposed", False):
        return [True] * width
    left = alive(q)[rows]
    return left.movedim(1, 0).flatten(1).any(1).tolist()  # type: ignore[no-any-return]


def _allowed(group: Any, keep: list[int]) -> bool:
    try:
        group.check(keep)
    except ConversionError:
        return False
    return True
