"""BatchNorm under patches: one set of running statistics for all components, or one for each, on the embedded digits.

EMP on norm layers and output; the ratios are the test NLL with a set for each over that with one for all, a mean over
seeds. `leanbayes.Patch` takes its default from it.

    python benchmarks/norm_statistics.py
"""

from __future__ import annotations

import statistics
from typing import Any

import torch

import leanbayes as lb
from common import digits_perceptron, parser, publish, result
from leanbayes.methods.patch import norms_and_output


def measure(kind: Any, perturbation: float, seed: int, epochs: int) -> tuple[float, float]:
    """Test NLL and accuracy of one training run."""
    torch.manual_seed(seed)
    model, train, x, y = digits_perceptron()
    patch = lb.Patch(5, cross=False, statistics=kind, perturbation=perturbation)
    lb.bayesianize_(model, norms_and_output(model, patch))
    lb.fit(model, train, epochs=epochs, lr=0.01, seed=seed, progress=False)
    said = lb.predict(model, x, samples=25)
    return float(-said.log_prob(y).mean()), float((said.labels == y).double().mean())


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__, repeats=4).parse_args()
    torch.set_num_threads(options.threads)
    seeds, epochs = range(1 if options.quick else options.repeats), 1 if options.quick else 10
    raw: dict[str, dict[str, Any]] = {}
    rows = [("perturbation", "statistics", "NLL", "accuracy")]
    ratios = {}
    for size in (0.1,) if options.quick else (0.1, 0.3, 0.5):
        for kind in ("shared", "component"):
            found = [measure(kind, size, seed, epochs) for seed in seeds]
            nll, accuracy = ([pair[i] for pair in found] for i in (0, 1))
            raw[f"{kind}, perturbation {size}"] = {"nll": nll, "accuracy": accuracy}
            rows.append((str(size), kind, f"{statistics.mean(nll):.4f}", f"{statistics.mean(accuracy):.4f}"))
        means = [statistics.mean(raw[f"{kind}, perturbation {size}"]["nll"]) for kind in ("component", "shared")]
        ratios[f"NLL, component / shared, perturbation {size}"] = means[0] / means[1]
    publish(result("norm_statistics", ratios, raw), options, "Running statistics of BatchNorm under EMP", rows)


if __name__ == "__main__":
    main()
