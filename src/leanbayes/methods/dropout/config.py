"""Monte-Carlo dropout (Gal and Ghahramani, 2016): dropout that stays on when predicting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...config import check_between
from ...method import Method
from ...registry import register


@register
@dataclass(frozen=True)
class Dropout(Method):
    """Inputs of a Linear, channels into a convolution, dropped at random; no more parameters.

    Args:
        rate: the probability of being dropped; None keeps the rate of the model's own dropout layers.
        elsewhere: the rate of layers that are given dropout, where rate is None: less than people train with, since the
            network has not been trained with it.

    On its own it takes the model's `nn.Dropout` layers where there are any, since those are what the model was trained
    with, and otherwise every Linear and convolution but the first, whose inputs are the data.

    >>> from torch import nn
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> lb.bayesianize_(model, lb.Dropout(0.2)).converted
    ['2']
    """

    summary: ClassVar[str] = "dropout that stays on; no more parameters"

    version: ClassVar[int] = 2
    before: ClassVar[dict[int, dict[str, float]]] = {1: {"elsewhere": 0.1}}

    rate: float | None = None
    elsewhere: float = 0.05

    def __post_init__(self) -> None:
        check_between(self, "elsewhere", 0.0, 1.0, open_high=True)
        if self.rate is not None:
            check_between(self, "rate", 0.0, 1.0, open_high=True)
