"""Figure 4 of sparse subspace VI: accuracy, loss and calibration on corrupted test images, by severity.

Averaged over all corruptions that suit the images; severity 0 is the clean part of the test set that the others spoil.
The paper compares with mBNN and has no table of it; here dense VI and RigL stand beside. The networks are those of
sparse-accuracy: with the same --resume folder none is trained again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from . import workload
from .base import Jobs, Metrics, Row, recipe
from .sparse import Setting, digits, done, lenet, published, resnet
from .sparse_measures import scores

if TYPE_CHECKING:
    from torch import nn

    from ..data import DataSet


@dataclass(frozen=True)
class Sweep:
    """A setting, the density, and the corruptions: the first `limit` test images, `names` (none: all that suit)."""

    setting: Setting
    density: float = 0.05
    limit: int = 500
    names: tuple[str, ...] = ()
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)


SETTINGS: dict[str, tuple[Sweep, ...]] = {
    "smoke": (
        Sweep(digits(), density=0.1, limit=60, names=("gaussian_noise", "contrast"), severities=(1, 5)),
    ),
    "cpu": (Sweep(lenet()), Sweep(resnet(seeds=1))),
    "paper": (Sweep(published(), limit=10_000), Sweep(published("cifar100"), density=0.1, limit=10_000)),
}  # fmt: skip
METRICS = ("accuracy", "nll", "ece", "classwise_l2")


@recipe(
    "sparse-corruption",
    "sparse subspace VI, figure 4: accuracy, loss and calibration on corrupted images, by severity",
    seeds={name: max(sweep.setting.seeds for sweep in sweeps) for name, sweeps in SETTINGS.items()},
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row for every method and severity."""
    for sweep in SETTINGS[preset]:
        setting, density = sweep.setting, sweep.density
        found = {
            "dense VI": setting.dense(),
            "RigL": setting.rigl(density),
            "sparse subspace": setting.subspace(density),
        }
        also: dict[str, Any] = {"samples": setting.samples, "images": sweep.limit, "names": list(sweep.names)}
        for name, run in found.items():
            runs = []
            for seed in range(setting.seeds):
                measure = partial(measured, sweep=sweep, seed=seed)
                severities = list(sweep.severities)
                runs.append(done(jobs, run, seed, f"{name}, corrupted", measure, **also, severities=severities))
            for severity in (0, *sweep.severities):
                each = [{metric: one[f"{severity} {metric}"] for metric in METRICS} for one in runs]
                yield Row(run.data, name, severity, each, paper={})


def measured(model: nn.Module, data: DataSet, sweep: Sweep, seed: int) -> Metrics:
    """All metrics by severity, the mean over corruptions."""
    from ..evaluation.corruption import Corruptions, cells, corrupted
    from ..evaluation.pixels import Pixels
    from ..prediction import predict

    inputs, targets = (part[: sweep.limit] for part in data.test.tensors)
    pixels = Pixels(tuple(data.mean.tolist()), tuple(data.std.tolist()))
    config = Corruptions(names=sweep.names, severities=sweep.severities, limit=sweep.limit)
    samples = sweep.setting.samples
    options: dict[str, Any] = {"samples": samples, "seed": seed, "chunk": workload.ROWS * samples}

    def asked(x: Any, y: Any) -> Metrics:
        return scores(predict(model, x, task="classification", **options).probs, y)

    found: dict[int, list[Metrics]] = {0: [asked(inputs, targets)]}
    for name, severity in cells(config, tuple(inputs.shape[1:])):
        for x, y in corrupted([(inputs, targets)], name, severity, config, pixels):
            found.setdefault(severity, []).append(asked(x, y))
    return {f"{at} {m}": sum(one[m] for one in each) / len(each) for at, each in found.items() for m in METRICS}


def figure(result: Mapping[str, Any]) -> str:
    """Figure 4 as SVG."""
    from ..report.sparse import lines

    return lines(result, "Corrupted test images", "severity", float, ("accuracy", "nll", "ece"))
