"""Appendix B of variance networks: Student's t with 1e-16 degrees of freedom, a proper prior, for the log-uniform one.

LeNet-5 on MNIST with its first dense layer a variance layer. Student's KL is computed by quadrature; the paper samples
it, as it may sample the log-uniform one (equation 9). The sampled KL is unbiased, but its gradient has the tails of a
Cauchy distribution, so that log alpha moves more slowly: the row "sampled" shows that too.
"""

from __future__ import annotations

from torch import nn

import leanbayes as lb

from ...data import DataSet
from ..results import Metrics
from .measures import log_alphas, procedures, swapped_accuracy
from .networks import Line, lenet, small, table

PRIORS = {
    "log-uniform": lb.Variance(log_alpha=-5.0),
    "log-uniform, sampled": lb.Variance(approximation="monte carlo"),
    "Student's t": lb.Variance(prior=lb.StudentT(df=1e-16)),
    "Student's t, sampled": lb.Variance(prior=lb.StudentT(df=1e-16), approximation="monte carlo"),
}


def lines(preset: str) -> dict[str, Line]:
    """A row for every prior."""
    if preset == "smoke":
        return {name: Line(small({"4": method}), samples=4) for name, method in PRIORS.items()}
    return {name: Line(lenet({"dense1": method}, preset)) for name, method in PRIORS.items()}


def measured(model: nn.Module, data: DataSet, samples: int, seed: int) -> Metrics:
    """The three procedures, the swap and log alpha; the KLs differ by a constant, so that they are no measure."""
    return {
        **procedures(model, data, samples, seed),
        **swapped_accuracy(model, data, samples, seed),
        **log_alphas(model),
    }


EXPERIMENT = table("variance-prior", lines, measured)
