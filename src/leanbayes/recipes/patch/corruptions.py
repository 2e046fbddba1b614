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
from dataclasses import dataclass
from functools import partial

from ...errors import EvaluationError
from ...evaluation.corruption import ce, relative_ce
from ..corrupted import corrupted_tests
from ..experiment import Cell, Experiment, Results
from ..figures.patch import corruptions
from ..jobs import Jobs
from ..results import Measured, Metrics, Point, Row
from .networks import PatchSetup, chosen, digits, key, probabilities, published, resnet, scores


@dataclass(frozen=True)
class CorruptedSetup:
    """A setup and the corruptions: the first `limit` test images, `names` (none: all of ImageNet-C that suit)."""

    setup: PatchSetup
    limit: int = 500
    names: tuple[str, ...] = ()
    severities: tuple[int, ...] = (1, 3, 5)
    samples: int = 20


SETUPS: dict[str, tuple[CorruptedSetup, ...]] = {
    "smoke": (
        CorruptedSetup(
            digits(methods=("vanilla", "ECMP (BN+out)")), 60, ("gaussian_noise", "contrast"), (1, 5), samples=5
        ),
    ),
    "cpu": (CorruptedSetup(resnet()),),
    "paper": (CorruptedSetup(published(), limit=10_000, severities=(1, 2, 3, 4, 5), samples=100),),
}
# mCE (tables 5 and 7) and rmCE (table 8), in percent
PAPER = {
    "vanilla": (100.0, 100.0),
    "dropout": (100.0, 100.0),
    "EMP (BN)": (98.8, 99.0),
    "EMP (BN+out)": (97.8, 97.4),
    "ECMP (BN)": (99.8, 101.0),
    "ECMP (BN+out)": (99.5, 102.0),
}


def cells(preset: str) -> Iterator[Cell]:
    """A row for every method; the setting is the number of images."""
    for asked in SETUPS[preset]:
        for method in asked.setup.methods:
            known = PAPER[method] if asked.setup.training.model == "resnet18" else ()
            also = {"images": asked.limit, "names": list(asked.names), "severities": list(asked.severities)}
            where = key(asked.setup, method, "patch-corruptions", **also, asked=asked.samples)
            measure, paper = partial(measured, asked, method), dict(zip(("mce", "rmce"), known, strict=False))
            yield Cell(asked.setup.label, method, asked.limit, where, measure, asked.setup.seeds, paper)


def measured(asked: CorruptedSetup, method: str, jobs: Jobs, seed: int) -> Measured:
    """Metrics of every corruption at every severity, and of the clean images."""
    data = asked.setup.training.load()
    model, _ = chosen(jobs, asked.setup, method, seed, data)
    found = [
        {"corruption": name, "severity": severity, **scores(probabilities(model, x, asked.samples, seed), y)}
        for name, severity, x, y in corrupted_tests(data, asked.limit, asked.names, asked.severities)
    ]
    return {"corruptions": found}


def rows(results: Results) -> Iterator[Row]:
    """A row for every method; the vanilla network of the same seed is the reference."""
    references = {one.dataset: runs for one, runs in results if one.method == "vanilla"}
    for one, runs in results:
        pairs = zip(runs, references[one.dataset], strict=True)
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
