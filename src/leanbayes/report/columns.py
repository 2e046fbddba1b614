"""What each reported number is called, which way is better, how it is written, and what it means in plain words."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ..evaluate.result import Evaluation

Better = Literal["higher", "lower", "nominal", "none"]
Kind = Literal["percent", "number", "rank", "amount", "bytes", "seconds"]


@dataclasses.dataclass(frozen=True)
class Column:
    """One column of a table: a metric or a cost."""

    key: str
    label: str
    better: Better
    kind: Kind
    meaning: str
    nominal: float = math.nan

    def value(self, evaluation: Evaluation) -> float | None:
        """The number, or None where there is none."""
        value = evaluation.metrics.get(self.key, evaluation.cost.get(self.key))
        return None if value is None or not math.isfinite(value) else float(value)

    def text(self, evaluation: Evaluation) -> str:
        """The number as one would write it."""
        value = self.value(evaluation)
        return "–" if value is None else written(value, self.kind, evaluation.count)

    def loss(self, value: float) -> float:
        """What is better is smaller."""
        return {"higher": -value, "lower": value, "nominal": abs(value - self.nominal), "none": 0.0}[self.better]


_QUALITY = (
    Column("accuracy", "Accuracy", "higher", "percent", "the share of answers that are right"),
    Column("nll", "NLL", "lower", "number", "surprise at the truth, in nats; confident mistakes cost most"),
    Column("brier", "Brier", "lower", "number", "squared distance of the probabilities from the truth, 0 to 2"),
    Column("ece", "ECE", "lower", "number", "mean gap between how sure it is and how often it is right"),
    Column("mce", "MCE", "lower", "number", "the same gap where it is widest"),
    Column("confidence", "Confidence", "none", "percent", "how sure it is on average; ideally equal to the accuracy"),
    Column("rmse", "RMSE", "lower", "number", "typical error, in the units of the target"),
    Column("mae", "MAE", "lower", "number", "mean absolute error, in the units of the target"),
    Column("log_density", "Log density", "higher", "number", "log predictive density of the truth, in nats"),
)
_COST = (
    Column("parameters", "Parameters", "none", "amount", "numbers that are stored; a Gaussian weight has two"),
    Column("active_parameters", "Active", "none", "amount", "parameters still in use, after pruning"),
    Column("macs", "MACs", "none", "amount", "multiply-adds of one forward pass for one datum"),
    Column("bytes", "Size", "none", "bytes", "the parameters and buffers in memory"),
    Column("train_seconds", "Training", "none", "seconds", "measured time of the training"),
    Column(
        "predict_seconds",
        "Per datum",
        "none",
        "seconds",
        "measured time of one prediction in a batch, all samples included",
    ),
)
RANKS = {
    "auroc": ("AUROC", "higher", "the chance that strange data raise more doubt than test data; 0.5 is a coin toss"),
    "aupr": ("AUPR", "higher", "average precision at finding strange data"),
    "fpr95": ("FPR95", "lower", "the share of test data flagged when 95 % of the strange data are"),
}
SCORES = {
    "entropy": "entropy",
    "mutual_information": "mutual information",
    "max_prob": "1 − max probability",
    "variance": "variance",
}


def quality(evaluations: Sequence[Evaluation], *, full: bool = True) -> list[Column]:
    """The columns of quality that any of the evaluations fills; without ``full`` the few that fit a terminal."""
    present = list(dict.fromkeys(key for e in evaluations for key in e.metrics))
    columns = [c for c in _QUALITY if c.key in present]
    levels = [key for key in present if key.startswith(("coverage.", "width."))]
    columns += [_interval(key) for key in levels]
    columns += [_rank(key) for key in present if key.startswith("ood.")]
    known = {c.key for c in columns}
    columns += [Column(k, k, "none", "number", "") for k in present if k not in known]
    if full:
        return columns
    wanted = {"accuracy", "nll", "brier", "ece", "rmse", "log_density", "coverage.0.9", "width.0.9"}
    wanted |= {k for k in present if k.endswith((".entropy.auroc", ".variance.auroc"))}
    return [c for c in columns if c.key in wanted]


def grouped(
    evaluation: Evaluation,
) -> tuple[list[Column], dict[str, tuple[Column, Column]], dict[tuple[str, str], list[Column]]]:
    """The quality of one model as three tables: single numbers, intervals by level, out-of-domain by set and score."""
    shown = quality([evaluation])
    levels = [c.key.split(".", 1)[1] for c in shown if c.key.startswith("coverage.")]
    intervals = {f"{100 * float(q):g} %": (_interval(f"coverage.{q}"), _interval(f"width.{q}")) for q in levels}
    ranks: dict[tuple[str, str], list[Column]] = {}
    for key in (c.key for c in shown if c.key.startswith("ood.")):
        name, score, _ = split_rank(key)
        ranks[name, SCORES.get(score, score)] = [_rank(f"ood.{name}.{score}.{metric}") for metric in RANKS]
    return [c for c in shown if not c.key.startswith(("coverage.", "width.", "ood."))], intervals, ranks


def cost(evaluations: Sequence[Evaluation]) -> list[Column]:
    """The columns of cost that any of the evaluations fills; active parameters only where they differ from all."""
    present = {key for e in evaluations for key in e.cost}
    if all(e.cost.get("active_parameters") == e.cost.get("parameters") for e in evaluations):
        present.discard("active_parameters")
    return [c for c in _COST if c.key in present]


def is_sampled(evaluation: Evaluation) -> bool:
    """Whether its predictions were averaged over samples: not at the means, and not of a network without randomness."""
    return "samples" in evaluation.settings and evaluation.settings.get("engine") not in ("mean", "deterministic")


def split_rank(key: str) -> tuple[str, str, str]:
    """Set, score and metric of an out-of-domain name; a set may have dots in its name.

    >>> split_rank("ood.not.mnist.entropy.auroc")
    ('not.mnist', 'entropy', 'auroc')
    """
    name, score, metric = key.removeprefix("ood.").rsplit(".", 2)
    return name, score, metric


def best(column: Column, evaluations: Sequence[Evaluation]) -> set[int]:
    """The rows that hold the best value, all that are written alike; none where nothing is compared.

    >>> from leanbayes.evaluate import Evaluation
    >>> rows = [Evaluation(n, "classification", 100, {"accuracy": a}) for n, a in [("a", 0.91), ("b", 0.93)]]
    >>> best(quality(rows)[0], rows)
    {1}
    """
    values = {row: value for row, e in enumerate(evaluations) if (value := column.value(e)) is not None}
    if column.better == "none" or len(values) < 2:
        return set()
    winner = min(values, key=lambda row: column.loss(values[row]))
    text = column.text(evaluations[winner])
    alike = {row for row in values if column.text(evaluations[row]) == text}
    return set() if len(alike) == len(values) else alike


def written(value: float, kind: Kind, count: int = 10_000) -> str:
    """A number with as many digits as it deserves: a share of few data gets fewer.

    >>> [written(0.97351, "percent", n) for n in (500, 10_000)]
    ['97.4 %', '97.35 %']
    >>> [written(v, "amount") for v in (850, 61_706, 11_173_962)]
    ['850', '61.7 k', '11.2 M']
    >>> [written(v, "seconds") for v in (0.00123, 4.2, 200)]
    ['1.23 ms', '4.2 s', '3 min 20 s']
    """
    match kind:
        case "percent":
            return f"{100 * value:.{2 if count >= 5_000 else 1}f} %"
        case "rank":
            return f"{value:.3f}"
        case "amount":
            return _scaled(value, 1000, ("", " k", " M", " G", " T", " P"))
        case "bytes":
            return _scaled(value, 1000, (" B", " kB", " MB", " GB", " TB"))
        case "seconds":
            return _duration(value)
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.2f}" if abs(value) < 1e6 else f"{value:.4g}"


def _interval(key: str) -> Column:
    what, level = key.split(".", 1)
    percent = f"{100 * float(level):g} %"
    if what == "coverage":
        meaning = f"the share of truths inside the {percent} intervals; ideally {percent}"
        return Column(key, f"Inside {percent}", "nominal", "percent", meaning, float(level))
    return Column(
        key, f"{percent} width", "none", "number", f"mean width of the {percent} intervals; narrower is sharper"
    )


def _rank(key: str) -> Column:
    name, score, metric = split_rank(key)
    label, better, meaning = RANKS.get(metric, (metric, "none", ""))
    by = f" ({SCORES.get(score, score)})" if score not in ("entropy", "variance") else ""
    return Column(key, f"{label} {name}{by}", better, "rank", meaning)  # type: ignore[arg-type]


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    step = 0
    while abs(value) >= base * 0.9995 and step < len(units) - 1:
        value, step = value / base, step + 1
    return f"{value:.0f}{units[0]}" if step == 0 else f"{value:.3g}{units[step]}"


def _duration(seconds: float) -> str:
    if seconds >= 3600:
        return f"{seconds // 3600:.0f} h {seconds % 3600 / 60:.0f} min"
    if seconds >= 120:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale or unit == "µs":
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s"
