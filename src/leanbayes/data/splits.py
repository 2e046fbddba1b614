"""Deterministic splits of data."""

from __future__ import annotations

import numpy as np


def hold_out(strata: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions kept and held out, both sorted, with the same share of each stratum in both (to one datum).

    `strata` is (n,), the labels for classification; all equal gives a plain random split.

    >>> kept, held = hold_out(np.array([0, 0, 0, 0, 1, 1]), fraction=0.5, seed=0)
    >>> len(held), np.bincount(np.array([0, 0, 0, 0, 1, 1])[held]).tolist()
    (3, [2, 1])
    """
    # RandomState, since numpy never changes its stream; a Generator's may change
    random = np.random.RandomState(seed)
    # members of a stratum get evenly spaced ranks in (0, 1), so any prefix of the ranking holds its share
    rank = np.empty(len(strata))
    for stratum in np.unique(strata):
        members = random.permutation(np.flatnonzero(strata == stratum))
        rank[members] = (np.arange(len(members)) + 0.5) / len(members)
    order, count = np.argsort(rank, kind="stable"), round(fraction * len(strata))
    return np.sort(order[count:]), np.sort(order[:count])


def hold_out_groups(groups: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions kept and held out, with no group on both sides.

    >>> kept, held = hold_out_groups(np.array([7, 7, 8, 8, 9, 9]), fraction=1 / 3, seed=0)
    >>> len(kept), len(held)
    (4, 2)
    """
    known = np.unique(groups)
    _, held = hold_out(np.zeros(len(known)), fraction, seed)
    mask = np.isin(groups, known[held])
    return np.flatnonzero(~mask), np.flatnonzero(mask)
