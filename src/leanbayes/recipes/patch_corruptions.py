"""Tables 5, 7 and 8 of ensemble model patching: corrupted test images.

mce: the mean over corruptions of the error, summed over severities, divided by the vanilla network's, in percent; rmce
likewise for what is lost against clean images, undefined where a single corruption costs the vanilla network nothing;
lost: the loss summed over corruptions before it is divided. The relative error's denominator has the vanilla network's
clean error, where the paper prints the model's own (appendix D.4). Columns by corruption are those of table 7. The
networks are those of `patch-calibration`, on the first test images and fewer samples; the paper's are of ImageNet-C.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from .base import Jobs, Metrics, Row, recipe
from .patch import Setting, chosen, digits, key, load, probabilities, published, resnet, scores

if TYPE_CHECKING:
    from torch import nn

    from ..data import DataSet
    from ..evaluation.corruption import Cell


@dataclass(frozen=True)
class Sweep:
    """A setting and the corruptions: the first `limit` test images, `names` (none: all of ImageNet-C that suit)."""

    setting: Setting
    limit: int = 500
    names: tuple[str, ...] = ()
    severities: tuple[int, ...] = (1, 3, 5)
    samples: int = 20


SETTINGS: dict[str, tuple[Sweep, ...]] = {
    "smoke": (
        Sweep(digits(methods=("vanilla", "ECMP (BN+out)")), 60, ("gaussian_noise", "contrast"), (1, 5), samples=5),
    ),
    "cpu": (Sweep(resnet()),),
    "paper": (Sweep(published(), limit=10_000, severities=(1, 2, 3, 4, 5), samples=100),),
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


@recipe(
    "patch-corruptions",
    "ensemble model patching, tables 5, 7 and 8: mean corruption errors against the vanilla network",
    seeds={name: max(sweep.setting.seeds for sweep in sweeps) for name, sweeps in SETTINGS.items()},
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row a method; the vanilla network is the reference of the same seed."""
    for sweep in SETTINGS[preset]:
        setting = sweep.setting
        found = {
            method: [_piece(jobs, sweep, method, seed) for seed in range(setting.seeds)] for method in setting.methods
        }
        for method, runs in found.items():
            each = [relative(run, reference) for run, reference in zip(runs, found["vanilla"], strict=True)]
            paper = dict(zip(("mce", "rmce"), PAPER[method], strict=True)) if setting.run.model == "resnet18" else {}
            yield Row(f"{setting.run.data}, {setting.run.model}", method, sweep.limit, each, paper=paper)


def figure(result: Mapping[str, Any]) -> str:
    """Table 7 as SVG: the error under every corruption against the vanilla network's."""
    from ..report.patch import corruptions

    return corruptions(result["rows"])


def relative(run: Metrics, reference: Metrics) -> Metrics:
    """The table's line: errors against the reference in percent, and means over all cells.

    run, reference: "NAME|SEVERITY|METRIC", the clean images being "clean|0".
    """
    import math

    from ..errors import EvaluationError
    from ..evaluation.corruption import ce, relative_ce

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


def _errors(run: Metrics) -> tuple[dict[Cell, float], float]:
    errors = {}
    for name, value in run.items():
        corruption, severity, metric = name.split("|")
        if metric == "accuracy" and corruption != "clean":
            errors[corruption, int(severity)] = 1 - value
    return errors, 1 - run["clean|0|accuracy"]


def _mean(run: Metrics, metric: str) -> float:
    values = [v for name, v in run.items() if name.endswith(f"|{metric}") and not name.startswith("clean|")]
    return sum(values) / len(values)


def _piece(jobs: Jobs, sweep: Sweep, method: str, seed: int) -> Metrics:
    also: dict[str, Any] = {"images": sweep.limit, "names": list(sweep.names), "severities": list(sweep.severities)}
    also["asked"] = sweep.samples
    work = partial(_measured, jobs, sweep, method, seed)
    return jobs(
        key(sweep.setting, method, seed, "patch-corruptions", **also), work, label=f"{method}, corrupted, seed {seed}"
    )


def _measured(jobs: Jobs, sweep: Sweep, method: str, seed: int) -> Metrics:
    data = load(sweep.setting.run)
    model, _ = chosen(jobs, sweep.setting, method, seed, data)
    return swept(model, data, sweep, seed)


def swept(model: nn.Module, data: DataSet, sweep: Sweep, seed: int) -> Metrics:
    """Metrics of every corruption at every severity, and of the clean images."""
    from ..evaluation.corruption import Corruptions, cells, corrupted
    from ..evaluation.pixels import Pixels

    inputs, targets = (part[: sweep.limit] for part in data.test.tensors)
    pixels = Pixels(tuple(data.mean.tolist()), tuple(data.std.tolist()))
    config = Corruptions(names=sweep.names, severities=sweep.severities, limit=sweep.limit)
    found: Metrics = {}

    def ask(where: str, x: Any, y: Any) -> None:
        said = scores(probabilities(model, x, sweep.samples, seed), y)
        found.update({f"{where}|{name}": value for name, value in said.items()})

    ask("clean|0", inputs, targets)
    for name, severity in cells(config, tuple(inputs.shape[1:])):
        for x, y in corrupted([(inputs, targets)], name, severity, config, pixels):
            ask(f"{name}|{severity}", x, y)
    return found
