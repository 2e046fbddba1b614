"""The implementation of `Variance`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ...convert.conversion import Conversion, bayes_layer
from ...convert.implementation import Implementation, implements
from ...layers.bayes import BayesLayer
from ...posteriors import Gaussian, MultiplicativeGaussian, Posterior, ZeroMeanGaussian
from ...posteriors.multiplicative import alpha_shape
from ...posteriors.scale import rho_like
from ...priors import LogUniform
from ..mean_field.implementation import fresh
from .config import Variance


@implements(Variance)
class _Variance(Implementation[Variance]):
    def convert(self, module: nn.Module, conversion: Conversion) -> BayesLayer:
        """A BayesLayer whose weight has noise; biases stay as they are."""
        config = self.config
        source = module if config.keep_weights else fresh(module)

        def make(name: str) -> Posterior:
            # the parameter itself becomes mu: optimisers that hold it go on training it
            return self._posterior(source.get_parameter(name))

        options: Any = {"random_bias": False, "estimator": config.estimator}
        approximation = config.approximation or ("molchanov" if isinstance(config.prior, LogUniform) else "exact")
        return bayes_layer(module, conversion, make, lambda name: config.prior, approximation=approximation, **options)

    def _posterior(self, mu: nn.Parameter) -> Posterior:
        config = self.config
        if config.parameterisation == "zero":
            return ZeroMeanGaussian(rho_like(mu, magnitudes(mu)))
        if config.parameterisation == "additive":
            return Gaussian(mu, rho_like(mu, math.exp(config.log_alpha / 2) * magnitudes(mu)))
        shape = alpha_shape(mu.shape, config.parameterisation)
        return MultiplicativeGaussian(mu, mu.detach().new_full(shape, config.log_alpha))


def magnitudes(w: Tensor) -> Tensor:
    """|w|, in at least single precision, but nowhere less than a hundredth of its root mean square.

    A sigma that starts far below the others hardly grows, since its gradient is proportional to it. A tensor of zeros
    gets 1 / sqrt(fan-in), as torch's own initialisation would.
    """
    size = w.detach().abs().to(torch.promote_types(w.dtype, torch.float32))
    if size.is_meta:
        return size
    scale = float(size.square().mean().sqrt())
    if scale == 0:
        return torch.full_like(size, 1 / math.sqrt(max(w[0].numel(), 1)))
    return size.clamp_min(0.01 * scale)
