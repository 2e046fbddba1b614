"""`extract`: a network for deployment, without what only training and sampling need."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from .. import batches, checks
from ..convert.apply import carry_hooks, restore_, swap_
from ..convert.channels import ChannelGraph, channel_graph
from ..convert.folding import fold_batchnorm_
from ..convert.implementation import implementation, rebuilding
from ..convert.record import conversions
from ..convert.slicing import Keep, kept_features, scale_inputs_, slice_
from ..errors import ConversionError, LeanBayesWarning
from ..latents.autoencoder import Autoencoder
from ..layers.bayes import SPARSE_BELOW, BayesLayer
from ..layers.contract import BayesianLayer, features
from ..ordering.unit import units
from ..posteriors.base import Posterior
from ..sampling import Site
from .width import set_width_


def extract(
    model: nn.Module,
    width: float | Mapping[str, float] | None = None,
    *,
    sparse: bool = True,
    stochastic: bool = False,
    fold_batchnorm: bool = False,
    example_input: Any = None,
    graph: ChannelGraph | None = None,
) -> nn.Module:
    """A new model for deployment, in evaluation mode: the network at the means; the given one stays as it is.

    stochastic: a smaller Bayesian model instead, cut to the same channels: its weights stay the distributions that they
        were, `predict` samples it, and training can go on. Layers of a nested network become those of the method of
        its weights.
    fold_batchnorm: fold BatchNorm into the plain Linear or convolution in front of it (see
        `leanbayes.convert.folding`), which saves a pass over memory. `recalibrate_` has to come before.

    - Dense layers become the plain modules they were, with the means as their parameters; norm layers stay.
    - Layers with few weights left, by sparse training or by `prune_`, keep those alone: values and places on disk and
      in memory, and the kernels of `leanbayes.kernels` where they serve. ``sparse=False`` makes plain modules of them
      too, zeros included (for ONNX, say).
    - A nested network is cut to a ``width``, as `set_width_` understands it, or to the one that is set: the channels
      beyond are not there any more. BatchNorm statistics are those of the model: `recalibrate_` it at that width
      before, or the result after.
    - An `Autoencoder` is cut to the length that is set, or to that of ``width``: its code has no noise, and its decoder
      reads fewer numbers.
    - Channels that `prune_(..., channels=True)` or `prune_channels_` removed are cut out of the layers on both sides,
      as far as the rest of the network allows. Who feeds whom is found by tracing: give an ``example_input`` where
      shapes matter, or a ``graph`` (`leanbayes.convert.channels.ChannelGraph`) where tracing fails.

    Weights without a mean, and ensembles, have no network at the means: they raise.

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
    for name, value in (("stochastic", stochastic), ("fold_batchnorm", fold_batchnorm)):
        checks.flag(name, value, error=ConversionError)
    _check(model, stochastic)
    plain = copy.deepcopy(model)
    if width is not None:
        set_width_(plain, width)
    cut = any(isinstance(m, BayesianLayer) and m.drops_inputs for m in model.modules())
    if graph is None:
        graph = _traced(plain, example_input) if cut else ChannelGraph(tuple(u.group for u in units(plain)))
    keep = {**(unread(plain, graph) if cut else {}), **_ordered(plain)}
    scales = _scales(plain)
    methods = dict.fromkeys(conversions(plain).values())
    fixed = [] if stochastic or not sparse else _fix_(plain)
    if stochastic:
        _at_fixed_width_(plain, graph, keep, bool(scales))
    elif conversions(plain):
        restore_(plain)
    for method in methods:
        implementation(method).detach(plain)
    for name, scale in scales:
        scale_inputs_(plain.get_submodule(name), scale)
    slice_(plain, graph, keep)
    for module in plain.modules():
        if isinstance(module, Autoencoder):
            module.cut_()
    dense = {}
    for layer in fixed:
        q: Any = layer.posterior("weight")
        cut_to = layer.__dict__.get("sliced")
        if not len(q.index) or (cut_to and len(q.index) >= SPARSE_BELOW * q.shape.numel()):
            dense[id(layer)] = layer.restored()  # slicing has removed all its weights, or most of its zeros
            dense[id(layer)].__dict__.update({"sliced": cut_to} if cut_to else {})
            continue
        layer.method = rebuilding(layer)  # as it is saved and loaded
    swap_(plain, dense)
    if fold_batchnorm:
        fold_batchnorm_(plain.eval(), example_input)
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
                size = features(model.get_submodule(use.module), "inputs") or 0
                found.append((use.module, unit.spread(unit.keep().detach(), use, size)))
    return found


def _traced(model: nn.Module, example_input: Any) -> ChannelGraph:
    """The channel graph; of a model that cannot be followed none, where all that was pruned are single weights."""
    try:
        return channel_graph(model, example_input)
    except ConversionError as error:
        if any(
            isinstance(m, BayesianLayer) and m.drops_inputs for m in model.modules() if not isinstance(m, BayesLayer)
        ):
            raise
        warnings.warn(
            f"channels that nothing reads any more stay in the network: {error}", LeanBayesWarning, stacklevel=3
        )
        return ChannelGraph(tuple(unit.group for unit in units(model)))


def _at_fixed_width_(model: nn.Module, graph: ChannelGraph, keep: Keep, rescaled: bool) -> None:
    """Replace layers whose width varies by ones of a fixed width, all still random, which can be cut."""
    if rescaled:
        raise ConversionError("stochastic=True: expected widths without rescale=True, which would scale the noise too")
    touched = {use.module for name in keep for use in (*graph[name].producers, *graph[name].consumers)}
    touched |= {use.module for name in keep for use in graph[name].through}
    replacements: dict[int, nn.Module] = {}
    for name in conversions(model):
        layer = model.get_submodule(name)
        assert isinstance(layer, BayesianLayer)
        made = layer.at_fixed_width()
        if made is not layer:
            carry_hooks(layer, made)
            replacements[id(layer)] = made
        q = made.posterior("weight") if isinstance(made, BayesLayer) else None
        if name in touched and isinstance(made, BayesianLayer) and (q is None or q.is_sparse):
            raise ConversionError(
                f"{name}: the channels of a {type(made).__name__} under {layer.method} cannot be cut while it stays "
                "random; extract the means with stochastic=False"
            )
    swap_(model, replacements)


def _check(model: nn.Module, stochastic: bool) -> None:
    """Raise a ConversionError where there is no network at the means."""
    checks.module("model", model, error=ConversionError)
    if "" in conversions(model):
        raise ConversionError("the model itself is a Bayesian layer; put it into an nn.Sequential first")
    if stochastic and any(isinstance(module, Autoencoder) for module in model.modules()):
        raise ConversionError(
            "stochastic=True: expected a network, received an Autoencoder; its own sample draws codes"
        )
    for name, module in model.named_modules():
        if isinstance(module, Site) and not module.has_mean and not stochastic:
            raise ConversionError(f"{name.replace('.posteriors', '') or type(model).__name__}: {module.no_mean}")


def _fix_(model: nn.Module) -> list[BayesianLayer]:
    """Replace layers by smaller ones where they offer one (`deployed`); returns these."""
    made: dict[int, Posterior] = {}  # a tied posterior is one object in two layers
    replacements: dict[int, nn.Module] = {}
    found = []
    for name in conversions(model):
        layer = model.get_submodule(name)
        assert isinstance(layer, BayesianLayer)
        smaller = layer.deployed(made)
        if isinstance(smaller, BayesianLayer):
            carry_hooks(layer, smaller)
            replacements[id(layer)] = smaller
            found.append(smaller)
    swap_(model, replacements)
    return found


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
                reads = _read(modules[use.module], kept_rows(graph, use.module, modules[use.module], keep))
                read.update(c for c in left if any(reads[feature] for feature in use.features([c])))
            wanted = sorted(read) or left[:1]
            if len(wanted) < len(left) and group.consumers and _allowed(group, wanted):
                found[group.name] = wanted
        if not found:
            return keep
        keep |= found


def kept_rows(graph: ChannelGraph, name: str, module: Any, keep: Keep) -> list[int]:
    """The outputs of a consumer that are left."""
    return kept_features(graph.outputs(name), keep, features(module, "outputs") or 0)


def _read(module: Any, rows: list[int]) -> list[bool]:
    """Which inputs of a Linear or convolution meet a weight that is there, in one of these outputs; by feature."""
    read = module.inputs_read(rows) if isinstance(module, BayesianLayer) else None
    return [True] * (features(module, "inputs") or 0) if read is None else read


def _allowed(group: Any, keep: list[int]) -> bool:
    try:
        group.check(keep)
    except ConversionError:
        return False
    return True
