"""Gradient attacks on a predictive distribution: the targeted iterative fast-sign attack, FGSM and PGD.

Robustness to these is an upper bound. A model whose gradients are small, noisy or misleading resists them without being
robust (Athalye et al., 2018); docs/evaluate/attack.md says how to look for that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import feed
from ..config import to_dict
from ..errors import DataError, EvaluationError
from ..eval_mode import undisturbed
from ..likelihoods import Likelihood
from ..prediction import predict, resolve_task
from ..prediction.engine import Engine
from ..sampling import mix
from .attack_gradients import frozen, gradient
from .configs import Attack as Attack
from .metrics import checks
from .pixels import Pixels
from .progress import Bar

_TARGET, _START = -1, -2  # keys of random numbers, apart from those of iterations


@dataclass(frozen=True)
class Trace:
    """Predictions for N data over the T iterations of an attack; row 0 is before the attack.

    success: the predicted class is the target (targeted) or another than the true one, (T + 1, N) of booleans.
    correct: the predicted class is the true one, (T + 1, N); entropy: of the predictive in nats, (T + 1, N).
    adversarial: the attacked inputs of the model, (N, C, H, W).
    targets: the target classes, or the true ones if untargeted, (N,).
    """

    success: Tensor
    correct: Tensor
    entropy: Tensor
    adversarial: Tensor
    targets: Tensor


@dataclass(frozen=True)
class AttackResult:
    """An attack on a model: ``metrics`` after the last iteration, ``curve`` with a number for every one of T + 1."""

    metrics: dict[str, float]
    curve: dict[str, Any]
    config: Attack

    @property
    def count(self) -> int:
        """How many data were attacked."""
        return int(self.curve["count"])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON can hold them."""
        return {"metrics": self.metrics, "curve": self.curve, "config": to_dict(self.config)}


def attack(
    model: nn.Module, loader: Any, config: Attack | None = None, *, pixels: Pixels, task: Any = None,
    progress: bool = True,
) -> AttackResult:  # fmt: skip
    """Attack a classifier, Bayesian or not, on the first ``config.limit`` data of a loader.

    loader: batches of (images, labels), a pair of tensors, or a Dataset.
    pixels: the normalisation of the images. task: as in `predict`.

    >>> import torch
    >>> from leanbayes.evaluation.pixels import Pixels
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    >>> data = torch.rand(8, 1, 4, 4), torch.randint(3, (8,))
    >>> found = attack(model, data, Attack(step=64, iterations=5), pixels=Pixels(), task="classification")
    >>> found.metrics["attack.success"], len(found.curve["success"])
    (1.0, 6)
    """
    config = Attack() if config is None else config
    likelihood = resolve_task(model, task)

    def traces(bar: Bar) -> Iterator[Trace]:
        for start, inputs, labels in feed.slices(loader, feed.ROWS, config.limit):
            count = len(labels)
            bar.stage(f"attack: images {start + 1} to {start + count}")
            yield perturb(
                model, inputs, labels, config=config, pixels=pixels, likelihood=likelihood, start=start,
                tick=lambda iteration, count=count: bar.advance(count),  # type: ignore[misc]
            )  # fmt: skip

    with Bar(shown=progress) as bar:
        bar.expect(min(feed.length(loader) or 0, config.limit or sys.maxsize) * config.iterations)
        metrics, curve = summary(traces(bar), config)
    return AttackResult(metrics, curve, config)


def perturb(
    model: nn.Module, inputs: Tensor, labels: Tensor, *, config: Attack, pixels: Pixels, likelihood: Likelihood,
    start: int = 0, targets: Tensor | None = None, tick: Callable[[int], None] | None = None,
) -> Trace:  # fmt: skip
    """Attack a batch of images (N, C, H, W) with labels (N,) and record the predictions at every iteration.

    likelihood: of the model, as returned by `prediction.resolve_task`. targets: target classes, in place of
    ``config.target``. tick: called with the number of every iteration.
    start: the number of the first datum. Random targets and starts are keyed by (seed, number of the datum), the noise
    of the networks by (seed, iteration, site, sample), so that neither depends on the size of the batch.

    The gradients, modes and statistics of the model and torch's random state are restored afterwards.
    """
    images = _images_of(model, inputs, start)
    clean = _clean_pixels(images, pixels, start)
    targeted, networks = config.targeted, config.evaluate_samples or config.samples

    def predicted(images: Tensor) -> tuple[Tensor, Tensor]:
        prediction = predict(model, images, networks, config.seed, task=likelihood, mean_only=config.mean_only)
        if prediction.task != "classification":
            raise EvaluationError(f"attack: expected a task of classification, received {prediction.task!r}")
        return prediction.probs, prediction.entropy

    probs, entropy = predicted(images)
    _, labels = checks.classification(probs, labels, start=start)
    if not targeted and targets is not None:
        raise EvaluationError("targets: expected none for an untargeted attack; try Attack(targeted=True)")
    if not targeted:
        classes = labels
    elif targets is None:
        classes = _chosen_targets(probs, labels, config, start)
    else:
        classes = _given_targets(probs, labels, targets, start)
    rows = [(probs.argmax(1), entropy)]
    step, reach = config.step / config.scale, 1.0 if config.epsilon is None else config.epsilon / config.scale
    current, low, high = clean, (clean - reach).clamp(0, 1), (clean + reach).clamp(0, 1)
    engine = Engine(model, config.samples, config.seed, mean_only=config.mean_only)
    with undisturbed(model), frozen(model):
        if config.random_start and config.iterations:
            current = _random_start(clean, reach, config.seed, start)
            images = pixels.to_inputs(current).to(inputs.dtype)
        for iteration in range(1, config.iterations + 1):
            engine.seed = mix(config.seed, iteration)
            # std is positive: the sign with respect to the inputs is the sign with respect to the pixels
            slope = checks.finite(gradient(engine, likelihood, images, classes, config.objective), "gradient", start)
            move = step * slope.sign().to(current)
            current = (current + move if targeted else current - move).maximum(low).minimum(high)
            images = pixels.to_inputs(current).to(inputs.dtype)
            probs, entropy = predicted(images)
            rows.append((probs.argmax(1), entropy))
            if tick is not None:
                tick(iteration)
    return _trace(rows, labels, classes, images, targeted)


def summary(traces: Iterable[Trace], config: Attack) -> tuple[dict[str, float], dict[str, Any]]:
    """Rates over all data: the flat metrics of the last iteration, and the curve over iterations."""
    names, count = ("success", "accuracy", "entropy"), 0
    sums = {name: [0.0] * (config.iterations + 1) for name in names}
    for trace in traces:
        count += trace.success.shape[1]
        for name, values in zip(names, (trace.success, trace.correct, trace.entropy), strict=True):
            added = values.double().sum(1).tolist()
            sums[name] = [a + b for a, b in zip(sums[name], added, strict=True)]
    checks.nonempty(count, "loader")
    curve: dict[str, Any] = {name: [value / count for value in values] for name, values in sums.items()}
    metrics = {f"attack.{name}": curve[name][-1] for name in names} | {"attack.clean_entropy": curve["entropy"][0]}
    fields = ("targeted", "step", "iterations", "epsilon", "scale", "samples")
    return metrics, {field: vars(config)[field] for field in fields} | curve | {"count": count}


def _trace(rows: list[tuple[Tensor, Tensor]], labels: Tensor, classes: Tensor, images: Tensor, targeted: bool) -> Trace:
    top, entropy = (torch.stack(column) for column in zip(*rows, strict=True))
    hit = top == classes if targeted else top != labels
    return Trace(hit.cpu(), (top == labels).cpu(), entropy.cpu(), images.detach(), classes.cpu())


def _images_of(model: nn.Module, inputs: Any, start: int) -> Tensor:
    """The inputs on the model's device, if they are images of finite numbers."""
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        got = inputs.dtype if isinstance(inputs, Tensor) else type(inputs).__name__
        raise DataError(f"attack: expected a floating-point tensor of images (N, C, H, W), received {got}")
    checks.nonempty(len(inputs), "inputs")
    checks.finite(inputs, "inputs", start)
    return inputs.detach().to(next((p.device for p in model.parameters()), inputs.device))


def _clean_pixels(images: Tensor, pixels: Pixels, start: int) -> Tensor:
    """The images as pixels in [0, 1], in float32 at least, since a step may be too small for half precision."""
    clean = pixels.to_pixels(images.float() if images.dtype.itemsize < 4 else images)
    outside = ((clean < -0.01) | (clean > 1.01)).flatten(1).any(1)
    if bool(outside.any()):
        worst = int(outside.nonzero()[0, 0])
        raise DataError(
            f"inputs[{start + worst}]: expected pixels in [0, 1] once {pixels} is undone, received "
            f"{float(clean[worst].min()):.4g} to {float(clean[worst].max()):.4g}; give the mean and std that the "
            f"images were normalised with: Pixels(mean=(...), std=(...))"
        )
    return clean.clamp(0, 1)


def _chosen_targets(probs: Tensor, labels: Tensor, config: Attack, start: int) -> Tensor:
    """A target class other than the true one for each datum: random, or the least likely."""
    classes = probs.shape[1]
    if config.target == "least_likely":
        return probs.scatter(1, labels.unsqueeze(1), 2.0).argmin(1)
    shifts = [1 + mix(config.seed, _TARGET, start + row) % (classes - 1) for row in range(len(labels))]
    return (labels + labels.new_tensor(shifts)) % classes


def _given_targets(probs: Tensor, labels: Tensor, targets: Tensor, start: int) -> Tensor:
    """The user's target classes, each checked to be a class other than the true one."""
    _, classes = checks.classification(probs, targets, start=start)
    if bool((same := classes == labels).any()):
        row = int(same.nonzero()[0, 0])
        raise EvaluationError(f"targets[{start + row}]: expected another class than the label, received {labels[row]}")
    return classes


def _random_start(clean: Tensor, reach: float, seed: int, start: int) -> Tensor:
    """A uniform random point within ``reach`` of each image, seeded by the number of the datum."""
    generators = [torch.Generator().manual_seed(mix(seed, _START, start + row)) for row in range(len(clean))]
    noise = torch.stack([torch.rand(clean.shape[1:], generator=g, dtype=clean.dtype) for g in generators])
    return (clean + reach * (2 * noise - 1).to(clean.device)).clamp(0, 1)
