"""The arguments of `evaluate`, checked before anything is computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from .. import batches, checks, feed
from ..batches import accept
from ..data.dataset import groups_of
from ..errors import EvaluationError
from ..optional import require
from .configs import Attack, Corruptions
from .corruption_sweep import cells, reference_errors
from .pixels import Pixels
from .result import Evaluation


@dataclasses.dataclass(frozen=True)
class Options:
    """The parts of an evaluation beyond the test data."""

    ood: dict[str, Any]
    pixels: Pixels | None
    corruptions: Corruptions | None
    reference: Evaluation | None
    attack: Attack | None
    temperature: Any
    selective: tuple[float, ...]
    replicates: int
    groups: np.ndarray | None = None


def options(given: Mapping[str, Any], task: str, loader: Any, first: Any, samples: int, mean_only: bool) -> Options:
    """The options, each of the right type and fit for the task.

    given: arguments of `evaluate`, by the names of the fields. first: the inputs of the first batch.
    """
    pixels, temperature, reference = given["pixels"], given["temperature"], given["reference"]
    if pixels is not None and not isinstance(pixels, Pixels):
        raise EvaluationError(f"pixels: expected Pixels(mean=..., std=...), received {type(pixels).__name__}")
    sweep, attack = _chosen(given["corruptions"], Corruptions), _chosen(given["attack"], Attack)
    if attack is not None:
        attack = _predicting_alike(attack, samples, mean_only)
    for argument, value in (("corruptions", sweep), ("attack", attack), ("temperature", temperature)):
        fits = task == "classification" or (task == "segmentation" and argument == "temperature")
        if value is not None and not fits:
            raise EvaluationError(
                f"{argument}: expected a task of classification, received {task}; leave {argument}= out"
            )
        if value is not None:
            feed.repeatable(loader, "loader", f"{argument}=")
    if sweep is not None or attack is not None:
        pixels = checked_pixels(pixels, first)
    for package, argument, value in (
        ("sklearn", "ood=", given["ood"] or None),
        ("scipy", "temperature=", temperature),
        ("scipy", "corruptions=", sweep),
        ("PIL", "corruptions=", sweep),
    ):
        if value is not None:
            require(package, "evaluation", argument)
    if reference is not None:
        _check_reference(reference, sweep, first)
    share = partial(checks.number, above=0, at_most=1, error=EvaluationError)
    selective = checks.iterable_of("selective", given["selective"], "accuracies", share, error=EvaluationError)
    replicates = checks.whole_number("replicates", given["replicates"], at_least=0, error=EvaluationError)
    members = groups(given["groups"], feed.length(loader))
    return Options(given["ood"], pixels, sweep, reference, attack, temperature, tuple(selective), replicates, members)


def known_groups(loader: Any) -> Tensor | None:
    """The groups stored with a data set, if there are two or more."""
    found = groups_of(loader)
    return found if found is not None and len(found.unique()) > 1 else None


def groups(given: Any, count: int | None) -> np.ndarray | None:
    """The group of each datum as numbers from 0 (N,), from a name or number for each of ``count`` data.

    >>> groups(["b", "a", "b"], 3).tolist()
    [1, 0, 1]
    """
    if given is None:
        return None
    hint = "for example the patient of every image"
    try:
        names = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    except Exception:  # of numpy, or of a sequence of the user's
        names = np.empty(())
    if names.ndim != 1 or names.dtype.kind not in "iuUS":
        checks.refuse("groups", f"a whole number or a text for each datum, {hint}", given, EvaluationError)
    if count is not None and len(names) != count:
        raise EvaluationError(f"groups: expected one for each of {count} data, {hint}, received {len(names)}")
    found: np.ndarray = np.unique(names, return_inverse=True)[1].astype(np.int64)
    if len(names) and int(found.max()) == 0:
        raise EvaluationError("groups: expected two groups or more to resample, received one; leave groups= out")
    return found


def named_data(ood: Any, model: Any) -> dict[str, Any]:
    """The data of ``ood=`` by name."""
    if ood is None:
        return {}
    hint = "for example ood={'noise': loader}"
    checks.instance("ood", ood, Mapping, "loaders by name", error=EvaluationError, hint=hint)
    return {
        str(label): accept(loader, model, name=f"ood[{label!r}]", error=EvaluationError)
        for label, loader in ood.items()
    }


def history(rows: Iterable[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Plain rows of training: numbers and words, as JSON can hold them."""
    if rows is None:
        return []

    def row(name: str, value: Any) -> dict[Any, Any]:
        return dict(checks.instance(name, value, Mapping, "a mapping", error=EvaluationError))

    plain = checks.iterable_of("history", rows, "rows of training", row, error=EvaluationError)
    return [{str(k): v for k, v in row.items() if isinstance(v, (int, float, str, type(None)))} for row in plain]


def checked_pixels(pixels: Pixels | None, inputs: Any) -> Pixels:
    """``pixels``, or `Pixels()` if None; refused if the inputs of the first batch are then not pixels in [0, 1]."""
    images = batches.first_tensor(inputs)
    if images.ndim != 4:
        raise EvaluationError(
            f"loader: expected images (N, C, H, W), as corruptions and attack need, received {tuple(images.shape)}; "
            f"leave corruptions= and attack= out"
        )
    pixels = pixels or Pixels()
    values = pixels.to_pixels(images)
    low, high = float(values.min()), float(values.max())
    if low < -0.01 or high > 1.01:
        raise EvaluationError(
            f"pixels: expected images in [0, 1], received values from {low:.3g} to {high:.3g}; if the inputs are "
            f"normalised, pass for example pixels=Pixels(mean=(0.13,), std=(0.31,)) for (x - mean) / std"
        )
    return pixels


def _chosen(value: Any, kind: type) -> Any:
    """A config of that kind; True stands for its defaults."""
    if value is None or value is False:
        return None
    if value is True:
        return kind()
    if not isinstance(value, kind):
        name = kind.__name__
        raise EvaluationError(f"{name.lower()}: expected {name}(...) or True, received {type(value).__name__}")
    return value


def _predicting_alike(attack: Attack, samples: int, mean_only: bool) -> Attack:
    """The attack with the options of the evaluation: mean_only, and at most ``samples`` after each iteration."""
    after = min(attack.samples, samples) if attack.evaluate_samples is None else attack.evaluate_samples
    return dataclasses.replace(attack, mean_only=attack.mean_only or mean_only, evaluate_samples=after)


def _check_reference(reference: Any, sweep: Any, inputs: Any) -> None:
    """Refuse, before the sweep, a reference that was not evaluated on the same corruptions and severities."""
    if not isinstance(reference, Evaluation):
        raise EvaluationError(
            f"reference: expected an Evaluation, received {type(reference).__name__}; "
            f"try Evaluation.load_json('reference.json')"
        )
    if sweep is None:
        raise EvaluationError("reference: expected corruptions= beside it, received none; mCE compares two sweeps")
    reference_errors(reference, cells(sweep, tuple(batches.first_tensor(inputs).shape[1:])))
