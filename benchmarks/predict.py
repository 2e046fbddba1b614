"""What samples cost: with a Bayesian last layer against one forward pass, and a loop over samples against vmap.

A loop over S samples costs S passes; vmap runs what precedes the first random layer once and costs
prefix + r * S * (1 - prefix) passes. The factor r is measured here for several networks, and
`leanbayes.prediction.probe` takes its cost rule from it.

Patches (ensemble model patching) are held against as many separate forward passes of the plain network: with norm
layers patched the samples are one larger batch, and those that take the same components in their first layers share
them; with the output layer patched all that precedes it runs once. These are timed by the CPU's clock, in turns.

    python benchmarks/predict.py
    python benchmarks/predict.py --patches --threads 1 --repeats 3

Small networks, where calls cost more than arithmetic: 32 samples of every method at its defaults against 32 passes and
against `predict` of the plain network. One datum and a batch of 64 go through the network of `leanbayes demo`, one
datum through a residual network with BatchNorm for images of 28 x 28. Timed by the CPU's clock, in turns, in one
process; ratios are of minima.

    python benchmarks/predict.py --methods --threads 1 --repeats 7
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from common import RESULTS, interleaved, parser, publish, result, timing
from leanbayes.prediction.probe import probe

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


PATCH_SAMPLES = 200


def patches(quick: bool) -> list[Case]:
    """EMP and ECMP on the norm layers, or on the output layer, of a ResNet-18 and a small PyramidNet; few images."""
    from leanbayes.methods.patch import norms
    from leanbayes.models import pyramidnet_cifar, pyramidnet_small, resnet18_cifar

    def resnet() -> nn.Module:
        return resnet18_cifar(width=4 if quick else 64)

    def pyramid() -> nn.Module:
        return pyramidnet_cifar(depth=8, alpha=6, width=4) if quick else pyramidnet_small()

    shape = (2, 3, 8, 8) if quick else (8, 3, 32, 32)
    emp, ecmp = lb.Patch(5, cross=False), lb.Patch(5, cross=True)
    every = [
        Case(f"{network} {what} {name}", make, norms(patch) if what == "norms" else {"fc": patch}, shape, PATCH_SAMPLES)
        for network, make in (("resnet18", resnet), ("pyramidnet", pyramid))
        for what in ("norms", "output")
        for name, patch in (("EMP", emp), ("ECMP", ecmp))
    ]
    return [every[0], every[3]] if quick else every


def measure_patches(chosen: list[Case], repeats: int) -> dict[str, dict[str, Any]]:
    """200 samples of each patched network against 200 passes of the plain one, by the CPU's clock.

    Passes cost the same, so 50 of them stand for all.
    """
    found: dict[str, dict[str, Any]] = {}
    for case in chosen:
        torch.manual_seed(0)
        plain, model, x = case.make().eval(), case.make().eval(), torch.randn(case.shape)
        lb.bayesianize_(model, case.rules)
        runs: dict[str, Callable[[], Any]] = {
            "passes": partial(_passes, plain, x, 50),
            "predict": partial(lb.predict, model, x, samples=case.samples, task="classification"),
        }
        seconds = _cpu_seconds(runs, repeats)
        seconds["passes"] = [s * case.samples / 50 for s in seconds["passes"]]
        found[case.name] = {
            "samples": case.samples,
            "shape": list(case.shape),
            "engine": runs["predict"]().engine,
            **{name: timing(values, seconds["passes"]) for name, values in seconds.items()},
        }
    return found


class Residual(nn.Module):
    """relu(x + f(x)) with two convolutions and their norms."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        convolution = partial(nn.Conv2d, channels, channels, 3, padding=1, bias=False)
        self.inner = nn.Sequential(
            convolution(), nn.BatchNorm2d(channels), nn.ReLU(), convolution(), nn.BatchNorm2d(channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.inner(x))


def residual(width: int = 16) -> nn.Module:
    """The kind of network that somebody brings along: BatchNorm, residual sums, dropout."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), Residual(width),
        nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, padding=1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(),
        Residual(2 * width), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(2 * width, 10),
    )  # fmt: skip


METHODS = (
    lb.MeanField(), lb.VariationalDropout(), lb.Dropout(), lb.Variance(), lb.Ensemble(), lb.SparseSubspace(),
    lb.Patch(), lb.Nested(),
)  # fmt: skip
SAMPLES = 32


def measure_methods(quick: bool, repeats: int) -> dict[str, dict[str, Any]]:
    """Predictions of every method for few data; the repeats of each method and of the plain network alternate."""
    from leanbayes.models import convnet

    chosen: list[tuple[str, Callable[[], nn.Module], tuple[int, ...]]] = [
        ("demo", convnet, (1, 1, 8, 8)),
        ("demo", convnet, (4 if quick else 64, 1, 8, 8)),
        ("residual", partial(residual, 4 if quick else 16), (1, 1, 28, 28)),
    ]
    found: dict[str, dict[str, Any]] = {}
    for network, make, shape in chosen:
        torch.manual_seed(0)
        plain, x = make().eval(), torch.randn(shape)
        runs: dict[str, Callable[[], Any]] = {
            "passes": partial(_passes, plain, x, SAMPLES),
            "plain prediction": partial(lb.predict, plain, x, task="classification"),
        }
        for method in METHODS:
            model = make().eval()
            lb.bayesianize_(model, method)
            runs[type(method).__name__] = partial(lb.predict, model, x, samples=SAMPLES, task="classification")
        seconds = _cpu_seconds(runs, repeats)
        for method in METHODS:
            name = type(method).__name__
            found[f"{network}, {shape[0]} data, {name}"] = {
                "engine": runs[name]().engine,
                "passes": timing(seconds["passes"], seconds["passes"]),
                "plain prediction": timing(seconds["plain prediction"], seconds["passes"]),
                "predict": timing(seconds[name], seconds["passes"]),
                "predictions": min(seconds[name]) / min(seconds["plain prediction"]),
            }
    return found


def _cpu_seconds(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """As `interleaved`, by the CPU's clock: what others do on the machine counts less."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for round_number in range(repeats + 1):
        for name, run in runs.items():
            start = time.process_time()
            run()
            if round_number:
                seconds[name].append(time.process_time() - start)
    return seconds


def _passes(model: nn.Module, x: Tensor, count: int) -> None:
    with torch.no_grad():
        for _ in range(count):
            model(x)


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
    arguments = parser(__doc__, repeats=5)
    arguments.add_argument("--patches", action="store_true", help="measure patches instead")
    arguments.add_argument("--methods", action="store_true", help="measure small networks under every method instead")
    options = arguments.parse_args()
    if options.quick:
        options.repeats = 1
    torch.set_num_threads(options.threads)
    if options.methods:
        _publish_methods(options)
        return
    if options.patches:
        if not options.quick:
            options.output = options.output or RESULTS / "predict_patches.json"
        raw = measure_patches(patches(options.quick), options.repeats)
        ratios = {f"{name}: 200 samples / 200 passes": v["predict"]["median_of_ratios"] for name, v in raw.items()}
    else:
        raw = {case.name: measure(case, options.repeats) for case in cases(options.quick)}
        last = raw[LAST_LAYER]
        ratios = {f"{last['samples']} samples of the last layer / one forward pass": last["vmap"]["ratio_of_minima"]}
        ratios |= {f"{name}: vmap / loop": found["vmap_over_loop"] for name, found in raw.items()}
    header = ("", "samples", "prefix", "loop", "vmap", "vmap / loop", "factor r", "auto", "samples / passes")
    publish(
        result("predict", ratios, raw),
        options,
        f"Prediction, {torch.get_num_threads()} threads; costs in forward passes of the plain network",
        [header, *map(_patch_row if options.patches else _row, raw.items())],
    )


def _publish_methods(options: argparse.Namespace) -> None:
    if not options.quick:
        options.output = options.output or RESULTS / "predict_methods.json"
    raw = measure_methods(options.quick, options.repeats)
    ratios = {f"{name}: 32 samples / 32 passes": v["predict"]["ratio_of_minima"] for name, v in raw.items()}
    ratios |= {f"{name}: 32 samples / plain predictions": v["predictions"] for name, v in raw.items()}
    rows = [
        (name, v["engine"], f"{v['predict']['ratio_of_minima']:.2f}", f"{v['predictions']:.1f}")
        for name, v in raw.items()
    ]
    title = f"32 samples, {torch.get_num_threads()} threads"
    publish(
        result("predict", ratios, raw), options, title, [("", "engine", "/ 32 passes", "/ plain predictions"), *rows]
    )


def _row(entry: tuple[str, dict[str, Any]]) -> tuple[str, ...]:
    name, found = entry
    costs = (f"{found[s]['ratio_of_minima']:.2f}" for s in ("loop", "vmap"))
    shares = (f"{found['vmap_over_loop']:.2f}", "-" if found["factor"] is None else f"{found['factor']:.2f}")
    return (name, str(found["samples"]), f"{found['prefix']:.3f}", *costs, *shares, found["auto"], "")


def _patch_row(entry: tuple[str, dict[str, Any]]) -> tuple[str, ...]:
    name, found = entry
    share = f"{found['predict']['median_of_ratios']:.3f}"
    return (name, str(found["samples"]), *("",) * 5, found["engine"], share)


if __name__ == "__main__":
    main()
