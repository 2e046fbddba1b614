"""What balanced samples are worth: how many independent ones have the same error, on the embedded digits.

Small networks are trained, patched and mean-field; `leanbayes.evaluation.sample_efficiency` says what is
measured. The ratios are the independent samples that 20 balanced ones are worth, over 20.

    python benchmarks/balanced.py
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from common import digits_perceptron, parser, publish, result
from leanbayes.evaluation.sample_efficiency import INDEPENDENT, measures, worth
from leanbayes.methods.patch import norms_and_output


def trained(method: Any, epochs: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A patched network fitted to the digits, and test data."""
    torch.manual_seed(0)
    model, train, x, y = digits_perceptron()
    lb.bayesianize_(model, norms_and_output(model, method) if isinstance(method, lb.Patch) else method)
    lb.fit(model, train, epochs=epochs, lr=0.01, seed=0, progress=False)
    return model, x, y


def cases() -> dict[str, Any]:
    """EMP and ECMP with components that start close together or far apart, and Gaussians (antithetic pairs)."""
    return {
        "EMP, close": lb.Patch(5, cross=False, perturbation=0.1),
        "ECMP, close": lb.Patch(5, perturbation=0.1),
        "EMP": lb.Patch(5, cross=False),
        "ECMP": lb.Patch(5),
        "EMP, wide": lb.Patch(5, cross=False, perturbation=0.5),
        "ECMP, wide": lb.Patch(5, perturbation=0.5),
        "mean-field": lb.MeanField(),
    }


def measure(method: Any, quick: bool, repeats: int) -> dict[str, dict[str, Any]]:
    """Train one network and ask it."""
    model, x, y = trained(method, epochs=2 if quick else 15)
    many = 400 if quick else 4_000

    def said(samples: int, seed: int, balanced: bool) -> Tensor:
        return lb.predict(model, x, samples=samples, seed=seed, balanced=balanced, chunk=2**20).probs

    exact = said(many, 0, True)
    independent = INDEPENDENT[:3] if quick else INDEPENDENT
    return worth(said, exact, measures(y), repeats=repeats, independent=independent)


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__, repeats=20).parse_args()
    if options.quick:
        options.repeats = 3
    torch.set_num_threads(options.threads)
    chosen = dict(list(cases().items())[: 1 if options.quick else None])
    raw = {name: measure(method, options.quick, options.repeats) for name, method in chosen.items()}
    ratios = {
        f"{name}: {what}": found["worth"] / 20
        for name, each in raw.items()
        for what, found in each.items()
        if found["worth"] is not None
    }
    rows = [("", "of the predictive mean", "of NLL", "of ECE")]
    rows += [(name, *(_told(found) for found in each.values())) for name, each in raw.items()]
    for each in raw.values():
        for found in each.values():
            del found["each"]
    publish(
        result("balanced", ratios, raw, samples=20),
        options,
        "Independent samples that have the error of 20 balanced ones",
        rows,
    )


def _told(found: dict[str, Any]) -> str:
    if found["worth"] is None:
        return "not to be read off"
    return f"{'at least ' if found['at_least'] else ''}{found['worth']:.0f}"


if __name__ == "__main__":
    main()
