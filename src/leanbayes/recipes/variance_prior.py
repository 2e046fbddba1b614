"""Appendix B of variance networks: Student's t with 1e-16 degrees of freedom, a proper prior, for the log-uniform one.

LeNet-5 on MNIST with its first dense layer a variance layer. Student's KL is computed by quadrature; the paper samples
it, as it may sample the log-uniform one (equation 9). The sampled KL is unbiased, but its gradient has the tails of a
Cauchy distribution, so that log alpha moves more slowly: the row "sampled" shows that too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ..methods import Variance
from ..priors import StudentT
from .base import Jobs, Metrics, Row, recipe
from .variance import done, log_alphas, procedures, swapped_accuracy
from .variance_accuracy import lenet, small

if TYPE_CHECKING:
    from torch import nn

    from ..data import DataSet

PRIORS = {
    "log-uniform": Variance(),
    "log-uniform, sampled": Variance(approximation="monte carlo"),
    "Student's t": Variance(prior=StudentT(df=1e-16)),
    "Student's t, sampled": Variance(prior=StudentT(df=1e-16), approximation="monte carlo"),
}


@recipe(
    "variance-prior",
    "variance networks, appendix B: a proper prior, Student's t with 1e-16 degrees of freedom; LeNet-5",
    seeds={"smoke": 1, "cpu": 1, "paper": 1},
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row a prior; the paper has figures for Student's t alone."""
    samples = 4 if preset == "smoke" else 20
    for name, method in PRIORS.items():
        run = small({"4": method}) if preset == "smoke" else lenet({"dense1": method}, preset)
        metrics = done(jobs, run, 0, name, partial(measured, samples=samples, seed=0), samples=samples)
        paper = {"ensemble": 0.992} if name == "Student's t" and preset != "smoke" else {}
        yield Row(run.data, name, run.epochs, [metrics], paper=paper)


def measured(model: nn.Module, data: DataSet, samples: int, seed: int) -> Metrics:
    """The three procedures, the swap and log alpha; the KLs differ by a constant, so that they are no measure."""
    return {
        **procedures(model, data, samples, seed),
        **swapped_accuracy(model, data, samples, seed),
        **log_alphas(model),
    }
