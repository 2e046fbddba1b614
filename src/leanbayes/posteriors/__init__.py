"""q(w) of one tensor: moments, sample, what survives a budget."""

from .base import FactorisedGaussian, Posterior
from .gaussian import Gaussian, ZeroMeanGaussian
from .multiplicative import MultiplicativeGaussian

__all__ = ["FactorisedGaussian", "Gaussian", "MultiplicativeGaussian", "Posterior", "ZeroMeanGaussian"]
