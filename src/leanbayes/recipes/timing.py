"""Comparing the time of several things: they take turns, so that a slow phase of the machine affects all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer


def in_turns(
    work: Mapping[str, Callable[[], Any]], turns: int, clock: Callable[[], float] | None = None
) -> dict[str, list[float]]:
    """Seconds of each, turn by turn; a first turn, which pays for memory and code that are new, is not counted.

    clock: `time.thread_time` for work on one thread, where others want the processor too.

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
