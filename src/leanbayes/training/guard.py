"""Checks of batches, gradients and parameters, and the undoing of a training step that failed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .. import batches
from ..errors import DataError, TrainingError
from .elbo import ELBO


class BatchError(DataError, TrainingError):
    """A batch has values that cannot be trained on; the model has not been changed."""


def check_inputs(inputs: Any, what: str = "") -> None:
    """Refuse inputs that are not finite; attention masks may be infinite.

    >>> check_inputs(torch.tensor([[1.0], [torch.nan]]))
    Traceback (most recent call last):
    leanbayes.training.guard.BatchError: the inputs of this batch are non-finite: nan at [1, 0]; ...
    """
    for name, tensor in batches.leaves(inputs):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or "mask" in name:
            continue
        if bool(torch.isfinite(tensor.detach().sum())):  # a sum is not finite if any term is not
            continue
        if len(bad := (~torch.isfinite(tensor)).nonzero()):
            where, value = bad[0].tolist(), tensor[tuple(bad[0])].item()
            of = f" of {name!r}" if name else ""
            raise BatchError(
                f"{what}the inputs of this batch are non-finite: {value} at {where}{of}; drop these data, or fill what "
                "is missing: torch.nan_to_num(x)"
            )


def finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all numbers of all tensors are finite.

    >>> finite([torch.ones(3), torch.tensor([1e30])]), finite([torch.tensor([torch.inf])])
    (True, False)
    """
    found = [t._values() if t.is_sparse else t for t in tensors]
    for kind in {type(t): None for t in found}:  # one norm cannot take sharded tensors and others together
        norm = torch.nn.utils.get_total_norm([t for t in found if type(t) is kind])
        if not bool(torch.isfinite(norm)):  # it may have overflowed
            return all(bool(torch.isfinite(t).all()) for t in found)
    return True


def check_gradients(trained: Mapping[str, Tensor], where: str, hint: str) -> None:
    """Refuse gradients that are not finite."""
    found = {name: p.grad for name, p in trained.items() if p.grad is not None}
    if not finite(found.values()):
        bad = next(name for name, gradient in found.items() if not finite([gradient]))
        raise TrainingError(
            f"{where}: the loss is finite, but the gradient of {bad!r} is not, so no step was taken; look for a square "
            f"root or a division at 0 behind it, or try a lower lr{hint}"
        )


def check_parameters(trained: Mapping[str, Tensor], where: str, hint: str) -> None:
    """Refuse parameters that are not finite."""
    if not finite(trained.values()):
        bad = next(name for name, p in trained.items() if not finite([p]))
        raise TrainingError(
            f"{where}: parameter {bad!r} is no longer finite, though its gradients were; try a lower lr{hint}"
        )


def batch_at_fault(model: nn.Module, batch: Any, inputs: Any, targets: Any, error: Exception) -> str | None:
    """Why a model failed on a batch, or None if that is not known."""
    if (why := dtype_at_fault(model, inputs, error)) is not None:
        return why
    if isinstance(batch, Mapping) and targets is None:
        return (
            f"expected a batch with 'labels', 'label' or 'targets' beside the model's arguments, received the keys "
            f"{', '.join(map(str, batch))} ({error})"
        )
    if "more than 1 value per channel" in str(error) and batches.size(inputs) == 1:
        return (
            "a batch of one datum is all that BatchNorm would average over; take another batch_size, or a DataLoader "
            "with drop_last=True"
        )
    return None


def dtype_at_fault(model: nn.Module, inputs: Any, error: Exception) -> str | None:
    """Why a model failed on inputs if it was because of their dtype, else None.

    >>> inputs = torch.ones(1, 2, dtype=torch.float64)
    >>> try:
    ...     nn.Linear(2, 2)(inputs)
    ... except RuntimeError as error:
    ...     dtype_at_fault(nn.Linear(2, 2), inputs, error)
    'expected inputs of torch.float32, as the parameters of the model, received torch.float64; pass x.float(), ...
    """
    text = str(error)
    if not isinstance(error, RuntimeError) or not any(word in text for word in ("dtype", "scalar type", "nput type")):
        return None
    wanted = [p.dtype for p in model.parameters() if p.is_floating_point()]
    found = [leaf.dtype for _, leaf in batches.leaves(inputs) if isinstance(leaf, Tensor)]
    if not wanted or not found or found[0] in wanted:
        return None
    other = f", or turn the model into the other: model.to({found[0]})" if found[0].is_floating_point else ""
    casts = {torch.float32: "x.float()", torch.float64: "x.double()", torch.float16: "x.half()"}
    return (
        f"expected inputs of {wanted[0]}, as the parameters of the model, received {found[0]}; pass "
        f"{casts.get(wanted[0], f'x.to({wanted[0]})')}{other}"
    )


@contextlib.contextmanager
def dtypes_explained(model: nn.Module, inputs: Any) -> Iterator[None]:
    """Run a block that calls a model, and turn an error about the dtype of the inputs into a DataError."""
    try:
        yield
    except RuntimeError as error:
        if (why := dtype_at_fault(model, inputs, error)) is not None:
            raise DataError(why) from error
        raise


class Undo:
    """Restores the buffers of a model and the step of the ELBO as they were when a training step began.

    Parameters change only in the optimiser's step, which comes last. Only buffers that have changed since the last step
    are copied, and running statistics always, since torch changes them without counting a version.
    """

    def __init__(self, model: nn.Module, elbo: ELBO) -> None:
        self.elbo = elbo
        self.held = [module._buffers for module in (*model.modules(), *elbo.modules())]
        self.kept: dict[tuple[int, str], tuple[Tensor, int, Tensor]] = {}
        self.step = 0

    @torch.no_grad()
    def mark(self) -> None:
        """Remember the state at the start of a step."""
        self.step = self.elbo.step
        old: list[Tensor] = []
        new: list[Tensor] = []
        for number, held in enumerate(self.held):
            for name, buffer in held.items():
                if buffer is None or buffer.is_meta:
                    continue
                known, version, copy = self.kept.get((number, name), (None, -1, buffer))
                if known is not buffer or copy.shape != buffer.shape or copy.dtype != buffer.dtype:
                    copy = buffer.clone()
                elif version != buffer._version or "running_mean" in held:
                    old.append(copy)
                    new.append(buffer)
                self.kept[number, name] = buffer, buffer._version, copy
        if old:
            torch._foreach_copy_(old, new)

    @torch.no_grad()
    def restore(self) -> None:
        """Put back the state at the start of the step."""
        self.elbo.step = self.step
        for (number, name), (buffer, _, copy) in self.kept.items():
            if name in self.held[number]:
                self.held[number][name] = buffer
                if not torch.equal(buffer, copy):
                    buffer.copy_(copy)
