"""Conformal scores of classes and of real targets, and what a threshold makes of them; pure functions of tensors.

A score is small where an answer fits the prediction. Split conformal prediction (Vovk et al. 2005) takes the
ceil((n + 1) * coverage)-th smallest score of n data that training has not seen as the threshold; a new datum's true
answer then has a score at most as large with probability ``coverage`` or more, whatever the model and the
distribution, as long as the datum is exchangeable with those n. Equal scores only raise that probability.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .config import Conformal, Score, rank


def class_scores(
    probs: Tensor, score: Score, *, lam: float = 0.01, k_reg: int = 5, uniform: Tensor | None = None
) -> Tensor:
    """The score of every class of every datum (N, C), in double.

    lac: 1 - p_y (Sadinle et al. 2019). aps: the probability of all classes that are at least as probable as y, y
    included (Romano et al. 2020). raps: aps + lam * max(0, rank of y - k_reg) (Angelopoulos et al. 2021).
    uniform: (N,) numbers in [0, 1); aps and raps then count y's own probability by 1 - uniform alone.

    >>> class_scores(torch.tensor([[0.2, 0.7, 0.1]]), "aps")
    tensor([[0.9000, 0.7000, 1.0000]], dtype=torch.float64)
    """
    p = probs.detach().double()
    if score == "lac":
        return 1 - p
    ordered, order = p.sort(dim=1, descending=True, stable=True)
    total = ordered.cumsum(1)
    if uniform is not None:
        total = total - uniform.to(p)[:, None] * ordered
    if score == "raps":
        ranks = torch.arange(1, p.shape[1] + 1, device=p.device, dtype=p.dtype)
        total = total + lam * (ranks - k_reg).clamp_min(0)
    return torch.empty_like(total).scatter_(1, order, total)


def class_sets(probs: Tensor, found: Conformal, uniform: Tensor | None = None) -> Tensor:
    """Which classes are in the set of each datum: booleans (N, C).

    uniform: for a randomised score, by default `uniform_of` the probabilities.
    """
    if not found.randomized:
        uniform = None
    elif uniform is None:
        uniform = uniform_of(probs)
    scores = class_scores(probs, found.score, lam=found.lam, k_reg=found.k_reg, uniform=uniform)
    sets = scores <= _limits(found, scores)
    if not found.allow_empty:
        sets = sets.scatter(1, probs.argmax(1, keepdim=True), True)
    return sets


def residual_scores(targets: Tensor, mean: Tensor, spread: Tensor | tuple[Tensor, Tensor], score: Score) -> Tensor:
    """The score of each target (N, ...), in double.

    absolute: |y - mean|. normalized: |y - mean| / std (Lei et al. 2018), spread being the standard deviation.
    cqr: max(low - y, y - high) (Romano et al. 2019), spread being the interval that the model gives by itself.

    >>> residual_scores(torch.tensor([3.0]), torch.tensor([1.0]), torch.tensor([0.5]), "normalized")
    tensor([4.], dtype=torch.float64)
    """
    y = targets.double()
    if isinstance(spread, tuple):
        low, high = spread
        return torch.maximum(low.double() - y, y - high.double())
    error = (y - mean.double()).abs()
    return error if score == "absolute" else error / spread.double()


def interval(mean: Tensor, spread: Tensor | tuple[Tensor, Tensor], found: Conformal) -> tuple[Tensor, Tensor]:
    """Both ends of the interval of each datum (N, ...): where `residual_scores` are at most the threshold.

    A cqr interval whose ends would cross (a negative threshold, wider than the interval) is its middle.
    """
    limits = _limits(found, mean.double().reshape(len(mean), -1)).reshape(1, *mean.shape[1:])
    if isinstance(spread, tuple):
        low, high = spread[0].double() - limits, spread[1].double() + limits
        middle = (spread[0].double() + spread[1].double()) / 2
        low, high = torch.minimum(low, middle), torch.maximum(high, middle)
    else:
        half = limits.expand_as(mean) if found.score == "absolute" else limits * spread.double()
        low, high = mean.double() - half, mean.double() + half
    return low.to(mean.dtype), high.to(mean.dtype)


def threshold(scores: Tensor, coverage: float) -> float | None:
    """The ceil((n + 1) * coverage)-th smallest of n scores (n,); None if n is too small for a finite one.

    >>> threshold(torch.arange(1.0, 10.0), 0.9), threshold(torch.arange(1.0, 9.0), 0.9)
    (9.0, None)
    """
    place = rank(len(scores), coverage)
    return None if place is None else float(scores.double().kthvalue(place).values)


def uniform_of(probs: Tensor) -> Tensor:
    """A number in [0, 1) for each datum (N,), a hash of its probabilities: one datum always gets the same.

    A score may depend on the datum in any fixed way, so that the promise holds exactly; and a service that answers one
    request at a time does not use one number for all of them, as it would with a seed.

    >>> bool((uniform_of(torch.rand(1000, 3)).mean() - 0.5).abs() < 0.05)
    True
    """
    bits = probs.detach().double().cpu().contiguous().view(torch.int64)
    mixed = torch.zeros(len(bits), dtype=torch.int64)
    for column in bits.unbind(1):  # integers wrap around: splitmix64, a step for every class
        mixed = mixed + column - 7046029254386353131
        mixed = (mixed ^ (mixed >> 30 & 2**34 - 1)) * -4658895280553007687
        mixed = (mixed ^ (mixed >> 27 & 2**37 - 1)) * -7723592293110705685
        mixed = mixed ^ (mixed >> 31 & 2**33 - 1)
    return ((mixed >> 11 & 2**53 - 1).double() / 2**53).to(probs.device)


def _limits(found: Conformal, scores: Tensor) -> Tensor:
    limits = [math.inf if t is None else t for t in found.thresholds]
    return scores.new_tensor(limits * scores.shape[1] if len(limits) == 1 else limits)
