"""The number of active weights of each layer, from the density of the whole network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

from ...errors import ConversionError

Allocation = Literal["uniform", "erdos-renyi"]
ALLOCATIONS: tuple[str, ...] = get_args(Allocation)


def uniform(shape: Sequence[int], density: float) -> int:
    """The same share of every layer.

    >>> uniform((10, 10), 0.05)
    5
    """
    return round(density * math.prod(shape))


def erdos_renyi(shapes: Sequence[Sequence[int]], density: float) -> list[int]:
    """A density in proportion to (n_in + n_out + k_1 + ...) / (n_in n_out k_1 ...), at most 1 (Evci et al., 2020).

    Small layers stay denser than large ones. The sum is round(density * number of all weights), exactly.

    >>> erdos_renyi([(8, 4), (64, 64), (10, 64)], 0.1)
    [27, 285, 165]
    """
    sizes = [math.prod(shape) for shape in shapes]
    total = round(density * sum(sizes))
    full: set[int] = set()
    while True:
        # layers that would have more weights than they can hold are full, and the others share the rest
        left = {i: sum(shape) for i, shape in enumerate(shapes) if i not in full}
        budget = total - sum(sizes[i] for i in full)
        scale = budget / max(sum(left.values()), 1)
        over = {i for i, weight in left.items() if scale * weight > sizes[i]}
        if not over:
            break
        full |= over
    wanted = [float(sizes[i]) if i in full else scale * left[i] for i in range(len(shapes))]
    return _rounded(wanted, total)


def check(names: Sequence[str], sizes: Sequence[int], counts: Sequence[int], density: float) -> None:
    """Refuse layers without an active weight."""
    for name, size, count in zip(names, sizes, counts, strict=True):
        if count < 1:
            where = f"{name}: " if name else ""
            raise ConversionError(
                f"{where}expected a layer with at least one active weight, received one of {size} weights at density "
                f'{density}; leave it dense with a rule {{"{name}": None}}, or raise the density'
            )


def _rounded(wanted: list[float], total: int) -> list[int]:
    """Whole numbers with this total: rounded down, then the largest remainders up."""
    counts = [math.floor(x) for x in wanted]
    order = sorted(range(len(wanted)), key=lambda i: counts[i] - wanted[i])
    for i in order[: total - sum(counts)]:
        counts[i] += 1
    return counts
