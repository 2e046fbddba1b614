"""Which channels of a network are ordered, and in which order they go."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import gcd, lcm
from typing import TYPE_CHECKING

from ..errors import ConversionError, LeanBayesWarning

if TYPE_CHECKING:
    from ..convert.channels import ChannelGraph, Group


@dataclass(frozen=True)
class Steps:
    """A group of channels cut into ordered groups, the first ``base`` of which always stay.

    of: for every channel, the number of its group. Dropping the last groups first never breaks a constraint.

    >>> Steps(groups=4, base=2, of=(0, 1, 2, 3)).nodes
    3
    """

    groups: int
    base: int
    of: tuple[int, ...]

    @property
    def nodes(self) -> int:
        """K: the base together, then one a group."""
        return self.groups - self.base + 1

    @property
    def node_of(self) -> tuple[int, ...]:
        """For every channel, the number of its node."""
        return tuple(max(0, group - self.base + 1) for group in self.of)


def cut(group: Group, groups: int, base: int) -> Steps | None:
    """Cut the channels of a group into at most ``groups`` ordered groups, as equal as possible; None if one is left.

    What a grouped convolution sees as runs loses as many channels in every run; the groups of a GroupNorm go as wholes.
    Fewer places than groups: a group a place, and the base in proportion, at least one. Group g has the places from
    floor(g P / G) to floor((g + 1) P / G), so that G need not divide P.

    >>> from leanbayes.convert.channels import Constraint, Group
    >>> cut(Group("conv", 6), groups=3, base=1)
    Steps(groups=3, base=1, of=(0, 0, 1, 1, 2, 2))
    >>> cut(Group("conv", 6, constraints=(Constraint("equal", 2, "grouped"),)), groups=32, base=2)
    Steps(groups=3, base=1, of=(0, 1, 2, 0, 1, 2))
    """
    runs = lcm(1, *(c.runs for c in group.constraints if c.kind == "equal"))
    block = lcm(1, *(group.size // c.runs for c in group.constraints if c.kind == "whole"))
    length = group.size // gcd(runs, group.size)
    places = length // block
    if runs * length != group.size or places * block != length or places < 2:
        return None
    count = min(groups, places)
    kept = max(1, round(base * count / groups))
    if kept >= count:
        return None
    return Steps(count, kept, tuple(channel % length // block * count // places for channel in range(group.size)))


@dataclass(frozen=True)
class Placement:
    """The groups that are ordered, by the name of the layer that holds their unit, and a remark on every layer."""

    owned: dict[str, tuple[tuple[Group, Steps], ...]]
    notes: dict[str, str]


def place(
    graph: ChannelGraph, layers: Collection[str], *, groups: int, base: int, order: tuple[str, ...] | None
) -> Placement:
    """Choose among the outputs of these layers those that are ordered.

    order: names, with wildcards, of the layers whose outputs are. None takes every group of channels that may lose some
        and has a single producer: the inner channels of residual blocks, and none that an addition ties together.

    A named layer whose outputs an addition ties to those of a layer that is not named would break that addition: it is
    left as it is, with a warning.
    """
    owned: dict[str, list[tuple[Group, Steps]]] = {}
    notes: dict[str, str] = {}
    for group in graph:
        producers = [use.module for use in group.producers]
        mine = [name for name in dict.fromkeys(producers) if name in layers]
        if not mine:
            continue
        why, steps = _refusal(group, producers, order), None
        if not why:
            steps = cut(group, groups, base)
            why = "" if steps else "too few channels to order"
        if steps is not None:
            owned.setdefault(mine[0], []).append((group, steps))
            why = f"orders {group.size} channels in {steps.groups} groups, {steps.base} always on"
            for use in group.through:
                if use.module in layers:
                    notes.setdefault(use.module, f"carries the channels of {mine[0]}")
        for name in mine:
            notes[name] = f"{notes[name]}; {why}" if name in notes else why
    return Placement({name: tuple(found) for name, found in owned.items()}, notes)


def check_order(graph: ChannelGraph, order: Iterable[str]) -> None:
    """Refuse names that no producer of channels has."""
    known = list(dict.fromkeys(use.module for group in graph for use in group.producers))
    for pattern in order:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise ConversionError(
                f"order: {pattern!r} names no layer with channels of its own; known: {', '.join(known) or 'none'}"
            )


def _refusal(group: Group, producers: list[str], order: tuple[str, ...] | None) -> str:
    """Why a group is not ordered; empty if it is."""
    distinct = list(dict.fromkeys(producers))
    if order is not None:
        named = [name for name in distinct if any(fnmatchcase(name, pattern) for pattern in order)]
        if not named:
            return "outputs not ordered: not named"
        if not group.fixed and len(named) < len(distinct):
            others = ", ".join(name for name in distinct if name not in named)
            warnings.warn(
                f"order: the outputs of {', '.join(named)} are added to those of {others}; ordering only some of them "
                f"would break the addition, so they stay as they are; name all of them, or none",
                LeanBayesWarning,
                stacklevel=2,
            )
            return f"outputs not ordered: added to those of {others}"
    if group.fixed:
        return f"outputs not ordered: {group.reasons[0]}"
    if order is None and len(distinct) > 1:
        return "outputs not ordered: an addition ties them to those of other layers"
    if not group.consumers:
        return "outputs not ordered: nothing consumes them"
    return ""
