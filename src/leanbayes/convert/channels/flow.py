"""Following channels through a trace: the channels of each tensor, which belong together, and which modules use them.

A *cell* is a run of channels that are kept or dropped together everywhere. The `Layout` of a tensor lists the cells of
its channel dimension. Adding two tensors unites their cells in pairs; cells with different boundaries (from a
concatenation, for example) are split first. Earlier layouts stay valid, since a cell knows what replaced it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Literal

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

Kind = Literal["equal", "whole"]


@dataclass(eq=False)
class Cell:
    """A run of channels that stay together, and the reasons why they must not be dropped, if any."""

    size: int
    reasons: list[str] = field(default_factory=list)
    replaced_by: tuple[Part, ...] = ()  # one part after a union, two after a split

    def become(self, *sizes: int, block: int = 1) -> None:
        """Replace this cell by new cells of these sizes, each of whose channels is ``block`` of this one's."""
        self.replaced_by = tuple(Part(Cell(size, list(self.reasons)), block) for size in sizes)


@dataclass(frozen=True)
class Part:
    """The channels of a cell, each of them ``block`` consecutive features (0: unknown until a module reads them)."""

    cell: Cell
    block: int = 1

    @property
    def length(self) -> int:
        """The number of features, or of channels if blocks are unknown."""
        return self.cell.size * max(self.block, 1)

    def live(self) -> Iterator[Part]:
        """The parts that it consists of after all unions and splits."""
        cell, factor = self.cell, 1
        while len(cell.replaced_by) == 1:
            cell, factor = cell.replaced_by[0].cell, cell.replaced_by[0].block * factor
        if cell is not self.cell:
            self.cell.replaced_by = (Part(cell, factor),)  # shortens the next search
        if not cell.replaced_by:
            yield Part(cell, factor * self.block)
        for part in cell.replaced_by:
            yield from Part(part.cell, part.block * factor * self.block).live()


@dataclass(frozen=True)
class Layout:
    """A tensor whose dimension ``dim`` (negative) consists of ``parts``; ndim and shape are None if unknown."""

    parts: tuple[Part, ...]
    dim: int
    ndim: int | None = None
    shape: tuple[int, ...] | None = None

    def live(self) -> list[Part]:
        """The parts after all unions and splits so far."""
        return [now for part in self.parts for now in part.live()]

    @property
    def features(self) -> int:
        """The size of the channel dimension, 0 if unknown."""
        return 0 if any(not p.block for p in self.parts) else sum(p.cell.size * p.block for p in self.parts)

    @property
    def even(self) -> bool:
        """Whether all channels have equally many features."""
        return len({p.block for p in self.parts}) == 1

    def sized(self, features: int) -> Layout | None:
        """This layout with the number of features that its reader expects, or None if it cannot have it."""
        channels = sum(p.cell.size for p in self.parts)
        if not any(p.block for p in self.parts) and features % channels == 0:
            return replace(self, parts=tuple(Part(p.cell, features // channels) for p in self.parts))
        return self if self.features == features else None

    def times(self, factor: int) -> Layout:
        """Every channel spread over ``factor`` times as many consecutive features."""
        return replace(self, parts=tuple(Part(p.cell, p.block * factor) for p in self.parts))

    def at(self, dim: int, ndim: int) -> Layout:
        """The same channels in dimension dim, counted from the front, of a tensor with ndim dimensions."""
        return replace(self, dim=dim - ndim, ndim=ndim, shape=None)

    def is_dim(self, dim: int) -> bool:
        """Whether dim, counted from either end, is the channel dimension."""
        return dim == self.dim or (self.ndim is not None and dim == self.dim + self.ndim)


@dataclass(frozen=True, eq=False)
class Opaque:
    """A tensor whose channels cannot be dropped: an input, an attribute, or the result of an unknown operation."""

    reason: str
    shape: tuple[int, ...] | None = None
    attribute: str | None = None


@dataclass(frozen=True)
class Sizes:
    """``x.shape``."""

    of: Layout


@dataclass(frozen=True)
class Count:
    """The size of x's channel dimension as a number, which changes when channels are dropped."""

    of: Layout


@dataclass(frozen=True)
class Plain:
    """A value that does not depend on the channels, such as a dtype; is_batch_size: the size of the batch."""

    is_batch_size: bool = False


@dataclass(frozen=True)
class ModuleUse:
    """A module that produces ("out"), consumes ("in") or has a state for each channel of ("through") a layout."""

    role: str
    module: str
    layout: Layout


@dataclass(frozen=True)
class Requirement:
    """A module needs the features of a layout, in ``runs`` equal runs, dropped equally from each ("equal") or by whole
    runs ("whole")."""

    kind: Kind
    runs: int
    module: str
    layout: Layout


class Flow:
    """The uses and requirements of channels that are found while a trace is followed."""

    def __init__(self) -> None:
        self.module_uses: dict[tuple[str, str], ModuleUse] = {}
        self.requirements: list[Requirement] = []
        self.exposed: dict[str, str] = {}  # modules whose parameters somebody else uses, and why
        self._read: dict[tuple[Opaque, int, int], Layout] = {}

    def fresh(self, size: int, dim: int, ndim: int | None, *reasons: str) -> Layout:
        """A layout of new channels."""
        return Layout((Part(Cell(size, list(reasons))),), dim, ndim)

    def read(self, value: Any, dim: int, features: int) -> Layout | None:
        """The channels that a module with this input dimension reads, or None if they do not fit."""
        if isinstance(value, Layout):
            return value.sized(features) if value.is_dim(dim) else None
        if isinstance(value, Opaque):  # the same channels each time it is read
            ndim = None if value.shape is None else len(value.shape)
            return self._read.setdefault((value, dim, features), self.fresh(features, dim, ndim, value.reason))
        return None

    def record_use(self, role: str, module: str, layout: Layout) -> None:
        """Record a use; if a module is called twice, the channels of both calls belong together."""
        before = self.module_uses.setdefault((role, module), ModuleUse(role, module, layout))
        if before.layout is not layout:
            self.tie(before.layout, layout, f"'{module}' is called on different layouts")

    def require(self, kind: Kind, runs: int, module: str, layout: Layout) -> None:
        """Record the requirement of a grouped operation."""
        self.requirements.append(Requirement(kind, runs, module, layout))

    def fix(self, layout: Layout, reason: str) -> None:
        """Mark the channels of a layout as not to be dropped."""
        for part in layout.live():
            if reason not in part.cell.reasons:
                part.cell.reasons.append(reason)

    def tie(self, a: Layout, b: Layout, otherwise: str) -> None:
        """Keep channel i of one exactly if channel i of the other is kept; fix both if they cannot be paired."""
        while pair := next(((p, q) for p, q in zip_longest(a.live(), b.live()) if p != q), None):
            if None in pair or not self._bring_together(*pair):
                self.fix(a, otherwise)
                self.fix(b, otherwise)
                return

    def _bring_together(self, p: Part, q: Part) -> bool:
        """Make two parts that start at the same place more alike by one step; False if they cannot be united."""
        fine, coarse = sorted((p, q), key=lambda part: part.block)
        if fine.block == 0 < coarse.block:
            return False
        short, long = sorted((p, q), key=lambda part: part.length)
        if short.length < long.length:
            head = short.length // max(long.block, 1)
            if short.length % max(long.block, 1):
                return False
            long.cell.become(head, long.cell.size - head)
        elif fine.block < coarse.block:  # several channels of one are one channel of the other
            times = coarse.block // fine.block
            if coarse.block % fine.block or fine.cell.size % times:
                return False
            fine.cell.become(fine.cell.size // times, block=times)
        else:
            p.cell.reasons += [reason for reason in q.cell.reasons if reason not in p.cell.reasons]
            q.cell.replaced_by = (Part(p.cell),)
        return True

    def opaque(self, reason: str, values: Iterable[Any], shape: tuple[int, ...] | None = None) -> Opaque:
        """The result of an unknown operation; the channels of its arguments are fixed."""
        for value in values:
            if isinstance(value, (Sizes, Count)):
                self.fix(value.of, reason)
            elif isinstance(value, Layout):
                self.fix(value, reason)
        return Opaque(reason, shape)

    def expose(self, modules: dict[str, nn.Module]) -> None:
        """Fix the channels of modules whose weights are shared or computed from other tensors."""
        owners: dict[int, str] = {}
        for _, name in list(self.module_uses):
            for tensor in modules[name].parameters():
                other = owners.setdefault(id(tensor), name)
                if other != name:
                    self.exposed[name] = self.exposed[other] = f"'{other}' and '{name}' share a parameter"
            if is_parametrized(modules[name]) or modules[name]._parameters.keys() - {"weight", "bias"}:
                self.exposed[name] = f"the weight of '{name}' is computed from other tensors"
        for seen in self.module_uses.values():
            if seen.module in self.exposed:
                self.fix(seen.layout, self.exposed[seen.module])

    def constraints(self) -> list[tuple[Cell, Kind, int, str]]:
        """(cell, kind, runs, module) of every requirement; cells that do not fit a requirement are fixed."""
        found = []
        for requirement in self.requirements:
            parts, run, offset = requirement.layout.live(), requirement.layout.features // requirement.runs, 0
            for part in parts:
                length = part.cell.size * part.block
                aligned = run % part.block == 0 and offset % run == 0 and length % run == 0
                if requirement.kind == "whole" and part.block % run == 0:
                    pass  # every channel is one or more whole runs
                elif not aligned or (requirement.kind == "equal" and len(parts) > 1):
                    self.fix(Layout((part,), -1), f"is cut across by the groups of '{requirement.module}'")
                elif length == run * (1 if requirement.kind == "whole" else part.cell.size):
                    self.fix(Layout((part,), -1), f"must be kept whole for '{requirement.module}'")
                else:
                    found.append((part.cell, requirement.kind, length // run, requirement.module))
                offset += length
        return found
