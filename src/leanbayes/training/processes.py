"""Operations that all processes of a run do together; all must call them, in the same order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import batches
from ..errors import TrainingError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")


class Parameters:
    """Where the parameters of a run are: here every process has all of them; `sharded.Shards` divides them."""

    def adopt(self, optimizer: Optimizer) -> None:
        """Called after the set-up of the model: give the optimiser the parameters that the model has now."""

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """A block outside a training step in which the model has whole parameters; all processes enter it."""
        yield

    def gathered(self, content: Any) -> Any:
        """Nested values with whole tensors in place of shards; all processes take part."""
        return content

    def divided(self, stored: dict[str, Any], model: nn.Module) -> dict[str, Any]:
        """The content of a checkpoint with tensors as the model and its optimiser have them."""
        return stored

    def end(self) -> None:
        """Give the model and the optimiser whole parameters again; all processes take part."""


def together(fabric: Fabric, work: Callable[[], T]) -> T:
    """Return ``work()``; if it fails on one process, all of them raise instead of waiting.

    work: must not wait for other processes after anything that may fail.
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
    """The sum of ``work()`` over all processes."""
    return total(fabric, together(fabric, work))


def synchronise_buffers(fabric: Fabric, model: nn.Module) -> None:
    """Give every process the buffers of the first, as DDP does before a step."""
    if fabric.world_size > 1:
        for buffer in model.buffers():
            torch.distributed.broadcast(buffer, 0)


def in_precision(fabric: Fabric, model: nn.Module, inputs: Any, targets: Any = None) -> Any:
    """A forward pass in the precision of a run."""
    with fabric.autocast():
        return batches.call(model, fabric.strategy.precision.convert_input(inputs), targets)
