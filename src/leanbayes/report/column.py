"""One reported number: what it is called, which way is better, how it is written."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ..evaluation.result import Evaluation

Better = Literal["higher", "lower", "nominal", "none"]
Kind = Literal["percent", "number", "rank", "amount", "bytes", "seconds"]


@dataclasses.dataclass(frozen=True)
class Column:
    """One column of a table: a metric or a cost. group: the table of a page that it belongs to."""

    key: str
    label: str
    better: Better
    kind: Kind
    meaning: str
    nominal: float = math.nan
    group: str = ""

    def value(self, evaluation: Evaluation) -> float | None:
        """The number, or None if there is none or it is not finite."""
        value = evaluation.metrics.get(self.key, evaluation.cost.get(self.key))
        return None if value is None or not math.isfinite(value) else float(value)

    def text(self, evaluation: Evaluation) -> str:
        """The number as text."""
        value = self.value(evaluation)
        return "–" if value is None else written(value, self.kind, evaluation.count)

    def ends(self, evaluation: Evaluation) -> tuple[float, float] | None:
        """The 95 % bootstrap interval, or None without replicates."""
        return evaluation.interval(self.key) if self.key in evaluation.replicates else None

    def interval(self, evaluation: Evaluation) -> str:
        """The 95 % interval as text, empty if there is none.

        >>> from leanbayes.evaluation import Evaluation
        >>> e = Evaluation("a", "classification", 100, {"ece": 0.1}, replicates={"ece": [0.08, 0.1, 0.12]})
        >>> Column("ece", "ECE", "lower", "number", "").interval(e)
        '0.0810–0.1190'
        """
        if (ends := self.ends(evaluation)) is None:
            return ""
        low, high = (written(end, self.kind, evaluation.count) for end in ends)
        return f"{low.removesuffix(' %')}{' to ' if ends[0] < 0 else '–'}{high}"  # a dash would look like a minus

    def spread(self, evaluation: Evaluation) -> str:
        """Half the width of the 95 % interval as text, such as "± 0.3"; empty if there is none."""
        if (ends := self.ends(evaluation)) is None:
            return ""
        return "± " + written((ends[1] - ends[0]) / 2, self.kind, evaluation.count).removesuffix(" %")

    def loss(self, value: float) -> float:
        """The value as a loss: the better, the smaller."""
        return {"higher": -value, "lower": value, "nominal": abs(value - self.nominal), "none": 0.0}[self.better]


def written(value: float, kind: Kind, count: int = 10_000) -> str:
    """A number as text; percentages of few data get fewer digits.

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
            return _scaled(value, ("", " k", " M", " G", " T", " P"))
        case "bytes":
            return _scaled(value, (" B", " kB", " MB", " GB", " TB"))
        case "seconds":
            return _duration(value)
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.2f}" if abs(value) < 1e6 else f"{value:.4g}"


def _scaled(value: float, units: tuple[str, ...]) -> str:
    step = 0
    while abs(value) >= 999.5 and step < len(units) - 1:
        value, step = value / 1000, step + 1
    return f"{value:.0f}{units[0]}" if step == 0 else f"{value:.3g}{units[step]}"


def _duration(seconds: float) -> str:
    if seconds >= 3600:
        return f"{seconds // 3600:.0f} h {seconds % 3600 / 60:.0f} min"
    if seconds >= 120:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"
