"""The noise of several samples at once: a function of (seed, site, sample), independent or balanced; what is shared."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .. import turns
from ..sampling import Site
from .probe import Probe

OVERHEAD = 3.0  # data: what a pass costs besides those it computes


KEPT = 2**22  # random numbers kept from one prediction to the next, of all models together: 16 MB
_kept: OrderedDict[tuple[Any, ...], Tensor] = OrderedDict()  # the latest used is the last


def kept_noise(site: Site, seed: int, number: int, samples: tuple[int, ...], balanced: bool | None) -> Tensor:
    """As `noise`, from memory where a prediction with this seed drew it before: drawing costs more than a small layer.

    The values do not depend on it. Nothing is kept on the model.
    """
    if (kind := site.noise_kind()) is None:
        return noise(site, seed, number, samples, balanced)
    key = (kind, seed, number, samples, balanced)
    with turns.lock:
        if (found := _kept.get(key)) is None:
            found = noise(site, seed, number, samples, balanced)
            if found.numel() > KEPT:
                return found
            _kept[key] = found
            size = sum(each.numel() for each in _kept.values())
            while size > KEPT:
                size -= _kept.popitem(last=False)[1].numel()
        _kept.move_to_end(key)
        return found


def amount(site: Site) -> int:
    """How many random numbers a site takes in one sample."""
    kind = site.noise_kind()
    return noise(site, 0, 0, (0,), None).numel() if kind is None else math.prod(kind[1])


def noise(site: Site, seed: int, number: int, samples: Sequence[int], balanced: bool | None) -> Tensor:
    """What a site gets in each of the samples, (samples, ...).

    balanced: None leaves it to the method. True balances whatever can be: components of mixtures are used equally
        often, and every second sample has the Gaussian noise of the one before with the opposite sign (antithetic).
        False draws every sample by itself.

    One sample alone has the same distribution in all three cases.
    """
    return site.of_samples(seed, number, samples, balanced)


def period(sites: Sequence[Site], balanced: bool | None) -> int | None:
    """After how many samples nothing new comes, or None: an ensemble has no more than its members."""
    cycles = [site.cycle(balanced, alone=len(sites) == 1) for site in sites]
    return None if None in cycles else math.lcm(*(cycle for cycle in cycles if cycle is not None))


def in_common(sites: Sequence[Any], seed: int, samples: Sequence[int], balanced: bool | None) -> Tensor:
    """The components that leading sites of one index each take in each sample, (samples, sites).

    sites: (number, site) in the order in which they are drawn; the first that has more than one index ends the table.
    """
    columns = []
    for number, site in sites:
        if not site.single_index:
            break
        columns.append(noise(site, seed, number, samples, balanced).cpu())
    return torch.stack(columns, 1) if columns else torch.empty(len(samples), 0, dtype=torch.long)


def groups(table: Tensor, depth: int, most: int) -> list[list[int]]:
    """Rows that agree in the first ``depth`` columns, together, at most so many in a group.

    >>> groups(torch.tensor([[0, 1], [1, 1], [0, 0], [0, 1]]), depth=1, most=2)
    [[0, 2], [3], [1]]
    """
    found: dict[tuple[int, ...], list[int]] = {}
    for row, key in enumerate(map(tuple, table[:, :depth].tolist())):
        found.setdefault(key, []).append(row)
    return [rows[i : i + most] for rows in found.values() for i in range(0, len(rows), most)]


def arranged(
    found: Probe, table: Tensor, most: int, rows: Callable[[int], int], overhead: float = OVERHEAD
) -> tuple[float, list[list[int]]]:
    """Which samples to compute in one vectorised pass, and what that costs in forward passes.

    Samples that take the same components in the first layers share all that these layers compute: a tree, cut at the
    depth where the arithmetic is least. Where all layers are the same, so is the network, and it is asked once.

    table: as `in_common` gives it. most: samples in a pass. rows: how many data a pass of so many samples has.
    overhead: what a pass costs besides, in data.
    """
    count, best = len(table), (float("inf"), list[list[int]]())
    for depth in range(table.shape[1] + 1):
        whole = depth == len(found.sites) > 0
        together = groups(table, depth, count if whole else most)
        size = 1 if whole else max(map(len, together))
        cost = found.cost(count, len(together), depth) + overhead * len(together) / rows(size)
        if cost < best[0]:
            best = (cost, together)
        if len(together) == count:
            break
    return best


@dataclass
class Noise(Mapping[int, Tensor]):
    """The noise of one sample, each site's drawn when it is asked for: members that are not asked cost nothing."""

    sites: dict[int, tuple[int, Site]]
    seed: int
    sample: int
    balanced: bool | None = None
    at_once: Callable[[int, int], Tensor | None] = lambda number, sample: None
    drawn: dict[int, Tensor] = field(default_factory=dict)

    def __getitem__(self, key: int) -> Tensor:
        if key not in self.drawn:
            number, site = self.sites[key]
            if (found := self.at_once(number, self.sample)) is None:
                found = noise(site, self.seed, number, [self.sample], self.balanced)[0]
            self.drawn[key] = found
        return self.drawn[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)
