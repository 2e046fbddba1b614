"""Appendix D of variance networks: the first dense layer without means, N(0, sigma^2), trained from scratch.

|.| follows that layer instead of a ReLU, which would zero each of its neurons with probability a half; the row with a
ReLU shows what that costs. There is no network at the means: `predict(..., mean_only=True)` raises an error.
"""

from __future__ import annotations

import leanbayes as lb

from .measures import procedures
from .networks import DENSE, Line, lenet, small, table, vgg


def lines(preset: str) -> dict[str, Line]:
    """A row for every network."""
    zero = lb.Variance("zero")
    if preset == "smoke":
        return {"zero mean": Line(small({"4": zero}), samples=4)}
    dense = {"dense1": zero}
    return {
        "zero mean, |.|": Line(lenet(dense, preset, {**DENSE, "activation": "abs"})),
        "zero mean, ReLU": Line(lenet(dense, preset)),
        "zero mean, |.|, VGG-like": Line(vgg(dense, preset, activation="abs"), samples=10),
    }


EXPERIMENT = table("variance-zero-mean", lines, procedures)
