"""A temperature that falls with the training step.

A schedule is any function of the step. A straight line and half a cosine are `leanbayes.training.schedules.warmup`,
which goes down as well as up: ``warmup(2.0, 0.5, steps=1000, shape="cosine")``.
"""

from __future__ import annotations

import math

from ..errors import ConfigError


def exponential(step: int, start: float = 2.0, end: float = 0.5, steps: int = 1000) -> float:
    """start (end / start)^{step / steps}, and `end` from step `steps` on (Jang et al., 2017).

    ``functools.partial(exponential, start=2.0, end=0.5, steps=1000)`` is a schedule.

    >>> [round(exponential(t, start=4.0, end=1.0, steps=2), 6) for t in (0, 1, 2, 9)]
    [4.0, 2.0, 1.0, 1.0]
    """
    for name, value in (("start", start), ("end", end)):
        if not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"{name}: expected a finite temperature above 0, received {value}; try {name}=0.5")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ConfigError(f"steps: expected a whole number of at least 1, received {steps!r}")
    return float(start * (end / start) ** min(max(step / steps, 0.0), 1.0))
