"""What a Bayesian training step costs: forward, loss with KL, backward, Adam; against a deterministic step and peers.

All contenders start from the same weights with sigma = 0.02 and see the same batch. Beside the time stands the variance
of the gradient over draws of the noise, since an estimator can be cheap and useless: the trace of the covariance of the
gradient of the mean negative log-likelihood, absolutely and relative to the squared norm of the expected gradient.

A nested network stands beside the mean-field one whose channels it orders ("nested / local"). Where it skips the
channels that a draw drops, every step takes another time: it is compared by the mean over the rounds.

    pip install torchbnn && pip install --no-deps bayesian-torch    # the peers, where wanted
    python benchmarks/step.py
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common import interleaved, parser, publish, result, timing
from peers import NESTED, SKIPPING, STD, Contender, contenders

BASELINE = "deterministic"


@dataclass(frozen=True)
class Problem:
    """The network and the batch that all contenders share."""

    model: nn.Module
    x: Tensor
    y: Tensor
    num_data: int = 50_000


def problem(quick: bool) -> Problem:
    """ResNet-18 for CIFAR at batch 64; the quick one is narrow and sees small images."""
    from leanbayes.models import resnet18_cifar

    torch.manual_seed(0)
    batch, size, width = (8, 8, 4) if quick else (64, 32, 64)
    model = resnet18_cifar(width=width).train()
    return Problem(model, torch.randn(batch, 3, size, size), torch.randint(0, 10, (batch,)))


def stepper(contender: Contender, task: Problem) -> Callable[[], None]:
    """One training step of a contender as a function."""
    model, optimiser = contender.model, torch.optim.Adam(contender.model.parameters(), 1e-4)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(task.x), task.y)
        if contender.kl is not None:
            loss = loss + contender.kl(model) / task.num_data
        loss.backward()
        optimiser.step()

    return step


def gradient_noise(contender: Contender, task: Problem, draws: int) -> dict[str, Any]:
    """Variance of the gradient of the negative log-likelihood over draws, for means and sigmas separately.

    The expected gradient is estimated from the same draws; its squared norm is freed of the bias that brings, and where
    nothing is left of it the relative variance is None.
    """
    assert contender.gradients is not None
    sums: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for _ in range(draws):
        contender.model.zero_grad(set_to_none=True)
        F.cross_entropy(contender.model(task.x), task.y).backward()
        for kind, gradients in contender.gradients(contender.model).items():
            if kind not in sums:
                sums[kind] = [
                    (torch.zeros_like(g, dtype=torch.double), torch.zeros_like(g, dtype=torch.double))
                    for g in gradients
                ]
            for g, (first, second) in zip(gradients, sums[kind], strict=True):
                first += g
                second += g.double().square()
    found = {}
    for kind, pairs in sums.items():
        square = sum(float(first.square().sum()) for first, _ in pairs) / draws**2
        variance = (sum(float(second.sum()) for _, second in pairs) / draws - square) * draws / (draws - 1)
        signal = square - variance / draws
        found[kind] = {"variance": variance, "relative": variance / signal if signal > 0 else None}
    return {**found, "draws": draws}


def main() -> None:
    """Measure, print and write."""
    options = _options()
    torch.set_num_threads(options.threads)
    task = problem(options.quick)
    entered, missing = contenders(task.model)
    raw: dict[str, Any] = {name: {"missing": how} for name, how in missing.items()}
    steps = {BASELINE: stepper(Contender(copy.deepcopy(task.model)), task)}
    noise = {}
    for name, build in entered.items():
        torch.manual_seed(1)
        contender = build()
        if contender.gradients is not None:
            noise[name] = gradient_noise(contender, task, options.draws)  # before training moves the posterior
        steps[name] = stepper(contender, task)
    seconds = interleaved(steps, options.repeats)
    for name, values in seconds.items():
        raw[name] = {**timing(values, seconds[BASELINE]), "gradient": noise.get(name)}
    ratios = {name: raw[name]["ratio_of_minima"] for name in seconds if name not in (BASELINE, SKIPPING)}
    local = seconds["leanbayes local"]
    ratios["nested / local"] = min(seconds[NESTED]) / min(local)
    ratios["nested, skipping / local, by means"] = statistics.fmean(seconds[SKIPPING]) / statistics.fmean(local)
    batch = {"batch": len(task.x), "parameters": sum(p.numel() for p in task.model.parameters()), "std": STD}
    publish(
        result("step", ratios, raw, network="resnet18_cifar", optimiser="Adam", **batch),
        options,
        f"One training step, batch {len(task.x)}, {torch.get_num_threads()} threads",
        [
            ("", "s (min)", "x det.", "x (median)", "grad var mu", "relative", "grad var sigma", "relative"),
            *map(_row, raw.items()),
        ],
    )


def _row(entry: tuple[str, dict[str, Any]]) -> tuple[str, ...]:
    name, found = entry
    if "missing" in found:
        return (name, f"not installed: {found['missing']}")
    cells = [name, f"{found['seconds_min']:.3f}", f"{found['ratio_of_minima']:.2f}", f"{found['median_of_ratios']:.2f}"]
    for kind in ("mean", "sigma"):
        noise = (found["gradient"] or {}).get(kind)
        cells += ["-", "-"] if noise is None else [_number(noise["variance"]), _number(noise["relative"])]
    return tuple(cells)


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _options() -> argparse.Namespace:
    options = parser(__doc__, repeats=7)
    options.add_argument("--draws", type=int, default=12, help="draws of the noise for the variance of the gradient")
    found = options.parse_args()
    if found.quick:
        found.repeats, found.draws = min(found.repeats, 2), min(found.draws, 3)
    return found


if __name__ == "__main__":
    main()
