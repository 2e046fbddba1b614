"""Variational dropout: Gaussian noise in proportion to the weight, under a log-uniform prior that prunes.

Kingma et al. (2015) learn alpha up to 1. Molchanov et al. (2017) let it grow, and train (theta, sigma) to keep the
noise of gradients low; weights with a large alpha can be removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ...config import check_between, check_choice, check_flag
from ...errors import ConfigError
from ...method import Method
from ...registry import register


@register
@dataclass(frozen=True)
class VariationalDropout(Method):
    """Every weight N(theta, alpha theta^2), with the log-uniform prior.

    Args:
        approximation: of the KL; kingma is for alpha up to 1, exact goes through Dawson's function.
        parameterisation: additive learns (theta, sigma), alpha = sigma^2 / theta^2, as Molchanov et al. do;
            multiplicative learns (theta, log alpha) itself.
        granularity: of alpha, where it is multiplicative.
        log_alpha: where it starts; an additive sigma starts at sqrt(alpha) times the layer's root mean square weight.
        estimator: how noise reaches the outputs in training; see `leanbayes.layers.estimators`.
        keep_weights: pretrained weights become theta; otherwise it starts afresh.

    >>> from torch import nn
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8))
    >>> _ = lb.bayesianize_(model, lb.VariationalDropout(parameterisation="multiplicative", granularity="layer"))
    >>> model[0].posteriors["weight"].log_alpha.numel()
    1
    """

    summary: ClassVar[str] = "noise in proportion to the weight; prunes by log alpha"

    approximation: Literal["molchanov", "kingma", "cui", "exact"] = "molchanov"
    parameterisation: Literal["additive", "multiplicative"] = "additive"
    granularity: Literal["weight", "neuron", "layer"] = "weight"
    log_alpha: float = -6.0
    estimator: Literal["local", "weight", "flipout"] = "local"
    keep_weights: bool = True

    def __post_init__(self) -> None:
        check_between(self, "log_alpha", -50.0, 50.0)
        check_flag(self, "keep_weights")
        check_choice(self, "approximation", ("molchanov", "kingma", "cui", "exact"))
        check_choice(self, "parameterisation", ("additive", "multiplicative"))
        check_choice(self, "granularity", ("weight", "neuron", "layer"))
        check_choice(self, "estimator", ("local", "weight", "flipout"))
        if self.parameterisation == "additive" and self.granularity != "weight":
            raise ConfigError(
                f"VariationalDropout: an additive sigma is per weight, received granularity={self.granularity!r}; "
                "use parameterisation='multiplicative'"
            )
