"""Appendix D of variance networks: the first dense layer without means, N(0, sigma^2), trained from scratch.

|.| follows that layer instead of a ReLU, which would zero each of its neurons with probability a half; the row with a
ReLU shows what that costs. There is no network at the means to ask: `predict(..., mean_only=True)` refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ..methods import Variance
from .base import Jobs, Row, recipe
from .variance import done, procedures
from .variance_accuracy import DENSE, lenet, small, vgg
from .workload import Run

if TYPE_CHECKING:
    from collections.abc import Mapping


def lines(preset: str) -> dict[str, tuple[Run, Mapping[str, float], int]]:
    """Run, paper's figures, and samples of every row."""
    zero = Variance("zero")
    if preset == "smoke":
        return {"zero mean": (small({"4": zero}), {}, 4)}
    dense = {"dense1": zero}
    return {
        "zero mean, |.|": (lenet(dense, preset, {**DENSE, "activation": "abs"}), {"ensemble": 0.992}, 20),
        "zero mean, ReLU": (lenet(dense, preset), {}, 20),
        "zero mean, |.|, VGG-like": (vgg(dense, preset, activation="abs"), {"ensemble": 0.929}, 10),
    }


@recipe(
    "variance-zero-mean",
    "variance networks, appendix D: the first dense layer without means from the start; LeNet-5, VGG-like",
    seeds={"smoke": 1, "cpu": 1, "paper": 1},
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row a network."""
    for name, (run, paper, samples) in lines(preset).items():
        measured = partial(procedures, samples=samples, seed=0)
        yield Row(run.data, name, run.epochs, [done(jobs, run, 0, name, measured, samples=samples)], paper=paper)
