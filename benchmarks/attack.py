"""How far attacks get at equal budget: ours, foolbox's and torchattacks' on a plain LeNet-5, and what samples cost.

The network is trained on MNIST first (a minute or two on an idle core). Success is the share of test images that end as
the target class, or as another than the true one. Below it, on the embedded digits, the two objectives and two numbers
of samples against networks with more and more noise.

    python benchmarks/attack.py --json
"""

from __future__ import annotations

import copy
import importlib
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from common import parser, publish, result
from leanbayes.data import load, loaders
from leanbayes.evaluation.attack import Attack, attack, perturb
from leanbayes.evaluation.pixels import Pixels
from leanbayes.likelihoods import Classification

BUDGETS = {
    "FGSM, 16/255": Attack(targeted=False, step=16, iterations=1, epsilon=16),
    "iterative, 10 x 4/255 within 24/255": Attack(targeted=False, step=4, iterations=10, epsilon=24),
    "PGD, random start, 10 x 4/255 within 24/255": Attack(
        targeted=False, step=4, iterations=10, epsilon=24, random_start=True
    ),
    "targeted, 16 x 4/255": Attack(step=4, iterations=16),
}


class Normalised(nn.Module):
    """A model that reads pixels in [0, 1], as torchattacks wants it."""

    def __init__(self, model: nn.Module, pixels: Pixels) -> None:
        super().__init__()
        self.model, self.pixels = model, pixels

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        return self.model(self.pixels.to_inputs(images))


def foolbox(model: nn.Module, images: Tensor, classes: Tensor, config: Attack) -> Tensor:
    """What foolbox makes of the images."""
    fb = importlib.import_module("foolbox")
    wrapped = fb.PyTorchModel(model, bounds=(0, 1), device="cpu")
    kind = fb.criteria.TargetedMisclassification if config.targeted else fb.criteria.Misclassification
    peer = fb.attacks.LinfPGD(
        abs_stepsize=config.step / config.scale, steps=config.iterations, random_start=config.random_start
    )
    return peer.run(wrapped, images, kind(classes), epsilon=_reach(config))


def torchattacks(model: nn.Module, images: Tensor, classes: Tensor, config: Attack) -> Tensor:
    """What torchattacks makes of the images."""
    peers = importlib.import_module("torchattacks")
    peer = peers.PGD(
        model, _reach(config), config.step / config.scale, config.iterations, random_start=config.random_start
    )
    if config.targeted:
        peer.set_mode_targeted_by_label(quiet=True)
    return peer(images, classes)


def success(model: nn.Module, images: Tensor, labels: Tensor, config: Attack, classes: Tensor) -> float:
    """The share of images that are where the attack wants them."""
    with torch.no_grad():
        said = torch.cat([model(part).argmax(1) for part in images.split(256)])
    return float(((said == classes) if config.targeted else (said != labels)).double().mean())


def contest(network: nn.Module, images: Tensor, labels: Tensor, pixels: Pixels) -> dict[str, Any]:
    """Success of every contender at every budget."""
    model = Normalised(network, pixels).eval()
    peers: dict[str, Callable[..., Tensor]] = {"foolbox": foolbox, "torchattacks": torchattacks}
    found: dict[str, Any] = {}
    for name, config in BUDGETS.items():
        trace = perturb(
            network, pixels.to_inputs(images), labels, config=config, pixels=pixels, likelihood=Classification()
        )
        row: dict[str, Any] = {"leanbayes": float(trace.success[-1].double().mean()), "images": len(images)}
        for peer, run in peers.items():
            try:
                made = [
                    run(model, part, classes, config)
                    for part, classes in zip(images.split(256), trace.targets.split(256), strict=True)
                ]
            except ImportError as error:
                row[peer] = {"missing": str(error)}
                continue
            row[peer] = success(model, torch.cat(made), labels, config, trace.targets)
            apart = (pixels.to_pixels(trace.adversarial) - torch.cat(made)).abs() > 1e-4
            row[f"{peer}: pixels that differ"] = float(apart.double().mean())
        found[name] = row
    return found


def objectives(quick: bool) -> dict[str, Any]:
    """Success of the targeted attack on noisy networks for the digits, by objective and number of samples."""
    digits = load("digits")
    parts = loaders(digits)
    methods = {"dropout": lb.Dropout(rate=0.3), "zero-mean layer": {"1": lb.Variance(parameterisation="zero")}}
    found: dict[str, Any] = {}
    for name, method in methods.items():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.BatchNorm1d(100), nn.ReLU(), nn.Linear(100, 10))
        lb.bayesianize_(model, method)
        lb.fit(model, parts["train"], epochs=2 if quick else 30, lr=3e-3, kl_weight=0.01, progress=False)
        for samples in (1, 10):
            for objective in ("predictive", "mean_log"):
                config = Attack(
                    step=4, iterations=12, samples=samples, evaluate_samples=32, objective=objective,
                    limit=20 if quick else 359,
                )  # fmt: skip
                made = attack(model, parts["test"], config, pixels=_pixels(digits), progress=False)
                found[f"{name}, {samples} samples, {objective}"] = made.to_dict()["curve"]
    return found


def speed(network: nn.Module, images: Tensor, labels: Tensor, pixels: Pixels) -> dict[str, Any]:
    """Seconds of one core for the network with all layers random: 10 samples, 2 iterations."""
    model = copy.deepcopy(network)
    lb.bayesianize_(model, lb.MeanField())
    config, inputs = Attack(iterations=2, samples=10), pixels.to_inputs(images[:256])
    began, cpu = time.perf_counter(), time.process_time()
    perturb(model, inputs, labels[:256], config=config, pixels=pixels, likelihood=Classification())
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    whole = cpu * 1000 / len(inputs) * 20 / config.iterations
    return {
        "images": len(inputs),
        "samples": config.samples,
        "iterations": config.iterations,
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "cpu_seconds for 1,000 images, 10 samples, 20 iterations": whole,
    }


def main() -> None:
    """Train, attack, print and write."""
    options = parser(__doc__, repeats=1).parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    data = load("digits" if options.quick else "mnist")
    parts, count = loaders(data, batch_size=128), 64 if options.quick else 1000
    if options.quick:
        network: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    else:
        from leanbayes.models import lenet5

        network = lenet5()
    history = lb.fit(network, parts["train"], epochs=2, progress=False)
    pixels = _pixels(data)
    images = pixels.to_pixels(data.test.tensors[0][:count]).clamp(0, 1)
    labels = data.test.tensors[1][:count]
    table = contest(network, images, labels, pixels)
    noisy, cost = objectives(options.quick), speed(network, images, labels, pixels)
    ratios = {
        f"{name}: success / {peer}'s": row["leanbayes"] / row[peer]
        for name, row in table.items()
        for peer in ("foolbox", "torchattacks")
        if isinstance(row[peer], float) and row[peer] > 0
    }
    ends = {name: curve["success"][-1] for name, curve in noisy.items()}
    for name, value in ends.items():
        if name.endswith("mean_log") and (other := ends[name.replace("mean_log", "predictive")]) > 0 and value > 0:
            ratios[f"{name} / predictive"] = value / other
    publish(
        result("attack", ratios, {"contest": table, "objectives": noisy, "speed": cost}, data=data.name,
               epochs=len(history), peers=_versions()),
        options,
        f"Success of attacks on a plain network, {data.name}, {count} images",
        [("", "leanbayes", "foolbox", "torchattacks"), *(_row(name, row) for name, row in table.items()),
         *((name, f"{value:.3f}", "", "") for name, value in ends.items())],
    )  # fmt: skip


def _pixels(data: Any) -> Pixels:
    return Pixels(mean=tuple(data.mean.tolist()), std=tuple(data.std.tolist()))


def _reach(config: Attack) -> float:
    return 1.0 if config.epsilon is None else config.epsilon / config.scale


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("foolbox", "torchattacks"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found


def _row(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    values = (row[key] for key in ("leanbayes", "foolbox", "torchattacks"))
    return (name, *(f"{v:.3f}" if isinstance(v, float) else "missing" for v in values))


if __name__ == "__main__":
    main()
