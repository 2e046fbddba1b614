"""How long a prediction takes: for one datum, and for a batch of them; measured, quickly."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from .. import batches

BUDGET = 2.0
"""Seconds that measuring may take, about; a prediction that takes longer is measured once a size."""
BATCH = 64
REPEATS = 15


def latency(answer: Callable[[Any], Any], inputs: Any) -> tuple[dict[str, float], dict[str, Any]]:
    """The median time of a prediction in seconds, for one datum and for a batch, and how it was measured.

    answer: predicts inputs, all samples included. inputs: a batch. The first call of each size warms up and is not
    counted, unless it alone takes the time there is. The batch has 64 data for every model, fast or slow, so that times
    can be compared; less only where there are not as many.

    >>> import torch
    >>> times, how = latency(lambda x: x.sum(), torch.zeros(100, 4))
    >>> sorted(times), how["batch"]
    (['latency_batch', 'latency_one'], 64)
    """
    import torch

    size = min(batches.size(inputs), BATCH)
    one = _median(answer, batches.rows(inputs, 0, 1), BUDGET / 4)
    many = one if size == 1 else _median(answer, batches.rows(inputs, 0, size), BUDGET / 2)
    how = {"batch": size, "threads": torch.get_num_threads()}
    return {"latency_one": one, "latency_batch": many}, how


def _median(answer: Callable[[Any], Any], inputs: Any, budget: float) -> float:
    first = _timed(answer, inputs)
    if first > budget:
        return first
    times = [_timed(answer, inputs)]
    while sum(times) + times[0] < budget - first and len(times) < REPEATS:
        times.append(_timed(answer, inputs))
    return statistics.median(times)


def _timed(answer: Callable[[Any], Any], inputs: Any) -> float:
    began = time.perf_counter()
    answer(inputs)
    return time.perf_counter() - began
