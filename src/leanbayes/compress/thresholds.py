"""The thresholds of a cascade, by held-out data: the cheapest that are accurate enough, or the best of a budget."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import batches, checks, feed, sampling
from ..batches import accept
from ..errors import ConfigError, EvaluationError
from ..evaluation.metrics import checks as metric_checks
from ..prediction import predict
from ..report.table import as_text, table

if TYPE_CHECKING:
    from .cascade import Cascade

COMBINATIONS = 20_000
"""Of thresholds that are compared, at most about so many."""
RUNS = 15


@dataclass(frozen=True)
class Tuning:
    """What the thresholds of a cascade give on the held-out data. Print it for a table.

    accuracy, last_accuracy: of the cascade, and of its last stage alone. macs, last_macs: multiply-accumulates of a
    datum, on average and at the last stage alone. shares: of the data, by the stage that answers. stage_macs: of a
    datum answered there, the stages before included. milliseconds: of each stage for one datum, where measured.
    """

    score: str
    thresholds: tuple[float, ...]
    accuracy: float
    last_accuracy: float
    macs: float
    last_macs: float
    shares: tuple[float, ...]
    stage_macs: tuple[float, ...]
    milliseconds: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON."""
        ends = [repr(t) if abs(t) == float("inf") else t for t in self.thresholds]
        return {**asdict(self), "thresholds": ends}

    def __str__(self) -> str:
        limits = [*(f"{t:.3g}" for t in self.thresholds), "always"]
        cells = [
            [str(k), limit, f"{share:.1%}", f"{macs:,.0f}" if share else "-"]
            for k, (limit, share, macs) in enumerate(zip(limits, self.shares, self.stage_macs, strict=True))
        ]
        text = as_text(table(["stage", f"answers up to {self.score}", "data", "MACs of a datum"], cells))
        share = self.macs / self.last_macs
        return (
            f"{text}\naccuracy {self.accuracy:.2%}, of the last stage alone {self.last_accuracy:.2%}; "
            f"{self.macs:,.0f} MACs a datum on average, {share:.1%} of the last stage's"
        )


def tuned(
    cascade: Cascade,
    held_out: Any,
    seed: int,
    confidence: float,
    by_time: bool,
    *,
    accuracy: float | None,
    max_loss: float | None,
    macs: float | None,
    milliseconds: float | None,
) -> Tuning:
    """Set the thresholds of a cascade; see `Cascade.tune`."""
    wishes = {"accuracy": accuracy, "max_loss": max_loss, "macs": macs, "milliseconds": milliseconds}
    given = {name: value for name, value in wishes.items() if value is not None}
    if len(given) != 1:
        received = ", ".join(given) or "none"
        raise ConfigError(
            f"tune: expected one of accuracy, max_loss, macs and milliseconds, received {received}; try max_loss=0.002"
        )
    ((name, value),) = given.items()
    wish = checks.number(
        name, value, at_least=0 if name == "max_loss" else None, above=None if name == "max_loss" else 0
    )
    if name in ("accuracy", "max_loss"):
        wish = checks.probability(name, value)
    confidence = checks.number("confidence", confidence, above=0, below=1)
    if by_time and name not in ("accuracy", "max_loss"):
        raise ConfigError(f"cheapest: expected accuracy or max_loss beside it, received {name}; leave it out")
    scores, correct, counts, example = _asked(cascade, held_out, checks.seed(seed))
    each = cascade.count_macs(example)
    goes_on = [*(a is b for a, b in itertools.pairwise(cascade.stages)), False]  # with the samples that it has
    fresh = [counts[k] - (counts[k - 1] if k and goes_on[k - 1] else 0) for k in range(len(counts))]
    costs = torch.tensor([float(a * b) for a, b in zip(each, fresh, strict=True)])
    alone = float(each[-1] * counts[-1])
    early = torch.ones_like(correct)
    early[-1] = 0
    values = torch.stack([correct, (correct - correct[-1]).square(), early])
    times = _times(cascade, example) if by_time or name == "milliseconds" else []
    weighed = costs
    if by_time:
        weighed = torch.tensor([ms * new / whole for ms, new, whole in zip(times, fresh, counts, strict=True)])
    thresholds, spent, means = routes(scores, values, weighed, [k for k, same in enumerate(goes_on) if same])
    right = means[0]
    last, z = float(correct[-1].mean()), statistics.NormalDist().inv_cdf(confidence)
    # of the difference to the last stage; no difference seen in N data is not none
    differ = means[1] + (means[2] > 0) / correct.shape[1]
    spread = right * (1 - right) if name == "accuracy" else differ
    sure = right - z * (spread / correct.shape[1]).sqrt() if name in ("accuracy", "max_loss") else right
    best = _best(name, wish, thresholds, sure, spent, last, alone, times)
    cascade.set_thresholds(thresholds[best].tolist())
    return _report(cascade, scores, correct, costs, alone, times)


def routes(scores: Tensor, values: Tensor, costs: Tensor, always: Sequence[int] = ()) -> tuple[Tensor, Tensor, Tensor]:
    """Mean costs and mean values under many combinations of thresholds.

    scores: of every stage but the last (K - 1, N). values: V of them of every stage for each datum (V, K, N), of which
    that of the stage that answers counts. costs: of every stage (K,). always: stages that are not left out, since the
    next one goes on with what they have.
    Returns thresholds (M, K - 1), costs (M,) and values (V, M). A threshold of -inf leaves its stage out, at no cost;
    the others lie between scores, and inf.

    >>> scores, correct = torch.tensor([[0.1, 0.9]]), torch.tensor([[[1.0, 0.0], [1.0, 1.0]]])
    >>> thresholds, cost, accuracy = routes(scores, correct, torch.tensor([1.0, 10.0]))
    >>> cost[accuracy[0] == 1].min()  # the second datum goes on: (1 + 11) / 2
    tensor(6.)
    """
    stages, count = values.shape[1:]
    each = max(5, min(1000, int(COMBINATIONS ** (1 / (stages - 1)))))
    reach = torch.ones(1, count)  # 1 where a datum comes to the stage, of every combination so far
    spent, means = torch.zeros(1), torch.zeros(len(values), 1)
    chosen = torch.empty(1, 0)
    for k, score in enumerate(scores):
        limits = _limits(score, each)[int(k in always) :]
        stops = (score <= limits[:, None]).float()
        last = k == stages - 2
        gains = [stops * value[k] + (1 - stops) * value[k + 1] * last for value in values]
        asked = (limits > -torch.inf).float() * costs[k]
        pay = asked[:, None] + (1 - stops) * costs[k + 1] * last
        spent = (spent[:, None] + reach @ pay.T / count).flatten()
        means = torch.stack([(m[:, None] + reach @ g.T / count).flatten() for m, g in zip(means, gains, strict=True)])
        chosen = torch.cat([chosen.repeat_interleave(len(limits), 0), limits.repeat(len(reach))[:, None]], 1)
        if not last:
            reach = (reach[:, None] * (1 - stops)).flatten(0, 1)
    return chosen, spent, means


def _limits(score: Tensor, count: int) -> Tensor:
    """Thresholds to try: between neighbouring scores, at equal shares of the data, and both ends."""
    ordered = score.unique()
    between = (ordered[1:] + ordered[:-1]) / 2
    if len(between) > count - 2:
        between = between[torch.linspace(0, len(between) - 1, count - 2).long()]
    ends = torch.tensor([torch.inf])
    return torch.cat([-ends, between, ends])


def _best(
    name: str,
    wish: float,
    thresholds: Tensor,
    right: Tensor,
    spent: Tensor,
    last: float,
    dear: float,
    times: list[float],
) -> int:
    """The number of the best combination, or an error that says what there is."""
    if name in ("accuracy", "max_loss"):
        least = wish if name == "accuracy" else last - wish
        fine = right >= least - 1e-6
        if not bool(fine.any()):
            raise EvaluationError(
                f"{name}: expected an accuracy of at most {float(right.max()):.4f}, which these stages surely reach "
                f"by the held-out data (the last one alone has {last:.4f} there), received {least:.4f}; ask for less, "
                "hold out more data, or lower the confidence"
            )
        return _first(fine, spent, -right)
    if name == "macs":
        budget = wish * dear if wish <= 1 else wish
        fine = spent <= budget * (1 + 1e-6)
        if not bool(fine.any()):
            raise EvaluationError(
                f"macs: expected at least {float(spent.min()):,.0f}, the cost of the cheapest stage, received "
                f"{budget:,.0f}; allow more, or add a smaller stage"
            )
        return _first(fine, -right, spent)
    longest = _longest(thresholds, times)
    fine = longest <= wish
    if not bool(fine.any()):
        raise EvaluationError(
            f"milliseconds: expected at least {min(times):.3g}, what the fastest stage takes for one datum here, "
            f"received {wish:g}; allow more, or add a smaller stage"
        )
    return _first(fine, -right, spent)


def _first(fine: Tensor, by: Tensor, then: Tensor) -> int:
    """Of the rows that are fine, the one with the least ``by``, and of equals the least ``then``."""
    numbers = fine.nonzero().flatten()
    least = by[numbers].min()
    numbers = numbers[by[numbers] <= least + 1e-9]
    return int(numbers[then[numbers].argmin()])


def _longest(thresholds: Tensor, times: list[float]) -> Tensor:
    """The time of the longest way of a datum through the stages (M,)."""
    total, goes_on = torch.zeros(len(thresholds)), torch.ones(len(thresholds))
    for k, limit in enumerate(thresholds.T):
        total += goes_on * (limit > -torch.inf) * times[k]
        goes_on = goes_on * (limit < torch.inf)
    return total + goes_on * times[-1]


def _asked(cascade: Cascade, held_out: Any, seed: int) -> tuple[Tensor, Tensor, list[int], Any]:
    """Scores (K - 1, N), correctness (K, N) and samples of every stage, and one datum."""
    data = accept(held_out, cascade, name="held_out", error=EvaluationError)
    feed.repeatable(data, "held_out", "every stage")
    example: Any = None
    counts: list[int] = []
    scores: list[Tensor] = []
    correct: list[Tensor] = []
    for inputs, targets in feed.labelled(data):
        example = batches.rows(inputs, 0, 1) if example is None else example
        said = [
            predict(stage, inputs, cascade.samples[k] or 32, seed, task=cascade.likelihood(k))
            for k, stage in enumerate(cascade.stages)
        ]
        for k, pred in enumerate(said):
            cascade.check_classes(k, pred.mean, said[0].mean)
        counts = [int(pred.counts.max()) for pred in said]
        labels = metric_checks.classified(said[0].probs, targets).labels.cpu()
        scores.append(torch.stack([cascade.unsureness(pred.mean, pred.epistemic).cpu() for pred in said[:-1]]))
        correct.append(torch.stack([(pred.labels.cpu() == labels).float() for pred in said]))
    metric_checks.nonempty(sum(part.shape[1] for part in correct), "held_out")
    return torch.cat(scores, 1).float(), torch.cat(correct, 1), counts, example


def _times(cascade: Cascade, example: Any) -> list[float]:
    """Milliseconds of each stage for one datum: the median of some runs, in turns."""
    found: list[list[float]] = [[] for _ in cascade.stages]
    for run in range(RUNS + 1):
        for k, stage in enumerate(cascade.stages):
            began = time.perf_counter()
            if sampling.sites(stage):
                predict(stage, example, cascade.samples[k] or 32, task=cascade.likelihood(k))
            else:
                with torch.no_grad():
                    batches.call(stage, example)
            if run:
                found[k].append(1e3 * (time.perf_counter() - began))
    return [statistics.median(times) for times in found]


def _report(
    cascade: Cascade, scores: Tensor, correct: Tensor, costs: Tensor, whole: float, times: list[float]
) -> Tuning:
    left, paid = torch.ones(correct.shape[1], dtype=torch.bool), 0.0
    right, spent, shares, each = 0.0, 0.0, [], []
    for k in range(len(correct)):
        limit = cascade.thresholds[k] if k < len(scores) else torch.inf
        paid += 0.0 if limit == -torch.inf else float(costs[k])
        stops = left & (scores[k] <= limit) if k < len(scores) else left
        shares.append(float(stops.float().mean()))
        each.append(paid)
        right += float((correct[k] * stops).mean())
        spent += shares[-1] * paid
        left = left & ~stops
    alone = (float(correct[-1].mean()), spent, whole)
    return Tuning(cascade.score, cascade.thresholds, right, *alone, tuple(shares), tuple(each), tuple(times))
