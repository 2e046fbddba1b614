"""The widths of nested networks: which there are, and running a network at one without a copy."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from .. import checks, likelihoods
from ..checks import flag, number, short, whole_number
from ..convert import record
from ..errors import ConversionError
from ..ordering.ordered import Ordered, ordered
from ..ordering.unit import OrderingUnit


def set_width_(
    model: nn.Module, width: float | Mapping[str, float] | str | None, *, rescale: bool = False
) -> dict[str, float]:
    """Run a nested network at this width from now on; returns the width of every ordered group of channels.

    width: the part of the channels to keep, in (0, 1]: one number for all groups, or one by name (of the layer that
        produces the channels, with wildcards; the others stay as they are). "sampled" (or None) draws widths in
        prediction as in training (BN3-MC). Before the first call training draws widths, and predictions are made at
        full width. It is rounded up to a whole number of groups, and never below the base groups: `widths` lists what
        is possible.
    rescale: multiply what is kept by the probability that it was kept in training (B.2), for networks without
        BatchNorm; where there is BatchNorm, `recalibrate_` does better.

    Nothing is copied and no weight changes: consumers of the channels multiply them by zero. BatchNorm statistics are
    averages over all widths until `lb.recalibrate_(model, loader)` collects those of this one, from 1,024 data say
    (data=1024). A temperature that `lb.calibrate_` fitted at a width comes back with it; a width that has none takes
    the temperature of sampled widths, 1 unless that was calibrated.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    >>> _ = lb.bayesianize_(model, lb.Nested(groups=8, base_groups=2))
    >>> set_width_(model, 0.3)
    {'0': 0.375, '2': 0.375}
    >>> set_width_(model, {"2": 1.0})
    {'0': 0.375, '2': 1.0}
    """
    found = _units(model)
    if flag("rescale", rescale, error=ConversionError) and not all(isinstance(unit, OrderingUnit) for unit in found):
        raise ConversionError("rescale: expected ordered channels only, received ordered latents; use rescale=False")
    chosen = _chosen(found, width)  # everything is checked before anything changes
    before = _key(found)
    for unit, nodes in chosen.items():
        unit.width, unit.rescale, unit.free = nodes, rescale and nodes > 0, False
    _temperature(model, before, _key(found))
    return {unit.name: unit.fraction(unit.width) for unit in found if unit.width}


def set_length_(model: nn.Module, length: int | None) -> dict[str, int]:
    """Use so many ordered latents from now on, or blocks of a hierarchical model; returns the length of every code.

    length: from 1 to the size of the code; None samples lengths again, as in training. `set_width_` takes fractions.

    >>> import leanbayes as lb
    >>> model = lb.Autoencoder(nn.Flatten(), nn.Linear(8, 9), lb.OrderedLatents(8), shape=(9,))
    >>> set_length_(model, 2), lb.widths(model)[:3]
    ({'code': 2}, [0.125, 0.25, 0.375])
    """
    found = [unit for unit in _units(model) if not isinstance(unit, OrderingUnit)]
    if not found:
        raise ConversionError(
            f"expected a model with ordered latents, this {type(model).__name__} has ordered channels; "
            "lb.set_width_(model, 0.5) sets their width"
        )
    if length is not None:
        for unit in found:
            whole_number("length", length, at_most=unit.limit, error=ConversionError)
    for unit in found:
        unit.width = length or 0
    return {unit.name: unit.width for unit in found if unit.width}


def widths(model: nn.Module, of: str | None = None) -> list[float]:
    """The widths that `set_width_` can set, ascending: of all ordered groups together, or of one by name.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    >>> _ = lb.bayesianize_(model, lb.Nested(groups=8, base_groups=5))
    >>> widths(model)
    [0.625, 0.75, 0.875, 1.0]
    """
    found = _units(model)
    if of is not None:
        found = _named(found, of)
    return sorted({unit.fraction(nodes) for unit in found for nodes in range(1, unit.limit + 1)})


def importance(model: nn.Module) -> dict[str, Tensor]:
    """beta_j, the probability that exactly the first j nodes are kept, of every ordered group by name, (K,) (figure 1).

    Node 1 is the base groups together, every other node one group.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    >>> _ = lb.bayesianize_(model, lb.Nested(groups=8, base_groups=5))
    >>> importance(model)["0"]
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    return {unit.name: unit.tails().detach().exp() for unit in _units(model)}


def likely_width(model: nn.Module) -> dict[str, float]:
    """The most probable width of every ordered group by name, the mode of q(z); the narrowest of equals.

    ``set_width_(model, likely_width(model))`` runs the network at it.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    >>> _ = lb.bayesianize_(model, lb.NestedDropout(groups=4, base_groups=1, tails="categorical",
    ...                                             probabilities=(0.1, 0.2, 0.4, 0.3)))
    >>> likely_width(model)
    {'0': 0.75}
    """
    return {unit.name: unit.fraction(int(unit.tails().argmax()) + 1) for unit in _units(model)}


def truncate_(model: nn.Module, fraction: float) -> dict[str, int]:
    """Keep only the most important part of every ordered group for good; returns how many groups are left.

    The paper trains 1.5 times the channels and keeps two thirds (C.1). From then on a width of 1 is what was kept, and
    sampled widths lie within it. No memory is freed: what is beyond the limit is multiplied by zero.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 96), nn.ReLU(), nn.Linear(96, 2))
    >>> _ = lb.bayesianize_(model, lb.Nested(groups=12, base_groups=2))
    >>> truncate_(model, 2 / 3), widths(model)[0]
    ({'0': 8}, 0.25)
    """
    found = _units(model)
    for unit, nodes in _chosen(found, _number(fraction, "fraction")).items():
        unit.limit, unit.width = nodes, min(unit.width, nodes)
    record.ensure(model).temperatures.clear()  # they were those of other networks
    return {unit.name: unit.base + unit.limit - 1 for unit in found}


def _units(model: Any) -> list[Ordered]:
    checks.module("model", model, error=ConversionError)
    if not (found := ordered(model)):
        raise ConversionError(
            f"expected a model with ordered channels or latents, this {type(model).__name__} has none; "
            "lb.bayesianize_(model, lb.Nested()) orders channels"
        )
    return found


def _chosen(found: list[Ordered], width: Any) -> dict[Ordered, int]:
    """How many nodes each unit is to keep; 0 to sample."""
    if not isinstance(width, Mapping):
        return {unit: _nodes(unit, width) for unit in found}
    if not width:
        raise ConversionError("width: expected at least one name, received an empty mapping")
    return {unit: _nodes(unit, value) for name, value in width.items() for unit in _named(found, name)}


def _named(found: list[Ordered], name: Any) -> list[Ordered]:
    wanted = name if isinstance(name, str) else ""
    same = [unit for unit in found if unit.name == wanted] or [u for u in found if fnmatchcase(u.name, wanted)]
    if not same:
        known = ", ".join(unit.name for unit in found)
        raise ConversionError(f"width: no ordered channels are called {short(name)}; known: {known}")
    return same


def _nodes(unit: Ordered, width: Any) -> int:
    if width is None or width == "sampled":
        return 0
    return unit.nodes_at(_number(width, "width"))


def _number(width: Any, what: str) -> float:
    hint = "it is the part of the channels to keep; lb.widths(model) lists what is possible"
    return number(what, width, above=0, at_most=1, error=ConversionError, hint=hint)


def _key(found: list[Ordered]) -> str:
    """A name for the present widths; empty where all are sampled."""
    if not any(unit.width for unit in found):
        return "full" if all(unit.free for unit in found) else ""
    return ",".join(f"{unit.name}={unit.width}" + "r" * unit.rescale for unit in found)


def _temperature(model: nn.Module, before: str, after: str) -> None:
    """Store the temperature of the widths before, and set that of the widths after."""
    found = record.get(model)
    if found is None or found.likelihood is None or before == after:
        return
    likelihood = likelihoods.from_dict(found.likelihood)
    if not isinstance(likelihood, likelihoods.Categorical):
        return
    known = found.temperatures
    if before == "" or likelihood.temperature != known.get("", 1.0):  # otherwise it is only passed on
        known[before] = likelihood.temperature
    found.likelihood = likelihood.at(known.get(after, known.get("", 1.0))).to_dict()
