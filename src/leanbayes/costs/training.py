"""The bytes and the time of training on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ..checks import whole_number
from ..errors import ConfigError, DataError


@dataclass(frozen=True)
class TrainingBytes:
    """The bytes that a model in training stores between two steps; activations come on top during a step.

    buffers: the indices of sparse weights, the statistics of BatchNorm. optimizer: its state.
    """

    parameters: int
    buffers: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All four."""
        return self.parameters + self.buffers + self.gradients + self.optimizer


def training_bytes(model: nn.Module, optimizer: Optimizer) -> TrainingBytes:
    """The bytes of parameters, buffers, gradients and optimiser state that exist now; shared storage counts once.

    Call it between ``optimizer.step()`` and the next ``zero_grad()``: before, gradients and state are not there yet.

    >>> import torch
    >>> model = nn.Linear(4, 3)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> model(torch.ones(1, 4)).sum().backward()
    >>> optimizer.step()
    >>> training_bytes(model, optimizer)
    TrainingBytes(parameters=60, buffers=0, gradients=60, optimizer=60)
    """
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(f"optimizer: expected a torch optimiser, received {type(optimizer).__name__}")
    own = {id(p) for p in model.parameters()}
    held = [p for group in optimizer.param_groups for p in group["params"]]
    if not any(id(p) in own for p in held):
        raise ConfigError(
            "optimizer: expected one that trains this model, received one that has none of its parameters"
        )
    if all(p.grad is None for p in held):
        raise DataError("training_bytes: expected gradients, found none; call it after a step, before zero_grad()")
    seen: set[int] = set()
    return TrainingBytes(
        parameters=_stored(model.parameters(), seen),
        buffers=_stored(model.buffers(), seen),
        gradients=_stored((p.grad for p in model.parameters()), seen),
        optimizer=_stored((v for state in optimizer.state.values() for v in state.values()), seen),
    )


def seconds_of(run: Callable[[], Any], repeats: int = 5) -> float:
    """The median time of a call by the clock, in seconds, after one call that is not timed.

    To compare two, time them in turns (``benchmarks/``): a machine is not the same from one minute to the next.

    >>> 0 <= seconds_of(lambda: None) < 1
    True
    """
    whole_number("repeats", repeats)
    run()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def _stored(tensors: Iterable[Any], seen: set[int]) -> int:
    """Bytes of the storages behind tensors, those not met before; anything but a tensor takes none."""
    total = 0
    for t in tensors:
        if not isinstance(t, Tensor) or t.numel() == 0:
            continue
        storage = t.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total
