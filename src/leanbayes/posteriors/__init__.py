"""Posteriors q(w) of one tensor: moments, samples, densities."""

from .base import FactorisedGaussian, Posterior
from .gaussian import Gaussian, ZeroMeanGaussian
from .multiplicative import MultiplicativeGaussian

__all__ = ["FactorisedGaussian", "Gaussian", "MultiplicativeGaussian", "Posterior", "ZeroMeanGaussian"]
