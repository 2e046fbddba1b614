"""Variance networks (Neklyudov et al., 2019): layers that store what they learn in the variances of their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ... import checks
from ...config import check_between, check_choice, check_flag
from ...errors import ConfigError
from ...method import Method
from ...priors import LogUniform, StudentT
from ...registry import register

PARAMETERISATIONS = ("layer", "neuron", "weight", "additive", "zero")
APPROXIMATIONS = (None, "molchanov", "exact", "monte carlo")


@register
@dataclass(frozen=True)
class Variance(Method):
    """Every weight N(mu, alpha mu^2), with an alpha that may grow until the mean no longer matters.

    Args:
        parameterisation: one alpha a layer, neuron or weight (equations 17 to 19), a sigma of its own for every weight
            (additive, equation 20), or no mean at all, N(0, sigma^2) (zero, equation 12).
        log_alpha: where alpha starts, in all parameterisations but zero, from the same distribution; the paper has -5.
        prior: log-uniform, or Student's t, its proper stand-in (appendix B: StudentT(df=1e-16)).
        approximation: of the KL; None takes molchanov for the log-uniform prior, exact for Student's t.
        estimator: how noise reaches the outputs in training; see `leanbayes.layers.estimators`.
        keep_weights: pretrained weights become mu (their magnitudes sigma, where there is no mean); otherwise afresh.

    Past log alpha of about 5 a layer has gone through its phase transition: the means of its weights carry no more
    information than the variances, and predictions at the means can be random. Predict with samples.

    >>> from torch import nn
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    >>> plan = lb.bayesianize_(model, {"0": lb.Variance()})
    >>> plan.parameters_after - plan.parameters_before  # one alpha
    1
    """

    summary: ClassVar[str] = "knowledge in the variances; one alpha a layer"

    parameterisation: Literal["layer", "neuron", "weight", "additive", "zero"] = "layer"
    log_alpha: float = -6.0
    prior: LogUniform | StudentT = LogUniform()  # noqa: RUF009  (frozen)
    approximation: Literal["molchanov", "exact", "monte carlo"] | None = None
    estimator: Literal["local", "weight", "flipout"] = "local"
    keep_weights: bool = True

    def __post_init__(self) -> None:
        check_choice(self, "parameterisation", PARAMETERISATIONS)
        check_between(self, "log_alpha", -50.0, 50.0)
        check_choice(self, "approximation", APPROXIMATIONS)
        check_choice(self, "estimator", ("local", "weight", "flipout"))
        check_flag(self, "keep_weights")
        if not isinstance(self.prior, (LogUniform, StudentT)):
            raise ConfigError(
                "Variance.prior: expected lb.LogUniform() or lb.StudentT(df=1e-16), "
                f"received {checks.short(self.prior)}"
            )
        if self.approximation == "molchanov" and not isinstance(self.prior, LogUniform):
            raise ConfigError(
                "Variance.approximation: Molchanov's formula is for the log-uniform prior, received it with "
                f"{self.prior!r}; use 'exact' or 'monte carlo'"
            )
