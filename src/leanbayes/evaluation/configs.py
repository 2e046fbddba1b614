"""Attacks and corruptions as configs. No torch here: the command line makes its options from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .. import checks
from ..config import check_choice, check_flag, check_positive, check_whole, configurable
from ..errors import ConfigError, EvaluationError
from . import corruptions
from .corruptions import SEVERITIES

Target = Literal["random", "least_likely"]
Objective = Literal["predictive", "mean_log"]


@configurable
@dataclass(frozen=True)
class Attack:
    r"""An iterative fast-sign attack (Goodfellow et al., 2015; Kurakin et al., 2017), in L-infinity.

    Targeted at class t, as in "Variance Networks" (Neklyudov et al., 2019, section 6.3), T times:

        x <- clip(x + step / scale * sign(d/dx log p(t | x)), 0, 1),   p(t | x) = 1/S sum_s p(t | x, W_s)

    Untargeted: the same step away from the true class. One iteration with step = epsilon is FGSM; several within an
    epsilon from a random start are PGD (Madry et al., 2018).

    step, epsilon: in units of 1 / ``scale`` of the pixel range. The paper gives its step of 0.5 without a scale; 255
        is the plausible one, and ``scale=1.0`` makes them fractions of the pixel range.
    epsilon: the most that any pixel may change; None for no bound but that of a pixel, as in the paper.
    target: "random" (another class than the true one, by the number of the datum) or "least_likely" (at first).
    samples: networks whose gradients are used in an iteration; each iteration draws new ones.
    evaluate_samples: samples of the prediction after each iteration; None for as many as ``samples``. They are the
        same ones every time, for attacked and clean data, and never those whose gradients were used.
    objective: "predictive" maximises the averaged probability, as in the formula above; "mean_log" averages
        log p(t | x, W_s) instead (expectation over transformation). Neither is always the stronger: try both.
    mean_only: attack and predict with the network at the posterior means (the deterministic procedure).
    limit: the most data attacked; None for all.

    >>> Attack(targeted=False, step=8, iterations=1, epsilon=8).samples  # FGSM at 8/255
    10
    """

    targeted: bool = True
    step: float = 0.5
    iterations: int = 20
    epsilon: float | None = None
    random_start: bool = False
    target: Target = "random"
    samples: int = 10
    evaluate_samples: int | None = None
    objective: Objective = "predictive"
    mean_only: bool = False
    scale: float = 255.0
    limit: int | None = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice(self, "target", ("random", "least_likely"))
        check_choice(self, "objective", ("predictive", "mean_log"))
        check_flag(self, "targeted", "random_start", "mean_only")
        check_positive(self, "step", "scale")
        check_whole(self, "iterations", at_least=0)
        check_whole(self, "samples")
        check_whole(self, "evaluate_samples", optional=True)
        check_whole(self, "limit", optional=True)
        checks.seed(self.seed, "Attack.seed")
        if self.epsilon is not None:
            check_positive(self, "epsilon")
        elif self.random_start:
            raise ConfigError("Attack.random_start: expected an epsilon to start within, received none; try epsilon=8")


@configurable
@dataclass(frozen=True)
class Corruptions:
    """Which corruptions to evaluate on.

    names: of `corruptions.NAMES`; empty for all that suit the images. severities: from 1 to 5.
    limit: evaluate each corruption on the first ``limit`` data only; None for all. seed: of the noise.

    >>> Corruptions(names=("fog", "contrast"), severities=(1, 3, 5))
    Corruptions(names=('fog', 'contrast'), severities=(1, 3, 5), limit=1000, seed=0)
    """

    names: tuple[str, ...] = ()
    severities: tuple[int, ...] = SEVERITIES
    limit: int | None = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        for field, check in (("names", corruptions.check_name), ("severities", corruptions.check_severity)):
            values: Any = vars(self)[field]
            if not isinstance(values, tuple):
                raise ConfigError(f"Corruptions.{field}: expected a tuple, received {checks.short(values)}")
            for value in values:
                try:
                    check(value)
                except EvaluationError as error:
                    raise ConfigError(f"Corruptions.{field}: {error}") from None
            if len(set(values)) < len(values):
                raise ConfigError(f"Corruptions.{field}: expected each once, received {checks.short(values)}")
        if not self.severities:
            raise ConfigError("Corruptions.severities: expected some of 1 to 5, received none")
        check_whole(self, "limit", optional=True, hint="or None for all data")
        check_whole(self, "seed", at_least=0)
