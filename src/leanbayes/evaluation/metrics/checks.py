"""Checks of predictions and targets, shared by all metrics; errors name the index of the offending datum."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import EvaluationError

FLOOR = torch.finfo(torch.float32).tiny
"""The lower limit on probabilities in NLL: 1.2e-38, so that a true class with probability 0 costs 87.3 nats."""
_HALF = (torch.float16, torch.bfloat16)


class Checked(NamedTuple):
    """Rows that count.

    probs: (N, C) in float64. labels: (N,). shares: of annotators for each class, (N, C) in float64, if targets have
    them.
    kept: (N,), which of all positions, folded, they are.
    """

    probs: Tensor
    labels: Tensor
    shares: Tensor | None
    kept: Tensor


def classification(
    probs: Tensor, targets: Tensor, *, start: int = 0, ignore_index: int | None = None
) -> tuple[Tensor, Tensor]:
    """Class probabilities (N, C) in float64 and labels (N,), as `classified` has them.

    >>> p, y = classification(torch.full((2, 3, 4, 4), 1 / 3), torch.zeros(2, 4, 4, dtype=torch.long))
    >>> p.shape, y.shape
    (torch.Size([32, 3]), torch.Size([32]))
    >>> classification(torch.tensor([[0.5, 0.5], [0.9, 0.3]]), torch.tensor([0, 1]))
    Traceback (most recent call last):
    leanbayes.errors.EvaluationError: probs[1]: expected a row that sums to 1, received a sum of 1.2; ...
    """
    checked = classified(probs, targets, start=start, ignore_index=ignore_index)
    return checked.probs, checked.labels


def classified(probs: Tensor, targets: Tensor, *, start: int = 0, ignore_index: int | None = None) -> Checked:
    """Probabilities and targets, checked; positions of images and sequences fold into N.

    probs: (N, C), or (N, C, *positions) as a segmentation network gives them.
    targets: labels (N,) or (N, *positions); or, in the shape of probs, those of several annotators: rows of shares
    that sum to 1 (floating point), or counts of votes (integers). The label is then that of the majority, the first on
    a tie.
    start: the number of the first datum, so that a stream names the offending datum of the whole data set.
    ignore_index: the label of positions that do not count (they may hold anything); given one, positions without any
    vote do not count either.

    >>> classified(torch.tensor([[0.5, 0.5]]), torch.tensor([[1, 3]])).shares
    tensor([[0.2500, 0.7500]], dtype=torch.float64)
    """
    dense(probs, "probs")
    dense(targets, "targets")
    if probs.ndim < 2 or probs.shape[1] < 2:
        raise EvaluationError(
            f"probs: expected shape (N, C) or (N, C, ...) with C >= 2 classes, received {tuple(probs.shape)}; "
            f"for two classes give both columns: torch.stack([1 - p, p], 1)"
        )
    if not probs.is_floating_point():
        raise EvaluationError(f"probs: expected floating point probabilities, received {probs.dtype}")
    classes, shape = probs.shape[1], (probs.shape[0], *probs.shape[2:])
    several = targets.shape == probs.shape
    if targets.ndim == probs.ndim and targets.shape[1] == 1:
        targets = targets.squeeze(1)
    if not several and tuple(targets.shape) != shape:
        many = targets.ndim == probs.ndim and targets.shape[:1] + targets.shape[2:] == shape
        hint = f"from leanbayes.evaluation import votes, then votes(targets, num_classes={classes})"
        raise EvaluationError(
            f"targets: expected shape {shape}, or {tuple(probs.shape)} for votes of annotators, to go with probs "
            f"of shape {tuple(probs.shape)}, received {tuple(targets.shape)}"
            + (f"; labels by several people: {hint}" if many else "")
        )
    if targets.is_complex() or targets.dtype is torch.bool or (targets.is_floating_point() and not several):
        raise EvaluationError(f"targets: expected integer labels, received {targets.dtype}; try targets.long()")
    rows = _rows(probs)
    votes = _rows(targets).to(rows.device) if several else None
    labels = votes.argmax(1) if votes is not None else targets.detach().reshape(-1).to(rows.device).long()
    kept = torch.arange(len(labels), device=labels.device)
    if ignore_index is not None:
        kept = kept[labels != ignore_index] if votes is None else kept[votes.sum(1) != 0]
        rows, labels, votes = rows[kept], labels[kept], None if votes is None else votes[kept]
    where = _Where(kept, shape[1:], start)
    _probabilities(rows, "probs", where, 1e-2 if probs.dtype in _HALF else 1e-4)
    if votes is not None:
        return Checked(rows, labels, _shares(votes, targets.dtype, where), kept)
    if bool(((labels < 0) | (labels >= classes)).any()):
        row, name = where.first((labels < 0) | (labels >= classes))
        raise EvaluationError(
            f"targets[{name}]: expected a label in 0..{classes - 1}, received {int(labels[row])}; "
            f"the model has {classes} classes (labels to leave out: ignore_index={int(labels[row])})"
        )
    return Checked(rows, labels, None, kept)


def regression(targets: Tensor, start: int = 0, **predictions: Tensor) -> tuple[Tensor, ...]:
    """Targets and predictions (mean, lower, upper, ...) in float64 as (N, D), checked to be finite and of one shape.

    >>> y, mean = regression(torch.zeros(3), mean=torch.ones(3, 1))
    >>> y.shape, mean.shape
    (torch.Size([3, 1]), torch.Size([3, 1]))
    """
    dense(targets, "targets")
    if targets.ndim == 0:
        raise EvaluationError("targets: expected shape (N,) or (N, D), received a scalar; try targets.reshape(1)")
    truth = finite(targets, "targets", start)
    flat = [truth.reshape(len(truth), -1) if len(truth) else truth.reshape(0, 1)]
    for name, values in predictions.items():
        dense(values, name)
        # (N,) and (N, 1) are equivalent; broadcasting them to (N, N) would be a silent mistake.
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
    dense(values, name)
    values = double(values)
    if not bool(torch.isfinite(values).all()):
        position = (~torch.isfinite(values)).nonzero()[0].tolist()
        value = float(values[tuple(position)])
        position = [start + position[0], *position[1:]] if position else position
        raise EvaluationError(
            f"{name}[{', '.join(map(str, position))}]: expected a finite number, received {value}; "
            f"look at this datum, or leave it out"
        )
    return values


def mean_of(
    name: str, each: Callable[[Tensor, Tensor], Tensor], probs: Tensor, targets: Tensor, ignore_index: int | None
) -> float:
    """The mean over data of ``each(probs, labels)``, whose inputs are checked; name: of the metric, for messages."""
    p, y = classification(probs, targets, ignore_index=ignore_index)
    nonempty(len(y), name)
    return float(each(p, y).mean())


def nonempty(count: int, what: str) -> None:
    """Refuse a count of 0 data."""
    if count == 0:
        raise EvaluationError(f"{what}: expected at least one datum, received none; is the loader empty?")


class _Where(NamedTuple):
    """Which datum and position a checked row was: the rows that were kept, the shape of positions, the first datum."""

    kept: Tensor
    positions: tuple[int, ...]
    start: int

    def first(self, bad: Tensor) -> tuple[int, str]:
        """The first bad row, and its index as the user would type it: datum, then position."""
        row = int(bad.nonzero()[0, 0])
        flat = int(self.kept[row])
        numbers: list[int] = []
        for size in reversed(self.positions):
            flat, inner = divmod(flat, size)
            numbers.insert(0, inner)
        return row, ", ".join(map(str, [self.start + flat, *numbers]))


def _probabilities(rows: Tensor, what: str, where: _Where, tolerance: float) -> None:
    """Refuse rows that are not distributions over classes."""
    sums = rows.sum(1)  # one cheap pass finds NaN and infinity too
    if not bool(torch.isfinite(sums).all()):
        row, name = where.first(~torch.isfinite(sums))
        raise EvaluationError(
            f"{what}[{name}]: expected finite probabilities, received {_short(rows[row])}; "
            + ("look for NaN in the model's outputs for this datum" if what == "probs" else "look at this datum")
        )
    if len(rows) and float(rows.min()) < -tolerance:
        row, name = where.first((rows < -tolerance).any(1))
        raise EvaluationError(
            f"{what}[{name}]: expected probabilities of 0 or more, received {_short(rows[row])}"
            + ("; these look like logits: try logits.softmax(1)" if what == "probs" else "")
        )
    if bool(((sums - 1).abs() > tolerance).any()):
        row, name = where.first((sums - 1).abs() > tolerance)
        hint = "normalise first, for example with logits.softmax(1)"
        raise EvaluationError(
            f"{what}[{name}]: expected a row that sums to 1, received a sum of {float(sums[row]):.6g}; "
            + (hint if what == "probs" else "counts of votes are integers: try targets.long()")
        )


def _shares(votes: Tensor, dtype: torch.dtype, where: _Where) -> Tensor:
    """The annotators' shares as rows that sum to exactly 1, from shares or from counts of votes."""
    if dtype.is_floating_point:
        _probabilities(votes, "targets", where, 1e-2 if dtype in _HALF else 1e-4)
        votes = votes.clamp(min=0)
        return votes / votes.sum(1, keepdim=True)
    if len(votes) and float(votes.min()) < 0:
        row, name = where.first((votes < 0).any(1))
        raise EvaluationError(f"targets[{name}]: expected counts of votes, received {_short(votes[row])}")
    total = votes.sum(1, keepdim=True)
    if bool((total == 0).any()):
        _, name = where.first(total[:, 0] == 0)
        raise EvaluationError(
            f"targets[{name}]: expected at least one vote, received none; leave this datum out, "
            f"or give an ignore_index, which leaves out all data without a vote"
        )
    return votes / total


def _rows(values: Tensor) -> Tensor:
    """(N, C, *positions) as rows of classes in float64."""
    return double(values).movedim(1, -1).reshape(-1, values.shape[1])


def dense(value: object, name: str) -> None:
    """Refuse anything but a dense tensor with values."""
    if not isinstance(value, Tensor):
        raise EvaluationError(f"{name}: expected a torch tensor, received {type(value).__name__}; try torch.as_tensor")
    if value.is_meta or value.layout != torch.strided:
        kind = "on the meta device" if value.is_meta else f"of layout {value.layout}"
        raise EvaluationError(f"{name}: expected a dense tensor with values, received one {kind}; try to_dense()")


def double(values: Tensor) -> Tensor:
    """In float64, where it exists: Apple's GPU has none."""
    values = values.detach()
    return (values.cpu() if values.device.type == "mps" else values).double()


def _without_ones(shape: torch.Size) -> tuple[int, ...]:
    return tuple(shape[:1]) + tuple(s for s in shape[1:] if s != 1)


def _short(row: Tensor) -> str:
    shown = ", ".join(f"{v:.4g}" for v in row[:4].tolist())
    return f"[{shown}{', ...' if len(row) > 4 else ''}]"
