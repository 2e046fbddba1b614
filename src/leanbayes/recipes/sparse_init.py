"""Figure 3, right, of sparse subspace VI: where sigma of a new weight starts; and the KL's warm-up, with and without.

The mean of the layer (the default), or a small constant. The paper's figure has no numbers; it finds the best constant
as good as the mean. By the time of single steps the cpu preset takes half an hour on two cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from .base import Jobs, Row, recipe
from .sparse import Run, Setting, digits, done, lenet, published, quality

SETTINGS: dict[str, Setting] = {"smoke": digits(), "cpu": lenet(), "paper": published("cifar100")}
CONSTANTS = (1e-5, 1e-4, 1e-3, 1e-2)


@recipe(
    "sparse-init",
    "sparse subspace VI, figure 3 right: sigma of new weights; and training without the KL's warm-up",
    seeds={name: setting.seeds for name, setting in SETTINGS.items()},
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row for the mean, one for every constant, and two without warm-up; the setting is that sigma."""
    setting = SETTINGS[preset]
    default = setting.subspace(0.1)
    found: list[tuple[str, str | float, Run]] = [("sigma of the layer", "mean", default)]
    for value in CONSTANTS[1:3] if preset == "smoke" else CONSTANTS:
        found.append(("a constant sigma", value, setting.subspace(0.1, new_std=value)))
    found.append(("no warm-up", "mean", replace(default, warmup=0.0)))
    found.append(("dense VI", "none new", setting.dense()))
    found.append(("dense VI, no warm-up", "none new", replace(setting.dense(), warmup=0.0)))
    for name, which, run in found:
        runs = [
            done(
                jobs, run, seed, f"{name} ({which})",
                partial(quality, samples=setting.samples, seed=seed), samples=setting.samples,
            )
            for seed in range(setting.seeds)
        ]  # fmt: skip
        yield Row(run.data, name, which, runs, paper={})
