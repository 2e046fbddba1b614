"""Gradient attacks on a predictive distribution: the targeted iterative fast-sign attack, FGSM and PGD.

Robustness to these is an upper bound. A model whose gradients are small, noisy or misleading resists them without being
robust (Athalye et al., 2018); docs/attack.md says how to look for that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..checks import seed
from ..config import check_choice, check_flag, check_positive, check_whole, configurable, to_dict
from ..errors import ConfigError, EvaluationError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..likelihoods import Likelihood
    from .pixels import Pixels

Target = Literal["random", "least_likely"]
Objective = Literal["predictive", "mean_log"]


@configurable
@dataclass(frozen=True)
class Attack:
    r"""An iterative fast-sign attack (Goodfellow et al., 2015; Kurakin et al., 2017), in L-infinity.

    Targeted at class t, as in "Variance Networks" (Neklyudov et al., 2019, section 6.3), T times:

        x <- clip(x + step / scale * sign(d/dx log p(t | x)), 0, 1),   p(t | x) = 1/S sum_s p(t | x, W_s)

    Untargeted: the same step away from the true class. One iteration with step = epsilon is FGSM; several within an
    epsilon from a random start are PGD (Madry et al., 2018).

    step, epsilon: in units of a pixel scale. The paper gives its step of 0.5 without one; of 255 is the plausible
        reading, and ``scale=1.0`` makes them fractions of the pixel range.
    epsilon: the most that any pixel may change; None for no bound but that of a pixel, as in the paper.
    target: "random" (another class than the true one, by the number of the datum) or "least_likely" (at first).
    samples: networks whose gradients are used in an iteration; each iteration draws new ones.
    evaluate_samples: networks that are asked after each iteration; None for as many. The same ones every time, so that
        attacked and clean data are compared on equal terms, and never those whose gradients were used.
    objective: "predictive" is the formula above, of the very quantity the model is judged by; "mean_log" averages
        log p(t | x, W_s) instead (expectation over transformation). Neither is always the stronger: try both.
    mean_only: attack and ask the network at the posterior means: the deterministic procedure.
    limit: the most data attacked; None for all.

    >>> Attack(targeted=False, step=8, iterations=1, epsilon=8).samples  # FGSM at 8/255
    10
    """

    targeted: bool = True
    step: float = 0.5
    iterations: int = 20
    epsilon: float | None = None
    random_start: bool = False
    target: Target = "random"
    samples: int = 10
    evaluate_samples: int | None = None
    objective: Objective = "predictive"
    mean_only: bool = False
    scale: float = 255.0
    limit: int | None = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice(self, "target", ("random", "least_likely"))
        check_choice(self, "objective", ("predictive", "mean_log"))
        check_flag(self, "targeted", "random_start", "mean_only")
        check_positive(self, "step", "scale")
        check_whole(self, "iterations", at_least=0)
        check_whole(self, "samples")
        check_whole(self, "evaluate_samples", optional=True)
        check_whole(self, "limit", optional=True)
        seed(self.seed, "Attack.seed")
        if self.epsilon is not None:
            check_positive(self, "epsilon")
        elif self.random_start:
            raise ConfigError("Attack.random_start: expected an epsilon to start within, received none; try epsilon=8")


@dataclass(frozen=True)
class Trace:
    """What an attack did to N data in T iterations; row 0 is before it.

    success: the predictive says the target class (targeted) or another than the true one, (T + 1, N) of booleans.
    correct: the predictive says the true class, (T + 1, N); entropy: of the predictive in nats, (T + 1, N).
    adversarial: the attacked inputs, as the model reads them, (N, C, H, W).
    targets: the class aimed at; the true one, which it leads away from, where untargeted, (N,).
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

    loader: batches of (images, labels); a pair of tensors, or a Dataset, will do.
    pixels: how the images came from pixels in [0, 1]. task: as in `predict`.

    >>> import torch
    >>> from leanbayes.evaluation.pixels import Pixels
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    >>> data = torch.rand(8, 1, 4, 4), torch.randint(3, (8,))
    >>> found = attack(model, data, Attack(step=64, iterations=5), pixels=Pixels(), task="classification")
    >>> found.metrics["attack.success"], len(found.curve["success"])
    (1.0, 6)
    """
    from ..prediction import resolve_task
    from . import feed
    from .progress import Bar

    config = Attack() if config is None else config
    meaning = resolve_task(model, task)

    def traces(bar: Bar) -> Iterator[Trace]:
        for start, inputs, labels in feed.slices(loader, feed.ROWS, config.limit):
            count = len(labels)
            bar.stage(f"attack: images {start + 1} to {start + count}")
            yield perturb(
                model, inputs, labels, config=config, pixels=pixels, meaning=meaning, start=start,
                tick=lambda iteration, count=count: bar.advance(count),  # type: ignore[misc]
            )  # fmt: skip

    with Bar(shown=progress) as bar:
        bar.expect(min(feed.length(loader) or 0, config.limit or sys.maxsize) * config.iterations)
        metrics, curve = summary(traces(bar), config)
    return AttackResult(metrics, curve, config)


def perturb(
    model: nn.Module, inputs: Tensor, labels: Tensor, *, config: Attack, pixels: Pixels, meaning: Likelihood,
    start: int = 0, targets: Tensor | None = None, tick: Callable[[int], None] | None = None,
) -> Trace:  # fmt: skip
    """Attack a batch of images (N, C, H, W) with labels (N,) and write down what the model says at every iteration.

    meaning: what the outputs mean, as `predict.resolve_task` finds it. targets: classes to aim at, in place of
    ``config.target``. tick: told the number of every iteration that is done.
    start: the number of the first datum. Random targets and starts are keyed by (seed, number of the datum), the noise
    of the networks by (seed, iteration, site, sample), so that neither depends on the size of the batch.

    The model is as it was afterwards: its gradients, modes, statistics, and torch's random state.
    """
    from ..eval_mode import undisturbed
    from ..prediction import predict
    from ..prediction.engine import Engine
    from ..sampling import mix
    from . import attack_start as at
    from .attack_gradients import frozen, gradient
    from .metrics import checks

    images = at.images_of(model, inputs, start)
    clean = at.clean_pixels(images, pixels, start)
    targeted, networks = config.targeted, config.evaluate_samples or config.samples

    def ask(images: Tensor) -> tuple[Tensor, Tensor]:
        said = predict(model, images, networks, config.seed, task=meaning, mean_only=config.mean_only)
        if said.task != "classification":
            raise EvaluationError(f"attack: expected a task of classification, received {said.task!r}")
        return said.probs, said.entropy

    probs, entropy = ask(images)
    _, labels = checks.classification(probs, labels, start=start)
    if not targeted and targets is not None:
        raise EvaluationError("targets: expected none for an untargeted attack; try Attack(targeted=True)")
    if not targeted:
        classes = labels
    elif targets is None:
        classes = at.chosen_targets(probs, labels, config, start)
    else:
        classes = at.given_targets(probs, labels, targets, start)
    rows = [(probs.argmax(1), entropy)]
    step, reach = config.step / config.scale, 1.0 if config.epsilon is None else config.epsilon / config.scale
    current, low, high = clean, (clean - reach).clamp(0, 1), (clean + reach).clamp(0, 1)
    engine = Engine(model, config.samples, config.seed, mean_only=config.mean_only)
    with undisturbed(model), frozen(model):
        if config.random_start and config.iterations:
            current = at.random_start(clean, reach, config.seed, start)
            images = pixels.to_inputs(current).to(inputs.dtype)
        for iteration in range(1, config.iterations + 1):
            engine.seed = mix(config.seed, iteration)
            # std is positive: the sign with respect to the inputs is the sign with respect to the pixels
            slope = checks.finite(gradient(engine, meaning, images, classes, config.objective), "gradient", start)
            move = step * slope.sign().to(current)
            current = (current + move if targeted else current - move).maximum(low).minimum(high)
            images = pixels.to_inputs(current).to(inputs.dtype)
            probs, entropy = ask(images)
            rows.append((probs.argmax(1), entropy))
            if tick is not None:
                tick(iteration)
    return _trace(rows, labels, classes, images, targeted)


def summary(traces: Iterable[Trace], config: Attack) -> tuple[dict[str, float], dict[str, Any]]:
    """Rates over all data: the flat metrics of the last iteration, and the curve over iterations."""
    from .metrics import checks

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
    return metrics, {field: getattr(config, field) for field in fields} | curve | {"count": count}


def _trace(rows: list[tuple[Tensor, Tensor]], labels: Tensor, classes: Tensor, images: Tensor, targeted: bool) -> Trace:
    import torch

    said, entropy = (torch.stack(column) for column in zip(*rows, strict=True))
    hit = said == classes if targeted else said != labels
    return Trace(hit.cpu(), (said == labels).cpu(), entropy.cpu(), images.detach(), classes.cpu())
