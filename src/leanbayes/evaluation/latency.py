"""Measured time of a prediction, for one datum and for a batch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from .. import batches

BUDGET = 2.0
"""Approximate limit on the seconds of measuring; a prediction that takes longer is timed once per size."""
BATCH = 64
REPEATS = 15


def latency(predict: Callable[[Any], Any], inputs: Any) -> tuple[dict[str, float], dict[str, Any]]:
    """The median time of a prediction in seconds, for one datum and for a batch, and how it was measured.

    predict: a function of the inputs that computes all samples. inputs: a batch. The first call of each size is a
    warm-up and is not counted, unless it takes longer than the time limit. The batch has 64 data for every model, so
    that times can be compared, or fewer if there are not as many.

    >>> import torch
    >>> times, how = latency(lambda x: x.sum(), torch.zeros(100, 4))
    >>> sorted(times), how["batch"]
    (['latency_batch', 'latency_one'], 64)
    """
    import torch

    size = min(batches.size(inputs), BATCH)
    one_seconds = _median(predict, batches.rows(inputs, 0, 1), BUDGET / 4)
    batch_seconds = one_seconds if size == 1 else _median(predict, batches.rows(inputs, 0, size), BUDGET / 2)
    setting = {"batch": size, "threads": torch.get_num_threads()}
    return {"latency_one": one_seconds, "latency_batch": batch_seconds}, setting


def _median(predict: Callable[[Any], Any], inputs: Any, budget: float) -> float:
    first = _timed(predict, inputs)
    if first > budget:
        return first
    times = [_timed(predict, inputs)]
    while sum(times) + times[0] < budget - first and len(times) < REPEATS:
        times.append(_timed(predict, inputs))
    return statistics.median(times)


def _timed(predict: Callable[[Any], Any], inputs: Any) -> float:
    began = time.perf_counter()
    predict(inputs)
    return time.perf_counter() - began
