"""Numbers that change with the training step: KL weights, temperatures.

A schedule is any function of the step (0 at the first one) that returns a number. Those below are configs, so they
are picklable, comparable and have a JSON form.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from .. import checks
from ..config import check_choice, check_finite, check_whole, configurable
from ..errors import ConfigError

Schedule = Callable[[int], float]
Shape = Literal["linear", "cosine"]


@configurable
@dataclass(frozen=True)
class Constant:
    """The same value at every step.

    >>> Constant(0.5)(1000)
    0.5
    """

    value: float = 1.0

    def __post_init__(self) -> None:
        check_finite(self, "value")

    def __call__(self, step: int) -> float:
        return float(self.value)


@configurable
@dataclass(frozen=True)
class Warmup:
    """From `start` to `end` within `steps` steps, then constant; see `warmup`."""

    start: float = 0.0
    end: float = 1.0
    steps: int = 1000
    shape: Shape = "linear"

    def __post_init__(self) -> None:
        check_finite(self, "start", "end")
        check_choice(self, "shape", ("linear", "cosine"))
        check_whole(self, "steps")

    def __call__(self, step: int) -> float:
        return _between(self.start, self.end, step / self.steps, self.shape)


@configurable
@dataclass(frozen=True)
class Cyclic:
    """A warm-up that starts again every `period` steps (Fu et al., 2019); see `cyclic`."""

    start: float = 0.0
    end: float = 1.0
    period: int = 1000
    rising: float = 0.5
    shape: Shape = "linear"

    def __post_init__(self) -> None:
        check_finite(self, "start", "end", "rising")
        check_choice(self, "shape", ("linear", "cosine"))
        check_whole(self, "period")
        if not 0 < self.rising <= 1:
            raise ConfigError(f"Cyclic.rising: expected a fraction in (0, 1], received {self.rising}")

    def __call__(self, step: int) -> float:
        return _between(self.start, self.end, step % self.period / (self.period * self.rising), self.shape)


def warmup(start: float, end: float, steps: int, shape: Shape = "linear") -> Warmup:
    """From `start` at step 0 to `end` at step `steps` and ever after.

    linear: start + (end - start) f; cosine: start + (end - start) (1 - cos(pi f)) / 2, with f = min(step / steps, 1).
    For a warm-up of 5 epochs: ``warmup(0, 1, steps=5 * len(loader))``.

    >>> [warmup(0, 1, steps=4)(t) for t in (0, 1, 4, 9)]
    [0.0, 0.25, 1.0, 1.0]
    """
    return Warmup(start, end, steps, shape)


def cyclic(start: float, end: float, period: int, rising: float = 0.5, shape: Shape = "linear") -> Cyclic:
    """A warm-up over the first `rising` fraction of every `period` steps, constant at `end` for the rest of it.

    >>> [cyclic(0, 1, period=4)(t) for t in range(6)]
    [0.0, 0.5, 1.0, 1.0, 0.0, 0.5]
    """
    return Cyclic(start, end, period, rising, shape)


def schedule(value: Any, what: str = "kl_weight") -> Schedule:
    """A number as a constant schedule; a schedule as it is.

    >>> schedule(1)
    Constant(value=1.0)
    """
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return Constant(checks.number(what, value, at_least=0))
    if not callable(value) or isinstance(value, type):
        checks.refuse(what, "a number or a schedule such as warmup(0, 1, steps=1000)", value)
    evaluate(value, 0, what)
    return value


def evaluate(chosen: Schedule, step: int, what: str = "kl_weight") -> float:
    """The value of a schedule at a step, refused where it is not a finite number of 0 or more."""
    value = chosen(step)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        received = checks.short(value)
        raise ConfigError(f"{what}: expected the schedule to return a number, received {received}") from error
    if not (math.isfinite(number) and number >= 0):
        raise ConfigError(f"{what}: expected a finite number of 0 or more at step {step}, received {number}")
    return number


def _between(start: float, end: float, fraction: float, shape: Shape) -> float:
    fraction = min(max(fraction, 0.0), 1.0)
    if shape == "cosine":
        fraction = (1 - math.cos(math.pi * fraction)) / 2
    return start + (end - start) * fraction
