"""The implementation of `VariationalDropout`."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from ...convert.conversion import Conversion, bayes_layer
from ...convert.implementation import Implementation, implements
from ...layers.bayes import BayesLayer
from ...posteriors import Gaussian, MultiplicativeGaussian, Posterior
from ...posteriors.multiplicative import alpha_shape
from ...posteriors.scale import rho_like
from ...priors import LogUniform
from ..mean_field.implementation import fresh
from .config import VariationalDropout


@implements(VariationalDropout)
class _VariationalDropout(Implementation[VariationalDropout]):
    def convert(self, module: nn.Module, conversion: Conversion) -> BayesLayer:
        """A BayesLayer whose weight has noise; biases stay as they are."""
        config = self.config
        source = module if config.keep_weights else fresh(module)

        def make(name: str) -> Posterior:
            # the parameter itself becomes theta: optimisers that hold it go on training it
            theta = source.get_parameter(name)
            if config.parameterisation == "multiplicative":
                shape = alpha_shape(theta.shape, config.granularity)
                return MultiplicativeGaussian(theta, theta.detach().new_full(shape, config.log_alpha))
            scale = 1.0 if theta.is_meta else max(float(theta.detach().square().mean().sqrt()), 1e-6)
            return Gaussian(theta, rho_like(theta, scale * math.exp(config.log_alpha / 2)))

        options: Any = {"random_bias": False, "estimator": config.estimator, "approximation": config.approximation}
        return bayes_layer(module, conversion, make, lambda name: LogUniform(), **options)
