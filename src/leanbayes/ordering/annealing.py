"""A temperature that falls with the training step.

A schedule is any function of the step. A straight line and half a cosine are `leanbayes.training.schedules.warmup`,
which goes down as well as up: ``warmup(2.0, 0.5, steps=1000, shape="cosine")``.
"""

from __future__ import annotations

from ..checks import number, whole_number


def exponential(step: int, start: float = 2.0, end: float = 0.5, steps: int = 1000) -> float:
    """start (end / start)^{step / steps}, and `end` from step `steps` on (Jang et al., 2017).

    ``functools.partial(exponential, start=2.0, end=0.5, steps=1000)`` is a schedule.

    >>> [round(exponential(t, start=4.0, end=1.0, steps=2), 6) for t in (0, 1, 2, 9)]
    [4.0, 2.0, 1.0, 1.0]
    """
    number("start", start, above=0, hint="try start=0.5")
    number("end", end, above=0, hint="try end=0.5")
    whole_number("steps", steps)
    return float(start * (end / start) ** min(max(step / steps, 0.0), 1.0))
