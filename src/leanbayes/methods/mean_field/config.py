"""Mean-field Gaussian variational inference (Graves, 2011; Blundell et al., 2015; Kingma et al., 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ... import checks
from ...config import check_choice, check_flag, check_positive
from ...errors import ConfigError
from ...method import Method
from ...priors import EmpiricalNormal, LogUniform, Normal, ScaleMixture, StudentT
from ...registry import register


@register
@dataclass(frozen=True)
class MeanField(Method):
    """Every weight an independent Gaussian N(mu, sigma^2), both learned: twice the parameters.

    Args:
        prior: p(w) of every weight; by default a Gaussian about the weights themselves, which learns where sigma may
            grow and leaves the means to the data.
        std: where sigma starts; None starts it at ``scale`` times the root mean square of each tensor.
        scale: where sigma starts, relative to the layer; not used where std is given.
        random_bias: whether biases are distributions too.
        estimator: how noise reaches the outputs in training; see `leanbayes.layers.estimators`.
        keep_weights: pretrained weights become the means; otherwise the means start afresh.

    >>> from torch import nn
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> plan = lb.bayesianize_(model, lb.MeanField(std=0.02))
    >>> plan.parameters_before, plan.parameters_after
    (58, 116)
    """

    summary: ClassVar[str] = "a Gaussian per weight, mean and variance learned"

    prior: EmpiricalNormal | Normal | LogUniform | StudentT | ScaleMixture = EmpiricalNormal()  # noqa: RUF009  (frozen)
    std: float | None = None
    scale: float = 0.05
    random_bias: bool = True
    estimator: Literal["local", "weight", "flipout"] = "local"
    keep_weights: bool = True

    def __post_init__(self) -> None:
        check_positive(self, "scale")
        if self.std is not None:
            check_positive(self, "std")
        check_flag(self, "random_bias", "keep_weights")
        check_choice(self, "estimator", ("local", "weight", "flipout"))
        if not isinstance(self.prior, (EmpiricalNormal, Normal, LogUniform, StudentT, ScaleMixture)):
            raise ConfigError(
                f"MeanField.prior: expected a prior such as lb.Normal(std=1.0), received {checks.short(self.prior)}"
            )
