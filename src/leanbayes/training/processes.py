"""What the processes of one run do together: all of them must call these, in the same order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from ..errors import TrainingError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")


def together(fabric: Fabric, work: Callable[[], T]) -> T:
    """What ``work`` returns; where it fails on one process, all of them raise instead of waiting for that one.

    work: waits for no other process behind anything that may fail.
    """
    if fabric.world_size == 1:
        return work()
    mine: Exception | None = None
    try:
        done = work()
    except Exception as error:
        mine = error
    failed = total(fabric, torch.tensor(float(mine is not None)))
    if mine is not None:
        raise mine
    if bool(failed):
        raise TrainingError("stopped, since another process has failed; see its message")
    return done


def total(fabric: Fabric, value: Tensor) -> Tensor:
    """The sum of a tensor over all processes, on the CPU."""
    if fabric.world_size == 1:
        return value
    # Single precision where the device has no other; counts are exact in it up to 2^24.
    exact = torch.float32 if fabric.device.type == "mps" else torch.float64
    summed: Any = fabric.all_reduce(value.to(fabric.device, exact), reduce_op="sum")
    return summed.cpu()


def total_of(fabric: Fabric, work: Callable[[], Tensor]) -> Tensor:
    """The sum of what ``work`` returns over all processes."""
    return total(fabric, together(fabric, work))


def synchronise_buffers(fabric: Fabric, model: nn.Module) -> None:
    """Give every process the buffers of the first, as DDP does before a step: running statistics have diverged."""
    if fabric.world_size > 1:
        for buffer in model.buffers():
            torch.distributed.broadcast(buffer, 0)
