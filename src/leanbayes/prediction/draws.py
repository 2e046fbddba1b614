"""The noise of several samples, as a function of (seed, site, sample), and what samples have in common."""

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

OVERHEAD = 3.0  # the cost of a pass besides its data, in data
KEPT = 2**22  # random numbers that are cached for all models together: 16 MB
_kept: OrderedDict[tuple[Any, ...], Tensor] = OrderedDict()  # the latest used is the last


def kept_noise(site: Site, seed: int, number: int, samples: tuple[int, ...], balanced: bool | None) -> Tensor:
    """`noise` with a cache for predictions with the same seed, since drawing takes longer than a small layer."""
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
    """The number of random numbers of a site in one sample."""
    kind = site.noise_kind()
    return noise(site, 0, 0, (0,), None).numel() if kind is None else math.prod(kind[1])


def noise(site: Site, seed: int, number: int, samples: Sequence[int], balanced: bool | None) -> Tensor:
    """The noise of a site in each of the samples, (samples, ...).

    balanced: None is the default of the method. True balances: components of mixtures are used equally often, and every
        second sample has the Gaussian noise of the one before with the opposite sign (antithetic). False draws samples
        independently. A single sample has the same distribution in all three cases.
    """
    return site.of_samples(seed, number, samples, balanced)


def period(sites: Sequence[Site], balanced: bool | None) -> int | None:
    """The number of samples after which they repeat, or None; an ensemble has as many as members."""
    cycles = [site.cycle(balanced, alone=len(sites) == 1) for site in sites]
    return None if None in cycles else math.lcm(*(cycle for cycle in cycles if cycle is not None))


def in_common(sites: Sequence[Any], seed: int, samples: Sequence[int], balanced: bool | None) -> Tensor:
    """The indices of the leading sites with a single index in each sample, (samples, sites).

    sites: (number, site) in the order of their draws; the first that has more than one index ends the table.
    """
    columns = []
    for number, site in sites:
        if not site.single_index:
            break
        columns.append(noise(site, seed, number, samples, balanced).cpu())
    return torch.stack(columns, 1) if columns else torch.empty(len(samples), 0, dtype=torch.long)


def groups(table: Tensor, depth: int, most: int) -> list[list[int]]:
    """Groups of at most ``most`` rows that agree in the first ``depth`` columns.

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
    """The samples to compute in each vectorised pass, and the cost in forward passes.

    Samples with the same components in the first layers share the computation of these layers; the depth with the least
    arithmetic is chosen. Identical networks are computed once.

    table: of `in_common`. most: samples in a pass. rows: the number of data in a pass of that many samples.
    overhead: the cost of a pass besides its data, in data.
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
    """The noise of one sample, drawn by site when it is read, so that unused ensemble members cost nothing."""

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
