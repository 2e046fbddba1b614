"""Tables 5, 7 and 8 of ensemble model patching: corrupted test images.

mce: the mean over corruptions of the error, summed over severities, divided by the vanilla network's, in percent; rmce
likewise for what is lost against clean images, undefined where a single corruption costs the vanilla network nothing;
lost: the loss summed over corruptions before it is divided. The relative error's denominator has the vanilla network's
clean error, where the paper prints the model's own (appendix D.4). Columns by corruption are those of table 7. The
networks are those of `patch-calibration`, on the first test images and fewer samples; the paper's are of ImageNet-C.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from torch import nn

from ...data import DataSet
from ...errors import EvaluationError
from ...evaluation.corruption import ce, relative_ce
from ..corrupted import Sweep
from ..experiment import Cell, Experiment, Results
from ..figures.patch import corruptions
from ..paper import printed
from ..results import Measured, Metrics, Point, Row
from .networks import ENSEMBLE, PatchSetup, PatchTraining, digits, probabilities, published, resnet, scores

SMOKE = Sweep(limit=60, names=("gaussian_noise", "contrast"), severities=(1, 5))
SETUPS: dict[str, tuple[PatchSetup, int, Sweep]] = {  # with the number of samples
    "smoke": (digits(methods=("vanilla", "ECMP (BN+out)")), 5, SMOKE),
    "cpu": (resnet(), 20, Sweep(severities=(1, 3, 5))),
    "paper": (published(), 100, Sweep(limit=10_000)),
}


def cells(preset: str) -> Iterator[Cell]:
    """A row for every method; the setting is the number of images."""
    setup, samples, sweep = SETUPS[preset]
    measure = partial(measured, samples, sweep)
    for method in setup.methods:
        paper = printed("patch-corruptions", setup.published, method)
        also = {"asked": samples, **sweep.key()}
        yield setup.cell(method, sweep.limit, "patch-corruptions", measure, paper=paper, **also)


def measured(
    samples: int, sweep: Sweep, model: nn.Module, training: PatchTraining, data: DataSet, seed: int
) -> Measured:
    """Metrics of every corruption at every severity, and of the clean images."""
    found = [
        {"corruption": name, "severity": severity, **scores(probabilities(model, x, samples, seed), y)}
        for name, severity, x, y in sweep.images(data)
    ]
    return {"corruptions": found}


def rows(results: Results) -> Iterator[Row]:
    """A row for every method; the vanilla network of the same seed is the reference."""
    references = {one.dataset: runs for one, runs in results if one.method == "vanilla"}
    for one, runs in results:
        beside = references[one.dataset]
        pairs = zip(runs, beside[:1] if one.method == ENSEMBLE else beside, strict=True)  # an ensemble has one run
        yield from one.rows([relative(run["corruptions"], other["corruptions"]) for run, other in pairs])


def relative(run: Sequence[Point], reference: Sequence[Point]) -> Metrics:
    """The table's line: errors against the reference in percent, and means over all cells.

    run, reference: the metrics of every "corruption" and "severity", the clean images being "clean" and 0.
    """
    (errors, clean), (others, other_clean) = _errors(run), _errors(reference)
    losses = [sum(error - start for error in each.values()) for each, start in ((errors, clean), (others, other_clean))]
    each = ce(errors, others)
    try:
        lost = list(relative_ce(errors, clean, others, other_clean).values())
    except EvaluationError:  # a corruption that costs the reference nothing
        lost = [math.nan]
    means = {f"corrupted {name}": _mean(run, name) for name in ("accuracy", "ece", "nll")}
    columns = {name: 100 * value for name, value in each.items()}
    found = {"mce": 100 * sum(each.values()) / len(each), "rmce": 100 * sum(lost) / len(lost)}
    found["lost"] = 100 * losses[0] / losses[1] if losses[1] > 0 else math.nan
    return {**found, "clean accuracy": 1 - clean, **means, **columns}


def _errors(run: Sequence[Point]) -> tuple[dict[tuple[str, int], float], float]:
    errors = {(point["corruption"], point["severity"]): 1 - point["accuracy"] for point in run}
    return errors, errors.pop(("clean", 0))


def _mean(run: Sequence[Point], metric: str) -> float:
    values = [point[metric] for point in run if point["corruption"] != "clean"]
    return sum(values) / len(values)


EXPERIMENT = Experiment("patch-corruptions", cells, rows, corruptions)
