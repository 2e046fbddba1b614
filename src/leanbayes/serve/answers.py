"""What is sent back for a datum: the prediction, how sure it is, and whether that is enough to answer."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from ..errors import LeanBayesWarning
from ..files import plain
from ..prediction import Predictive
from .options import Thresholds

Answer = dict[str, Any]


def answers(
    prediction: Predictive, classes: Sequence[str], scale: tuple[float, float] = (0.0, 1.0), *, draws: bool = False
) -> list[Answer]:
    """One for each datum, as JSON has it.

    scale: mean and standard deviation of a regression's target, whose units answers have.
    """
    columns = _numbers(prediction, scale) if prediction.task == "regression" else _classes(prediction, classes)
    if draws and prediction.drawn is not None:
        shift, factor = scale if prediction.task == "regression" else (0.0, 1.0)
        columns["draws"] = (prediction.drawn.transpose(0, 1) * factor + shift).tolist()
    names = list(columns)
    return [plain(dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def abstained(answer: Answer, thresholds: Thresholds) -> list[str]:
    """Why a datum is not answered, in words; nothing where it is."""
    found = []
    limits = (
        ("entropy", thresholds.max_entropy),
        ("mutual_information", thresholds.max_information),
        ("std", thresholds.max_std),
    )
    if "confidence" in answer and answer["confidence"] < thresholds.min_confidence:
        found.append(f"confidence {answer['confidence']:.3g} is below {thresholds.min_confidence:g}")
    for name, most in limits:
        if most is not None and name in answer and _largest(answer[name]) > most:
            found.append(f"{name} {_largest(answer[name]):.3g} is above {most:g}")
    if thresholds.max_set is not None and not 1 <= len(answer["set"]) <= thresholds.max_set:
        found.append(f"the prediction set has {len(answer['set'])} classes, {thresholds.max_set} may be in it")
    return found


def judged(answer: Answer, thresholds: Thresholds) -> Answer:
    """The answer with its verdict: an abstention has no label (classes) or mean (regression)."""
    reasons = abstained(answer, thresholds)
    said = "label" if "label" in answer else "mean"
    return {**answer, "abstained": bool(reasons), "reasons": reasons, said: None if reasons else answer[said]}


def _classes(prediction: Predictive, names: Sequence[str]) -> dict[str, list[Any]]:
    confidence, label = prediction.probs.max(1)
    columns = {
        "label": [names[at] for at in label.tolist()],
        "confidence": confidence.tolist(),
        "entropy": prediction.entropy.tolist(),
        "mutual_information": prediction.mutual_information.tolist(),
        "probs": prediction.probs.tolist(),
        "std": prediction.variance.clamp_min(0).sqrt().tolist(),
    }
    if prediction.conformal is not None:
        with _without_warnings():
            sets = prediction.prediction_sets
        columns["set"] = [[names[at] for at in row.nonzero().flatten().tolist()] for row in sets]
    return columns


def _numbers(prediction: Predictive, scale: tuple[float, float]) -> dict[str, list[Any]]:
    shift, factor = scale
    ends = {"interval": prediction.interval(0.95)}
    if prediction.conformal is not None:
        with _without_warnings():
            ends["conformal_interval"] = prediction.prediction_intervals
    columns = {
        "mean": prediction.mean * factor + shift,
        "std": prediction.variance.sqrt() * factor,
        "epistemic_std": prediction.epistemic.sqrt() * factor,
        **{name: torch.stack(pair, 1) * factor + shift for name, pair in ends.items()},
    }
    return {name: value.tolist() for name, value in columns.items()}


def _without_warnings() -> warnings.catch_warnings:
    """Thresholds of another number of samples: an answer says so by its ``coverage``."""
    return warnings.catch_warnings(action="ignore", category=LeanBayesWarning)


def _largest(value: Any) -> float:
    return max(map(_largest, value)) if isinstance(value, list) else math.inf if value is None else float(value)
