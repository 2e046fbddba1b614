"""`Conformal`: the thresholds of `leanbayes.conformalize_`, saved with a model and read by `predict`. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from ..config import check_between, check_choice, check_flag, check_whole, configurable
from ..errors import ConfigError

Score = Literal["lac", "aps", "raps", "normalized", "absolute", "cqr"]
CLASS_SCORES: tuple[Score, ...] = ("lac", "aps", "raps")
INTERVAL_SCORES: tuple[Score, ...] = ("normalized", "absolute", "cqr")


@configurable
@dataclass(frozen=True)
class Conformal:
    """Thresholds of a conformal score: a set has every class whose score is at most the threshold.

    coverage: how often sets and intervals hold the truth, at least. score: see `leanbayes.conformalize_`.
    thresholds: one for all classes, or one for each; of a regression one for each output. None is infinite: there were
        too few data for a smaller one.
    counts: the data behind each threshold. samples: networks behind each prediction, then and from then on.
    likelihood: what the outputs of the model meant, in words; thresholds hold for that alone.

    >>> Conformal(0.9, "lac", (0.8,), (500,), likelihood="Classification()").class_conditional
    False
    """

    coverage: float
    score: Score
    thresholds: tuple[float | None, ...]
    counts: tuple[int, ...]
    samples: int = 1
    likelihood: str = ""
    randomized: bool = False
    allow_empty: bool = False
    class_conditional: bool = False
    lam: float = 0.01
    k_reg: int = 5

    def __post_init__(self) -> None:
        check_choice(self, "score", (*CLASS_SCORES, *INTERVAL_SCORES))
        check_between(self, "coverage", 0.0, 1.0, open_high=True)
        check_between(self, "lam", 0.0, math.inf)
        check_whole(self, "k_reg", at_least=0)
        check_whole(self, "samples")
        check_flag(self, "randomized", "allow_empty", "class_conditional")
        fine = all(t is None or (isinstance(t, (int, float)) and math.isfinite(t)) for t in self.thresholds)
        if not fine or not self.thresholds or self.coverage == 0:
            raise ConfigError(
                f"Conformal: expected a coverage above 0 and thresholds that are finite or None, received "
                f"{self.coverage:g} and {str(self.thresholds)[:60]}"
            )
        if len(self.counts) != len(self.thresholds) or min(self.counts) < 0:
            raise ConfigError(
                f"Conformal.counts: expected a number for each of {len(self.thresholds)} thresholds, received "
                f"{str(self.counts)[:60]}"
            )

    @property
    def task(self) -> str:
        """The task that the score belongs to."""
        return "classification" if self.score in CLASS_SCORES else "regression"


def rank(count: int, coverage: float) -> int | None:
    """The rank of the threshold among ``count`` ascending scores: ceil((count + 1) * coverage), or None if too few.

    In whole numbers: 0.55 * 100 is 55.00000000000001 in floating point.

    >>> rank(99, 0.55), rank(9, 0.9), rank(8, 0.9)
    (55, 9, None)
    """
    place = math.ceil((count + 1) * Fraction(repr(float(coverage))))
    return place if place <= count else None


def least_count(coverage: float) -> int:
    """The fewest data that give a finite threshold.

    >>> least_count(0.9), least_count(0.95)
    (9, 19)
    """
    share = Fraction(repr(float(coverage)))
    return math.ceil(share / (1 - share))
