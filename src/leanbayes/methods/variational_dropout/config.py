"""Variational dropout: Gaussian noise in proportion to the weight, under a log-uniform prior that prunes.

Kingma et al. (2015) learn alpha up to 1; Molchanov et al. (2017) let it grow and train (theta, sigma) so that gradients
stay quiet where it does; weights with a large alpha carry nothing and can go.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ...config import check_between, check_choice, check_flag
from ...errors import ConfigError
from ...method import Method
from ...priors import LogUniform
from ...registry import register

if TYPE_CHECKING:
    from torch import nn

    from ...posteriors.base import Posterior


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
    log_alpha: float = -5.0
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

    def refuses(self, module: nn.Module) -> str | None:
        """Whatever has no operation with a weight."""
        from ...layers.operations import refusal

        return refusal(module)

    def convert(self, module: nn.Module, memo: dict[int, Posterior]) -> nn.Module:
        """A BayesLayer whose weight has noise; biases stay as they are."""
        from ...layers.bayes import bayes_layer
        from ...posteriors import Gaussian, MultiplicativeGaussian
        from ...posteriors.multiplicative import alpha_shape
        from ...posteriors.scale import rho_like
        from ..mean_field.config import fresh

        source = module if self.keep_weights else fresh(module)

        def make(name: str) -> Posterior:
            # the parameter itself becomes theta: optimisers that hold it go on training it
            theta = source._parameters[name]
            assert theta is not None
            if self.parameterisation == "multiplicative":
                shape = alpha_shape(theta.shape, self.granularity)
                return MultiplicativeGaussian(theta, theta.detach().new_full(shape, self.log_alpha))
            scale = 1.0 if theta.is_meta else max(float(theta.detach().square().mean().sqrt()), 1e-6)
            return Gaussian(theta, rho_like(theta, scale * math.exp(self.log_alpha / 2)))

        return bayes_layer(
            module,
            make,
            lambda name: LogUniform(),
            random_bias=False,
            memo=memo,
            estimator=self.estimator,
            approximation=self.approximation,
        )
