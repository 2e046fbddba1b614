"""The Evaluation from the outcomes of all stages."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import shlex
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._version import __version__
from ..config import to_dict
from ..errors import EvaluationError
from . import attack, corruption
from .annotated import sums_of
from .arguments import Options
from .configs import Attack
from .metrics import bootstrap, calibration, ood as out_of_domain
from .metrics.experts import Sums
from .metrics.selective import risk_coverage
from .metrics.streams import Bins
from .result import Evaluation
from .resume import Outcome
from .stages import Evaluator


def assemble(
    name: str, evaluator: Evaluator, wanted: Options, outcomes: dict[str, Outcome], history: list[dict[str, Any]]
) -> Evaluation:
    """The evaluation of one model."""
    test = outcomes["test data"]
    if wanted.groups is not None and len(wanted.groups) != test.values["count"]:
        raise EvaluationError(
            f"groups: expected one for each of {test.values['count']} data, received {len(wanted.groups)}"
        )
    points, inside = _part(test, "points/"), _part(test, "scores/")
    outside = {label: outcomes[f"ood {label}"].tensors for label in wanted.ood}
    metrics, curves = dict(test.values["metrics"]), dict(test.values["curves"])
    notes = [*test.values["notes"], *_values(outcomes, "cost", "notes", [])]

    if (experts := sums_of(test.tensors)) is not None:
        metrics |= experts.compute(evaluator.binning["min_count"])
        curves["pixel_calibration"] = experts.reliability(evaluator.binning["min_count"]).to_dict()
        curves["examples"] = test.values["examples"]
    if evaluator.likelihood.task == "classification":
        found, curve = selective(points, wanted.selective)
        metrics |= found
        curves |= curve
    ranks, histograms = out_of_domain.compare_sets(inside, outside)
    metrics |= ranks
    curves |= {"ood": histograms} if histograms else {}
    if wanted.temperature is not None:
        scaled = outcomes["temperature"].values
        metrics |= scaled["metrics"]
        curves["scaled_reliability"] = scaled["reliability"]
    if wanted.corruptions is not None:
        found, cells, clean = _corruption(evaluator, wanted, outcomes, points)
        metrics |= found
        curves |= {"corruption": cells, "corruption_clean": clean}
    if wanted.attack is not None:
        found, curve = _attack(wanted.attack, outcomes)
        metrics |= found
        curves["attack"] = curve

    costs = {**_values(outcomes, "cost", "cost", {}), **test.values.get("cost", {})}
    costs["predict_seconds"] = test.values["seconds"]
    if trained := [row["seconds"] for row in history if isinstance(row.get("seconds"), (int, float))]:
        costs["train_seconds"] = float(sum(trained))
    return Evaluation(
        name=name,
        task=evaluator.likelihood.task,
        count=test.values["count"],
        metrics=metrics,
        curves=curves,
        cost=costs,
        settings=_settings(evaluator, wanted, outcomes),
        history=history,
        notes=notes,
        replicates=_replicates(evaluator, wanted, points, experts, inside, outside),
    )


def selective(points: dict[str, Tensor], accuracies: tuple[float, ...]) -> tuple[dict[str, float], dict[str, Any]]:
    """Selective prediction: AURC, and for each accuracy the threshold that gives it, and the coverage.

    >>> import torch
    >>> points = {"confidence": torch.tensor([0.9, 0.8, 0.7]), "correct": torch.tensor([1.0, 1.0, 0.0])}
    >>> metrics, curve = selective(points, (0.99,))
    >>> round(metrics["selective.coverage.0.99"], 3), sorted(curve["risk_coverage"])
    (0.667, ['coverage', 'risk', 'threshold'])
    """
    curve = risk_coverage(points["confidence"], points["correct"])
    metrics = {"aurc": curve.aurc(), "eaurc": curve.eaurc()}
    for accuracy in accuracies:
        threshold, share = curve.at_accuracy(accuracy)
        metrics[f"selective.coverage.{accuracy:g}"] = share
        metrics[f"selective.threshold.{accuracy:g}"] = threshold if share else math.nan
    return metrics, {"risk_coverage": curve.to_dict()}


def _replicates(
    evaluator: Evaluator,
    wanted: Options,
    points: dict[str, Tensor],
    experts: Sums | None,
    inside: dict[str, Tensor],
    outside: dict[str, dict[str, Tensor]],
) -> dict[str, list[float]]:
    """Bootstrap replicates: all metrics on test data drawn with replacement."""
    amount: dict[str, Any] = {"replicates": wanted.replicates}  # one seed for all: comparisons are paired by it
    if wanted.replicates and experts is not None:
        return experts.replicates(wanted.groups, **amount, min_count=evaluator.binning["min_count"])
    if not wanted.replicates or not points:
        return {}
    binning: dict[str, Any] = {key: evaluator.binning[key] for key in ("bins", "min_count", "adaptive")}
    groups = None if wanted.groups is None else torch.from_numpy(wanted.groups)
    datum = {} if groups is None else {"datum": groups}
    found = bootstrap.replicates({**points, **datum}, **amount, **binning, accuracies=wanted.selective)
    return found | bootstrap.set_replicates(inside, outside, groups=groups, **amount)


def _corruption(
    evaluator: Evaluator, wanted: Options, outcomes: dict[str, Outcome], points: dict[str, Tensor]
) -> tuple[dict[str, float], list[dict[str, Any]], dict[str, float]]:
    """The metrics, the cells, and the metrics of the same data before they were corrupted."""
    cells = [outcome.values for outcome in outcomes.values() if "severity" in outcome.values]
    test = outcomes["test data"].values
    if len(points["correct"]) == test["count"]:
        clean = _clean(evaluator, {key: values[: cells[0]["count"]] for key, values in points.items()})
    else:  # of very many data only a random part was kept
        clean = {key: test["metrics"][key] for key in ("accuracy", "nll", "ece")}
    return *corruption.summary(cells, clean, wanted.reference), clean


def _clean(evaluator: Evaluator, points: dict[str, Tensor]) -> dict[str, float]:
    """Accuracy, NLL and ECE of a few of the test data."""
    sure, right, bins = points["confidence"], points["correct"], Bins(evaluator.binning["bins"])
    bins.update(sure, right)
    least = evaluator.binning["min_count"]
    curve = calibration.from_bins(bins, least)
    if evaluator.binning["adaptive"]:
        curve = calibration.equal_mass(sure, right, bins=evaluator.binning["bins"], min_count=least)
    means = {"accuracy": float(right.double().mean()), "nll": float(points["nll"].double().mean())}
    return means | {"ece": curve.ece()}


def _attack(config: Attack, outcomes: dict[str, Outcome]) -> tuple[dict[str, float], dict[str, Any]]:
    slices = [o for stage, o in outcomes.items() if stage.startswith("attack ")]
    empty = Tensor()
    traces = [attack.Trace(**{**o.tensors, "adversarial": empty}) for o in slices]
    return attack.summary(traces, config)


def _settings(evaluator: Evaluator, wanted: Options, outcomes: dict[str, Outcome]) -> dict[str, Any]:
    test = outcomes["test data"].values
    settings = reproduction({**evaluator.settings(), "engine": test["engine"], "replicates": wanted.replicates})
    settings["data"] = test["data"]
    if test.get("annotators"):
        settings["annotators"] = test["annotators"]
    if wanted.groups is not None:
        settings["groups"] = {"count": int(wanted.groups.max()) + 1, "digest": group_digest(wanted.groups)}
    if wanted.ood:
        settings["ood"] = {label: outcomes[f"ood {label}"].values["count"] for label in wanted.ood}
    for field in ("corruptions", "attack", "pixels"):
        if (chosen := vars(wanted)[field]) is not None:
            plain = to_dict(chosen)
            settings[field] = {k: v for k, v in plain.items() if k not in ("kind", "version") and v not in (None, [])}
    if wanted.reference is not None:
        settings["reference"] = wanted.reference.name
    if latency := _values(outcomes, "cost", "latency", None):
        settings["latency"] = latency
    return settings


def group_digest(groups: np.ndarray) -> str:
    """A digest of groups, to compare whether two evaluations resample the same ones.

    >>> group_digest(np.array([0, 0, 1]))
    'd6097eebfa1083a0'
    """
    return hashlib.blake2b(groups.astype("<i8").tobytes(), digest_size=8).hexdigest()


def _values(outcomes: dict[str, Outcome], stage: str, key: str, default: Any) -> Any:
    return outcomes[stage].values.get(key, default) if stage in outcomes else default


def _part(outcome: Outcome, prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): t for key, t in outcome.tensors.items() if key.startswith(prefix)}


def reproduction(options: dict[str, Any]) -> dict[str, Any]:
    """The options of an evaluation, the command that ran it and the versions, as plain values.

    >>> sorted(reproduction({"samples": 8})["versions"])
    ['leanbayes', 'numpy', 'python', 'torch']
    """
    plain = {k: v if isinstance(v, (bool, int, float, str, list, type(None))) else str(v) for k, v in options.items()}
    return plain | {
        "command": command(sys.argv),
        "threads": torch.get_num_threads(),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": {
            "leanbayes": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def command(argv: list[str]) -> str | None:
    """The command line of this process as one would type it; None in a notebook or an interactive session.

    >>> command(["/usr/local/bin/leanbayes", "evaluate", "my model.safetensors"])
    "leanbayes evaluate 'my model.safetensors'"
    >>> command(["train.py", "--epochs", "3"])
    'python train.py --epochs 3'
    """
    program = argv[0] if argv else ""
    if program in ("", "-", "-c", "-m") or "ipykernel" in program:
        return None
    if program.endswith("__main__.py"):
        return shlex.join(["python", "-m", os.path.basename(os.path.dirname(program)), *argv[1:]])
    if program.endswith(".py"):
        return shlex.join(["python", program, *argv[1:]])
    return shlex.join([os.path.basename(program), *argv[1:]])
