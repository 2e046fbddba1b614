"""Nested students: the first part of a nested network's channels, with their order and their tails (SN3)."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from ...compress.distill import cut
from ...convert.apply import bayesianize_
from ...errors import ConfigError
from ...ordering.unit import OrderingUnit, units
from .config import NestedDropout


def nested_student(teacher: nn.Module, width: float = 0.25, inputs: Any = None) -> nn.Module:
    """The first ``width`` of a nested network's channels, still nested, with plain weights: a student for `distill`.

    The means of the weights, the order of the channels and the distribution of their widths are the teacher's, given
    that no more channels are kept; the spread of the weights is left out (variational nested dropout, section 3.5).
    The student can be run at every width (`set_width_`); while `distill` teaches it, the teacher runs at the same part
    of its channels (equation 21).

    inputs: an example, for networks that cannot be followed without. `load` reads its file into a network of its own
    size, ``extract(teacher, width)`` say.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    >>> _ = lb.bayesianize_(model, lb.Nested(groups=16, base_groups=1))
    >>> student = nested_student(model, 0.25)
    >>> student[0].weight.shape, lb.widths(student)
    (torch.Size([16, 4]), [0.25, 0.5, 0.75, 1.0])
    """
    shorter, student = cut(teacher, width)
    ordered = {unit.name: unit for unit in units(shorter) if unit.limit > 1}
    if not ordered:
        raise ConfigError(f"width: expected one at which some channels can be dropped, received {width}; widen it")
    bayesianize_(student, {name: _tails(unit, inputs) for name, unit in ordered.items()})
    for unit in units(student):
        _order_(unit, ordered[unit.name])
    return student


def _tails(unit: OrderingUnit, inputs: Any) -> NestedDropout:
    """The widths of a truncated unit, as a method for the layer that produces its channels."""
    return NestedDropout(
        groups=unit.base + unit.limit - 1,
        base_groups=unit.base,
        tails="categorical",
        probabilities=tuple(unit.tails().detach().exp()[: unit.limit].tolist()),
        order=(unit.name,),
        share=unit.share,
        by_importance=False,
        input_shape=tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else None,
    )


def _order_(unit: OrderingUnit, of: OrderingUnit) -> None:
    """Order the channels of a student's unit as those of the teacher's."""
    kept = [of.steps.of[channel] for channel in of.kept_channels(of.limit)]
    order = sorted(range(len(kept)), key=kept.__getitem__)
    groups = dict(zip(order, sorted(unit.steps.of), strict=True))
    unit.steps = dataclasses.replace(unit.steps, of=tuple(groups[channel] for channel in range(len(kept))))
    with torch.no_grad():
        unit.node_of.copy_(torch.tensor(unit.steps.node_of))
