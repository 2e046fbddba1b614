"""What the numbers say, in sentences a colleague would say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import summary_text_compared, summary_text_one

if TYPE_CHECKING:
    from ..evaluation.result import Evaluation


def summary(evaluations: Sequence[Evaluation]) -> list[str]:
    """A few plain sentences about one model, or about how several differ.

    >>> from leanbayes.evaluation import Evaluation
    >>> e = Evaluation("mlp", "classification", 1000, {"accuracy": 0.9, "confidence": 0.98, "ece": 0.08})
    >>> print(*summary([e]), sep="\\n")
    mlp is right on 90.0 % of 1,000 test data.
    It is over-confident: it claims 98.0 % on average (calibration error 8.0 points).
    """
    return summary_text_one.about(evaluations[0]) if len(evaluations) == 1 else summary_text_compared.about(evaluations)
