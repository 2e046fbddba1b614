"""Sparse subspace variational inference (Li et al., 2024) and RigL (Evci et al., 2020), its deterministic relative."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ... import checks
from ...config import check_between, check_choice, check_flag, check_positive, check_whole
from ...errors import ConfigError
from ...method import Method
from ...priors import EmpiricalNormal, LogUniform, Normal, ScaleMixture, StudentT
from ...registry import register
from .allocation import ALLOCATIONS

SMALL = 4096
"""So many weights a layer of a trained network keeps by default: it loses by fewer, and they cost next to nothing."""
REMOVALS = ("mean", "snr", "abs", "snr-abs", "exp", "snr-exp")


@dataclass(frozen=True)
class SparseTraining(Method):
    """Base of `SparseSubspace` and `Rigl`; see there for what the fields mean."""

    density: float = 0.05
    allocation: Literal["uniform", "erdos-renyi"] = "uniform"
    interval: int | None = None
    replacement: float = 0.3
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    until: float = 0.75
    keep_returning: bool = True
    keep_weights: bool = True
    init_std: float | None = None
    thinning: float = 0.5
    fewest: int | None = None
    dense_ends: bool = True

    def __post_init__(self) -> None:
        here = type(self).__name__
        check_positive(self, "density")
        if self.density > 1:
            raise ConfigError(
                f"{here}.density: expected the share of active weights, in (0, 1], received {self.density}"
            )
        check_choice(self, "allocation", ALLOCATIONS)
        check_choice(self, "schedule", ("cosine", "linear", "constant"))
        check_whole(self, "interval", optional=True)
        check_between(self, "thinning", 0.0, 1.0)
        check_whole(self, "fewest", at_least=0, optional=True)
        check_between(self, "replacement", 0.0, 1.0)
        check_positive(self, "until")
        check_between(self, "until", 0.0, 1.0)
        check_flag(self, "keep_returning", "keep_weights", "dense_ends")
        if self.init_std is not None:
            check_positive(self, "init_std")
            if self.keep_weights:
                raise ConfigError(
                    f"{here}.init_std: expected with keep_weights=False, received it with weights to keep; drop one"
                )


@register
@dataclass(frozen=True)
class SparseSubspace(SparseTraining):
    """A share of the weights is N(mu, sigma^2), the others are exactly zero; which ones is learned (algorithm 1).

    Nothing else is stored or computed: parameters, gradients and optimiser state have one pair of numbers for each
    active weight, as many from the first step to the last, unless a trained network is thinned out first. Every
    `interval` steps the least important of a layer are replaced by the places where the loss would fall fastest.

    Args:
        density: the share of active weights, in (0, 1].
        allocation: the same share of every layer, or more of small ones ("erdos-renyi": Evci et al., 2020).
        interval: gradient steps between two updates (M in algorithm 1); None for 100, or fewer in a short run, so that
            there are 20 updates before the last.
        replacement: the share of the active weights that an update replaces at first.
        schedule: how that share falls to zero until the last update; constant keeps it.
        until: the last update comes after this fraction of training.
        keep_returning: a weight that is removed and chosen again in one update keeps its values.
        keep_weights: start from the largest pretrained weights; otherwise from random places and fresh values.
        init_std: of fresh means; the layer's own initialisation if none is given, scaled up for the weights it lacks.
        thinning: of a trained network, the share of training over which the active weights fall from all of them to
            `density`, fast at first (a cubic, Zhu and Gupta, 2017); 0 cuts it at once, as networks that have not been
            trained always are.
        fewest: of a trained network, how many weights an output keeps on average, whatever the density; None for so
            many that a layer keeps 4,096: up to that size it keeps all, from 81,920 weights on 5 %.
        dense_ends: the first and the last layer of a trained network keep all their weights.
        prior: p(w) of every active weight.
        std: where sigma starts; None for 0.01, and 0.05 times the root mean square weight where weights were trained.
        removal: of the lowest |mu|, SNR(theta), E|theta|, SNR(|theta|), E exp(lam |theta|) or SNR(exp(lam |theta|)).
        lam: lambda of the last two.
        addition: by the gradient under one draw of the weights, at the means, or the mean of several steps.
        addition_steps: how many steps before an update "steps" looks at; a dense tensor a layer sums them up meanwhile.
        new_std: sigma of new weights, whose means are zero: the mean of those that stay in the layer, or a number.
        estimator: how noise reaches the outputs in training; see `leanbayes.layers.estimators`.

    Biases, and whatever a rule leaves alone, stay as they are. The parameters are new ones: make the optimiser after
    the conversion.

    >>> from torch import nn
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    >>> plan = lb.bayesianize_(model, lb.SparseSubspace(density=0.05))
    >>> plan.parameters_before, plan.parameters_after  # 370 active weights, 110 biases
    (7510, 850)
    """

    summary: ClassVar[str] = "a Gaussian for a small share of the weights, and a search for which"

    prior: EmpiricalNormal | Normal | LogUniform | StudentT | ScaleMixture = EmpiricalNormal()  # noqa: RUF009  (frozen)
    std: float | None = None
    removal: Literal["mean", "snr", "abs", "snr-abs", "exp", "snr-exp"] = "snr-abs"
    lam: float = 1.0
    addition: Literal["sample", "mean", "steps"] = "sample"
    addition_steps: int = 5
    new_std: Literal["mean"] | float = "mean"
    estimator: Literal["local", "weight", "flipout"] = "local"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.prior, (EmpiricalNormal, Normal, LogUniform, StudentT, ScaleMixture)):
            raise ConfigError(
                "SparseSubspace.prior: expected a prior such as lb.Normal(std=1.0), "
                f"received {checks.short(self.prior)}"
            )
        check_positive(self, "lam", *(() if self.std is None else ("std",)))
        check_choice(self, "removal", REMOVALS)
        check_choice(self, "addition", ("sample", "mean", "steps"))
        check_choice(self, "estimator", ("local", "weight", "flipout"))
        check_whole(self, "addition_steps")
        if self.addition == "steps" and self.addition_steps > (self.interval or 100):
            raise ConfigError(
                f"SparseSubspace.addition_steps: expected at most the interval of {self.interval or 100} steps, "
                f"received {self.addition_steps}"
            )
        if not isinstance(self.new_std, str) or self.new_std != "mean":
            check_positive(self, "new_std")


@register
@dataclass(frozen=True)
class Rigl(SparseTraining):
    """A share of the weights has values, the others are exactly zero; which ones is learned. Nothing is random.

    Every `interval` steps the smallest weights of a layer are replaced by the places with the largest gradients.

    Args:
        density: the share of active weights, in (0, 1].
        allocation: the same share of every layer, or more of small ones ("erdos-renyi": section 3, ERK).
        interval: gradient steps between two updates (Delta T); None as of `SparseSubspace`.
        replacement: the share of the active weights that an update replaces at first (alpha).
        schedule: how that share falls to zero until the last update; constant keeps it.
        until: the last update comes after this fraction of training.
        keep_returning: a weight that is removed and chosen again in one update keeps its value.
        keep_weights: start from the largest pretrained weights; otherwise from random places and fresh values.
        init_std: of fresh values; the layer's own initialisation if none is given, scaled up for the weights it lacks.
        thinning: as of `SparseSubspace`.
        fewest: as of `SparseSubspace`.
        dense_ends: as of `SparseSubspace`.

    >>> from torch import nn
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    >>> lb.bayesianize_(model, lb.Rigl(density=0.1)).parameters_after  # 740 weights, 110 biases
    850
    """

    summary: ClassVar[str] = "no uncertainty: sparse deterministic training, to compare with"
    random: ClassVar[bool] = False
