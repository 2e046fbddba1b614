"""Comparing times: the compared functions run in turns, so that a slow phase of the machine affects all of them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer


def in_turns(
    work: Mapping[str, Callable[[], Any]], turns: int, clock: Callable[[], float] | None = None
) -> dict[str, list[float]]:
    """Seconds of each function, by turn, without a first turn that allocates memory and loads code.

    clock: `time.thread_time` for single-threaded work on a busy machine.
    >>> found = in_turns({"a": lambda: None, "b": lambda: None}, turns=3)
    >>> [len(seconds) for seconds in found.values()]
    [3, 3]
    """
    now = clock or time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(turns + 1):
        for name, once in work.items():
            began = now()
            once()
            if turn:
                seconds[name].append(now() - began)
    return seconds


def training_step(
    model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[], None]:
    """A whole training step as a function; loss: of outputs and targets."""

    def step() -> None:
        model.train()
        optimizer.zero_grad(set_to_none=True)
        loss(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def times_as_long(others: Sequence[float], own: Sequence[float]) -> float:
    """The median over turns of how many times as long the others took.

    >>> times_as_long([2.0, 6.0, 3.0], [1.0, 2.0, 1.0])
    3.0
    """
    return statistics.median(a / b for a, b in zip(others, own, strict=True))


@dataclass(frozen=True)
class Ratio:
    """How many times as long something takes: the median over turns, and its 95 % interval.

    >>> str(Ratio(2.114, 2.06, 2.2))
    '2.11x (2.06 to 2.20)'
    """

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f}x ({self.low:.2f} to {self.high:.2f})"


def ratio(others: Sequence[float], own: Sequence[float]) -> Ratio:
    """How many times as long the others took; the interval assumes only that turns are independent.

    The k-th smallest and largest of n ratios enclose the median unless fewer than k of them are on one side of it, as
    heads among n coins. For five turns or fewer the interval is their range.
    >>> ratio([2.0, 6.0, 3.0], [1.0, 2.0, 1.0])
    Ratio(median=3.0, low=2.0, high=3.0)
    """
    found = sorted(a / b for a, b in zip(others, own, strict=True))
    n, k, below = len(found), 0, 0.5 ** len(found)
    while below <= 0.025 and k < n // 2:
        k += 1
        below += math.comb(n, k) * 0.5**n
    k = max(k, 1)
    return Ratio(statistics.median(found), found[k - 1], found[n - k])
