"""Predictions compared with the labels of several annotators, and uncertainty with their disagreement.

The targets are distributions over classes: shares of the annotators (floating point rows that sum to 1), or counts of
their votes (integers), in the shape of the probabilities; `votes` makes counts of labels or masks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...checks import whole_number
from ...errors import EvaluationError
from . import checks
from .checks import FLOOR


def votes(labels: Tensor, num_classes: int, *, ignore_index: int | None = None) -> Tensor:
    """How many annotators chose each class: labels (N, A, *positions) of A annotators to counts (N, C, *positions).

    labels: integers, or bool for masks of class 1 (LIDC's four outlines of a nodule: (N, 4, H, W)).
    ignore_index: the label of an annotator who abstains.

    >>> masks = torch.tensor([[[True, False]], [[True, True]], [[False, False]], [[True, False]]]).unsqueeze(0)
    >>> votes(masks, 2).tolist()  # of 4 people, 3 see it in the first pixel and 1 in the second
    [[[[1, 3]], [[3, 1]]]]
    """
    if not isinstance(labels, Tensor) or labels.ndim < 2 or labels.is_floating_point() or labels.is_complex():
        got = f"{labels.dtype} of shape {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise EvaluationError(f"votes: expected integer or bool labels (N, annotators, ...), received {got}")
    num_classes = whole_number("num_classes", num_classes, at_least=2, at_most=2**20, error=EvaluationError)
    labels = labels.long()
    counted = torch.ones_like(labels, dtype=torch.bool) if ignore_index is None else labels != ignore_index
    bad = counted & ((labels < 0) | (labels >= num_classes))
    if bool(bad.any()):
        where = bad.nonzero()[0].tolist()
        raise EvaluationError(
            f"votes: labels[{', '.join(map(str, where))}]: expected a label in 0..{num_classes - 1}, "
            f"received {int(labels[tuple(where)])}; an annotator who abstains: ignore_index={int(labels[tuple(where)])}"
        )
    shape = (labels.shape[0], num_classes, *labels.shape[2:])
    zeros = torch.zeros(shape, dtype=torch.long, device=labels.device)
    return zeros.scatter_add_(1, labels.where(counted, 0), counted.long())


def cross_entropy(probs: Tensor, targets: Tensor, *, ignore_index: int | None = None) -> float:
    """The mean cross-entropy of the prediction p under the annotators' labels q, in nats: -(1/N) sum_i sum_c q_ic log
    p_ic.

    Probabilities below the smallest normal float32 count as that, as in `nll`.
    probs: (N, C) or (N, C, *positions); targets: shares or votes, the same shape.

    >>> round(cross_entropy(torch.tensor([[0.5, 0.5]]), torch.tensor([[3, 1]])), 4)
    0.6931
    """
    return _mean("cross_entropy", probs, targets, ignore_index)


def kl(probs: Tensor, targets: Tensor, *, ignore_index: int | None = None) -> float:
    """The mean KL divergence from the prediction to the annotators' labels, in nats: (1/N) sum_i KL(q_i || p_i).

    `cross_entropy` less the entropy of the labels: zero where the prediction equals them.

    >>> kl(torch.tensor([[0.25, 0.75]]), torch.tensor([[1, 3]]))
    0.0
    """
    return _mean("kl", probs, targets, ignore_index)


def distance(probs: Tensor, targets: Tensor, *, ignore_index: int | None = None) -> float:
    """The mean total variation distance: (1/N) sum_i 1/2 sum_c |p_ic - q_ic|, in [0, 1] (Baan et al. 2022, DistCE).

    >>> distance(torch.tensor([[0.5, 0.5]]), torch.tensor([[3, 1]]))
    0.25
    """
    return _mean("distance", probs, targets, ignore_index)


def entropy_gap(probs: Tensor, targets: Tensor, *, ignore_index: int | None = None) -> float:
    """The mean of H[p_i] - H[q_i] in nats: above 0 the model is less certain than the annotators, below 0 more.

    Signed (Baan et al. 2022, EntCE); gaps of both signs cancel, `distance` does not.

    >>> round(entropy_gap(torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]])), 4)
    0.6931
    """
    return _mean("entropy_gap", probs, targets, ignore_index)


def each(p: Tensor, shares: Tensor) -> dict[str, Tensor]:
    """All four of each datum, (N, C) and (N, C) to (N,): inputs are checked already."""
    cross = -(shares * p.clamp(FLOOR, 1).log()).sum(1)
    entropy = torch.special.entr(shares).sum(1)
    return {
        "cross_entropy": cross,
        "kl": (cross - entropy).clamp(min=0),
        "distance": 0.5 * (p - shares).abs().sum(1),
        "entropy_gap": torch.special.entr(p.clamp(0, 1)).sum(1) - entropy,
    }


def _mean(name: str, probs: Tensor, targets: Tensor, ignore_index: int | None) -> float:
    p, _, shares, _ = checks.classified(probs, targets, ignore_index=ignore_index)
    checks.nonempty(len(p), f"human.{name}")
    if shares is None:
        raise EvaluationError(
            f"human.{name}: expected shares or votes of shape {tuple(probs.shape)}, received labels of shape "
            f"{tuple(targets.shape)}; for labels by several annotators: from leanbayes.evaluation import votes, then "
            "votes(labels, num_classes)"
        )
    return float(each(p, shares)[name].mean())
