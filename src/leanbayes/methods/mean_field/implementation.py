"""What `MeanField` does."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from ...convert.conversion import Conversion, bayes_layer
from ...convert.implementation import Implementation, implements
from ...layers.bayes import BayesLayer
from ...posteriors import Gaussian, Posterior
from ...posteriors.scale import rho_like
from ...priors import EmpiricalNormal
from .config import MeanField


@implements(MeanField)
class _MeanField(Implementation[MeanField]):
    def convert(self, module: nn.Module, conversion: Conversion) -> BayesLayer:
        """A BayesLayer with Gaussian posteriors."""
        config = self.config
        source = module if config.keep_weights else fresh(module)

        def make(name: str) -> Posterior:
            # the parameter itself becomes the mean: optimisers that hold it go on training it
            mean = source.get_parameter(name)
            return Gaussian(mean, rho_like(mean, config.std or relative_std(mean, config.scale)))

        options: Any = {"random_bias": config.random_bias, "estimator": config.estimator}
        return bayes_layer(module, conversion, make, lambda name: config.prior, **options)


def relative_std(w: Tensor, scale: float) -> Tensor:
    """The standard deviation that `EmpiricalNormal(scale)` has about a tensor: scale times its root mean square."""
    return EmpiricalNormal(scale).std(w)


def fresh(module: nn.Module) -> nn.Module:
    """A copy of a module with newly initialised parameters."""
    again = copy.deepcopy(module)
    again.reset_parameters()  # type: ignore[operator]
    return again
