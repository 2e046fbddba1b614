"""The channel graph: groups of channels that are kept or dropped together, with their producers and consumers.

Masking a group's channels at the inputs of all its consumers gives the same output as cutting them out of producers,
norm layers and consumers, since nothing in between mixes channels (a group is fixed otherwise).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ...errors import ConversionError
from ..trace import trace
from . import modules as _modules  # noqa: F401  (importing the rules registers them)
from .by_hand import check_disjoint, group_by_hand
from .flow import Cell, Flow
from .groups import Constraint, Group, Use
from .rules import follow


@dataclass(frozen=True)
class ChannelGraph:
    """All groups of a model, in the order of their first use."""

    groups: tuple[Group, ...]

    @property
    def free(self) -> tuple[Group, ...]:
        """The groups that may lose channels."""
        return tuple(group for group in self.groups if not group.fixed)

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, name: str) -> Group:
        for group in self.groups:
            if group.name == name:
                return group
        raise ConversionError(f"no group {name!r}; known: {', '.join(group.name for group in self.groups)}")

    def inputs(self, module: str) -> tuple[tuple[Group, Use], ...]:
        """The groups that a module consumes, in the order of its input features."""
        return self._at(module, "consumers")

    def outputs(self, module: str) -> tuple[tuple[Group, Use], ...]:
        """The groups that a module produces, in the order of its output features."""
        return self._at(module, "producers")

    def carried(self, module: str) -> tuple[tuple[Group, Use], ...]:
        """The groups that a module holds per-channel state for, in the order of its features."""
        return self._at(module, "through")

    def _at(self, module: str, role: str) -> tuple[tuple[Group, Use], ...]:
        found = [(group, use) for group in self.groups for use in vars(group)[role] if use.module == module]
        return tuple(sorted(found, key=lambda pair: pair[1].offset))

    @classmethod
    def from_groups(cls, model: nn.Module, groups: Mapping[str, Mapping[str, Any]]) -> ChannelGraph:
        """A graph given by hand, for models that cannot be traced; channels that are not named stay as they are.

        groups: by name, the "producers", "consumers" and "through" modules of each group. A module's name alone says
        that the group is all of its features, in equal blocks; a `Use` says which ones. The "size" is that of the
        first producer unless given.

        >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
        >>> graph = ChannelGraph.from_groups(model, {"hidden": {"producers": ["0"], "consumers": ["3"]}})
        >>> graph["hidden"].size, graph["hidden"].consumers[0].block
        (4, 36)
        """
        stated = tuple(group_by_hand(model, name, roles) for name, roles in groups.items())
        check_disjoint(stated)
        return cls(stated)

    def __str__(self) -> str:
        rows = [("group", "channels", "produced by", "through", "consumed by", "may lose channels")]
        for group in self.groups:
            limits = ", ".join(f"{c.kind} in {c.runs} runs ({c.module})" for c in group.constraints)
            verdict = f"no: {'; '.join(group.reasons)}" if group.fixed else f"yes, {limits}" if limits else "yes"
            places = (_short(group.producers), _short(group.through), _short(group.consumers))
            rows.append((group.name, str(group.size), *places, verdict))
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = ["  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[5]]) for row in rows]
        return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def channel_graph(model: nn.Module, example_input: Any = None) -> ChannelGraph:
    """The channel graph of a model, which is not changed.

    example_input: a tensor, a tuple of positional arguments or a mapping of named ones, of a batch of two or more.
    Most models can be followed without it, but not all reshapes and dimensions counted from the front.

    Channels that cannot be followed are fixed, with the reason. A model that torch.fx cannot trace is traced by
    torch.export, which treats numbers that Python computes from shapes as constants.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    >>> import torch
    >>> print(channel_graph(model, torch.zeros(2, 3, 8, 8)))
    group       channels  produced by  through  consumed by       may lose channels
    ----------------------------------------------------------------------------------------------------
    input of 0  3                               0                 no: comes from the model input 'input'
    0           8         0            1        4 (blocks of 36)  yes
    4           10        4                                       no: is a model output
    """
    return ChannelGraph(tuple(_groups(follow(model, trace(model, example_input)))))


def _groups(flow: Flow) -> Iterator[Group]:
    """The groups of channels, each with the modules that use it."""
    limits: dict[Cell, list[Constraint]] = {}
    for cell, kind, runs, module in flow.constraints():
        limits.setdefault(cell, []).append(Constraint(kind, runs, module))
    uses: dict[Cell, dict[str, list[Use]]] = {}
    names: dict[Cell, str] = {}
    for seen in sorted(flow.module_uses.values(), key=lambda seen: seen.role != "out"):
        offset, parts = 0, seen.layout.live()
        for part in parts:
            end = offset + part.cell.size * part.block
            where = seen.module if seen.role == "out" else f"input of {seen.module}"
            names.setdefault(part.cell, where if len(parts) == 1 else f"{where}[{offset}:{end}]")
            roles = uses.setdefault(part.cell, {"out": [], "in": [], "through": []})
            roles[seen.role].append(Use(seen.module, offset, part.block, seen.layout.dim))
            offset = end
    order = [part.cell for seen in flow.module_uses.values() for part in seen.layout.live()]
    for cell in dict.fromkeys(order):
        roles, limit = uses[cell], tuple(dict.fromkeys(limits.get(cell, [])))
        places = (tuple(roles["out"]), tuple(roles["in"]), tuple(roles["through"]))
        yield Group(names[cell], cell.size, *places, constraints=limit, reasons=tuple(cell.reasons))


def _short(uses: tuple[Use, ...]) -> str:
    """The first module of a list and the number of others."""
    texts = [f"{u.module} (blocks of {u.block})" if u.block > 1 else u.module for u in uses]
    texts = list(dict.fromkeys(texts))
    return texts[0] + (f" +{len(texts) - 1}" if len(texts) > 1 else "") if texts else ""
