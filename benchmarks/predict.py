"""What samples cost: with a Bayesian last layer against one forward pass, and a loop over samples against vmap.

A loop over S samples costs S passes; vmap runs what precedes the first random layer once and costs
prefix + r * S * (1 - prefix) passes. The factor r is measured here for several networks, and `leanbayes.predict.probe`
takes its cost rule from it.

    python benchmarks/predict.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from common import interleaved, parser, publish, result, timing
from leanbayes.predict.probe import probe

LAST_LAYER = "resnet18 last layer"


@dataclass(frozen=True)
class Case:
    """A network, which of its layers are random, a batch and a number of samples.

    rounds: a multiple of the repeats, for what takes only milliseconds.
    """

    name: str
    make: Callable[[], nn.Module]
    rules: Any
    shape: tuple[int, ...]
    samples: int
    rounds: int = 1


def cases(quick: bool) -> list[Case]:
    """Random layers at the end, in the last block, everywhere; convolutions and matrix products."""
    from leanbayes.models import mlp, resnet18_cifar

    size, samples, batch = (8, 2, 4) if quick else (32, 8, 64)
    images, few, one = (batch, 3, size, size), (8, 3, size, size), (1, 3, size, size)
    method = lb.MeanField()
    block, stage = {"layer4.1.*": method, "fc": method}, {"layer4.*": method, "fc": method}

    def resnet() -> nn.Module:
        return resnet18_cifar(width=4 if quick else 64)

    def perceptron() -> nn.Module:
        return mlp(784, (32 if quick else 400,) * 2, 10)

    every = [
        Case(LAST_LAYER, resnet, {"fc": method}, images, 16 if quick else 100),
        Case("resnet18 last block", resnet, block, images, samples),
        Case("resnet18 last block, 8 data", resnet, block, few, samples),
        Case("resnet18 last stage", resnet, stage, images, samples),
        Case("resnet18 last stage, 8 data", resnet, stage, few, samples),
        Case("resnet18 all layers, 8 data", resnet, method, few, samples),
        Case("resnet18 all layers, 1 datum", resnet, method, one, samples),
        Case("mlp all layers", perceptron, method, (batch, 784), 32, rounds=5),
        Case("mlp all layers, 1 datum", perceptron, method, (1, 784), 32, rounds=5),
    ]
    return [every[0], every[1], every[-2]] if quick else every


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """One forward pass of the plain network, a loop over samples and vmap, in the same rounds.

    A loop costs the same for every sample, so 8 of them stand for all.
    """
    torch.manual_seed(0)
    plain, model, x = case.make().eval(), case.make().eval(), torch.randn(case.shape)
    lb.bayesianize_(model, case.rules)
    with torch.no_grad():
        found = probe(model, x)

    def forward() -> Tensor:
        with torch.no_grad():
            return plain(x)

    def predict(strategy: Any, samples: int) -> Callable[[], Any]:
        return lambda: lb.predict(model, x, samples=samples, task="classification", strategy=strategy)

    few, samples = min(case.samples, 8), case.samples
    chosen = predict("auto", samples)().engine
    runs = {"forward": forward, "loop": predict("loop", few), "vmap": predict("vmap", samples)}
    seconds = interleaved(runs, repeats * case.rounds)
    seconds["loop"] = [s * samples / few for s in seconds["loop"]]
    times = {name: timing(values, seconds["forward"]) for name, values in seconds.items()}
    loop, vmap = times["loop"]["ratio_of_minima"], times["vmap"]["ratio_of_minima"]
    prefix = found.prefix
    return {
        "samples": samples,
        "shape": list(case.shape),
        "prefix": prefix,
        **times,
        "vmap_over_loop": vmap / loop,
        # drawing the noise costs both the same, so the difference of the two tells what the arithmetic costs
        "factor": (samples - prefix - (loop - vmap)) / (samples * (1 - prefix)) if prefix < 0.95 else None,
        "auto": chosen,
    }


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__, repeats=5).parse_args()
    if options.quick:
        options.repeats = 1
    torch.set_num_threads(options.threads)
    raw = {case.name: measure(case, options.repeats) for case in cases(options.quick)}
    last = raw[LAST_LAYER]
    ratios = {f"{last['samples']} samples of the last layer / one forward pass": last["vmap"]["ratio_of_minima"]}
    ratios |= {f"{name}: vmap / loop": found["vmap_over_loop"] for name, found in raw.items()}
    publish(
        result("predict", ratios, raw),
        options,
        f"Prediction, {torch.get_num_threads()} threads; costs in forward passes of the plain network",
        [("", "samples", "prefix", "loop", "vmap", "vmap / loop", "factor r", "auto"), *map(_row, raw.items())],
    )


def _row(entry: tuple[str, dict[str, Any]]) -> tuple[str, ...]:
    name, found = entry
    costs = (f"{found[s]['ratio_of_minima']:.2f}" for s in ("loop", "vmap"))
    shares = (f"{found['vmap_over_loop']:.2f}", "-" if found["factor"] is None else f"{found['factor']:.2f}")
    return (name, str(found["samples"]), f"{found['prefix']:.3f}", *costs, *shares, found["auto"])


if __name__ == "__main__":
    main()
