"""What may enter a metric: the checks that every pure function and every stream shares, and the index they name."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import EvaluationError

_HALF = (torch.float16, torch.bfloat16)


def classification(
    probs: Tensor, targets: Tensor, *, start: int = 0, ignore_index: int | None = None
) -> tuple[Tensor, Tensor]:
    """Class probabilities (N, C) in float64 and labels (N,), checked; positions of images and sequences fold into N.

    probs: (N, C), or (N, C, *positions) as a segmentation network gives them; targets: (N,) or (N, *positions).
    start: the number of the first datum, so that a stream names the offending datum of the whole data set.
    ignore_index: the label of positions that do not count (they may hold anything).

    >>> p, y = classification(torch.full((2, 3, 4, 4), 1 / 3), torch.zeros(2, 4, 4, dtype=torch.long))
    >>> p.shape, y.shape
    (torch.Size([32, 3]), torch.Size([32]))
    >>> classification(torch.tensor([[0.5, 0.5], [0.9, 0.3]]), torch.tensor([0, 1]))
    Traceback (most recent call last):
    leanbayes.errors.EvaluationError: probs[1]: expected a row that sums to 1, received a sum of 1.2; ...
    """
    _tensor(probs, "probs")
    _tensor(targets, "targets")
    if probs.ndim < 2 or probs.shape[1] < 2:
        raise EvaluationError(
            f"probs: expected shape (N, C) or (N, C, ...) with C >= 2 classes, received {tuple(probs.shape)}; "
            f"for two classes give both columns: torch.stack([1 - p, p], 1)"
        )
    shape = (probs.shape[0], *probs.shape[2:])
    if targets.ndim == len(shape) + 1 and targets.shape[1] == 1:
        targets = targets.squeeze(1)
    if tuple(targets.shape) != shape:
        raise EvaluationError(
            f"targets: expected shape {shape} to go with probs of shape {tuple(probs.shape)}, "
            f"received {tuple(targets.shape)}; labels are class numbers, not one-hot rows (try targets.argmax(1))"
        )
    if not probs.is_floating_point():
        raise EvaluationError(f"probs: expected floating point probabilities, received {probs.dtype}")
    if targets.is_floating_point() or targets.is_complex() or targets.dtype is torch.bool:
        raise EvaluationError(f"targets: expected integer labels, received {targets.dtype}; try targets.long()")
    tolerance = 1e-2 if probs.dtype in _HALF else 1e-4
    classes, positions = probs.shape[1], shape[1:]
    rows = _double(probs).movedim(1, -1).reshape(-1, classes)
    labels = targets.detach().reshape(-1).to(rows.device).long()
    kept = torch.arange(len(labels), device=labels.device)
    if ignore_index is not None:
        kept = kept[labels != ignore_index]
        rows, labels = rows[kept], labels[kept]

    def where(bad: Tensor) -> tuple[int, str]:
        row = int(bad.nonzero()[0, 0])
        return row, _index(int(kept[row]), positions, start)

    sums = rows.sum(1)  # one cheap pass finds NaN and infinity too
    if not bool(torch.isfinite(sums).all()):
        row, name = where(~torch.isfinite(sums))
        raise EvaluationError(
            f"probs[{name}]: expected finite probabilities, received {_short(rows[row])}; "
            f"look for NaN in the model's outputs for this datum"
        )
    if len(rows) and float(rows.min()) < -tolerance:
        row, name = where((rows < -tolerance).any(1))
        raise EvaluationError(
            f"probs[{name}]: expected probabilities of 0 or more, received {_short(rows[row])}; "
            f"these look like logits: try logits.softmax(1)"
        )
    if bool(((sums - 1).abs() > tolerance).any()):
        row, name = where((sums - 1).abs() > tolerance)
        raise EvaluationError(
            f"probs[{name}]: expected a row that sums to 1, received a sum of {float(sums[row]):.6g}; "
            f"normalise first, for example with logits.softmax(1)"
        )
    if bool(((labels < 0) | (labels >= classes)).any()):
        row, name = where((labels < 0) | (labels >= classes))
        raise EvaluationError(
            f"targets[{name}]: expected a label in 0..{classes - 1}, received {int(labels[row])}; "
            f"the model has {classes} classes (labels to leave out: ignore_index={int(labels[row])})"
        )
    return rows, labels


def regression(targets: Tensor, start: int = 0, **predictions: Tensor) -> tuple[Tensor, ...]:
    """Targets and predictions (mean, lower, upper, ...) in float64 as (N, D), checked to be finite and of one shape.

    >>> y, mean = regression(torch.zeros(3), mean=torch.ones(3, 1))
    >>> y.shape, mean.shape
    (torch.Size([3, 1]), torch.Size([3, 1]))
    """
    _tensor(targets, "targets")
    if targets.ndim == 0:
        raise EvaluationError("targets: expected shape (N,) or (N, D), received a scalar; try targets.reshape(1)")
    truth = finite(targets, "targets", start)
    flat = [truth.reshape(len(truth), -1) if len(truth) else truth.reshape(0, 1)]
    for name, values in predictions.items():
        _tensor(values, name)
        # (N,) and (N, 1) are the same thing; letting them broadcast to (N, N) is the classic silent mistake.
        if _without_ones(values.shape) != _without_ones(targets.shape):
            raise EvaluationError(
                f"{name}: expected shape {tuple(targets.shape)} like the targets, received {tuple(values.shape)}"
            )
        flat.append(finite(values, name, start).to(truth.device).reshape(flat[0].shape))
    return tuple(flat)


def finite(values: Tensor, name: str, start: int = 0) -> Tensor:
    """The values in float64, if all are finite.

    >>> finite(torch.tensor([0.0, float("nan")]), "scores", start=100)
    Traceback (most recent call last):
    leanbayes.errors.EvaluationError: scores[101]: expected a finite number, received nan; ...
    """
    _tensor(values, name)
    values = _double(values)
    if not bool(torch.isfinite(values).all()):
        position = (~torch.isfinite(values)).nonzero()[0].tolist()
        value = float(values[tuple(position)])
        position = [start + position[0], *position[1:]] if position else position
        raise EvaluationError(
            f"{name}[{', '.join(map(str, position))}]: expected a finite number, received {value}; "
            f"look at this datum, or leave it out"
        )
    return values


def nonempty(count: int, what: str) -> None:
    """Refuse to average nothing."""
    if count == 0:
        raise EvaluationError(f"{what}: expected at least one datum, received none; is the loader empty?")


def _tensor(value: object, name: str) -> None:
    if not isinstance(value, Tensor):
        raise EvaluationError(f"{name}: expected a torch tensor, received {type(value).__name__}; try torch.as_tensor")


def _double(values: Tensor) -> Tensor:
    """In float64, where it exists: Apple's GPU has none."""
    values = values.detach()
    return (values.cpu() if values.device.type == "mps" else values).double()


def _without_ones(shape: torch.Size) -> tuple[int, ...]:
    return tuple(shape[:1]) + tuple(s for s in shape[1:] if s != 1)


def _index(flat: int, positions: tuple[int, ...], start: int) -> str:
    """The index of a folded row as the user would type it: datum, then position."""
    numbers: list[int] = []
    for size in reversed(positions):
        flat, inner = divmod(flat, size)
        numbers.insert(0, inner)
    return ", ".join(map(str, [start + flat, *numbers]))


def _short(row: Tensor) -> str:
    shown = ", ".join(f"{v:.4g}" for v in row[:4].tolist())
    return f"[{shown}{', ...' if len(row) > 4 else ''}]"
