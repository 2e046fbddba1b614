"""Figure 3, left, of sparse subspace VI: by which gradients weights are added.

Under one draw (the default), at the means, or averaged over 5 or 10 steps. The paper's bars have no numbers; it finds
minimal differences. By the time of single steps the cpu preset takes a quarter of an hour on two cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from .base import Jobs, Row, recipe
from .sparse import Setting, digits, done, lenet, published, quality

SETTINGS: dict[str, Setting] = {"smoke": digits(), "cpu": lenet(), "paper": published("cifar100")}


@recipe(
    "sparse-addition",
    "sparse subspace VI, figure 3 left: new weights by one draw, at the means, or over several steps",
    seeds={name: setting.seeds for name, setting in SETTINGS.items()},
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row a criterion; the setting is the number of passes it looks at."""
    setting = SETTINGS[preset]
    several = (5,) if preset == "smoke" else (5, 10)
    choices: list[tuple[str, int, dict[str, Any]]] = [("one draw", 1, {}), ("at the means", 1, {"addition": "mean"})]
    choices += [("several steps", k, {"addition": "steps", "addition_steps": k}) for k in several]
    for name, passes, options in choices:
        run = setting.subspace(0.1, **options)
        runs = [
            done(
                jobs, run, seed, f"{name} ({passes})",
                partial(quality, samples=setting.samples, seed=seed), samples=setting.samples,
            )
            for seed in range(setting.seeds)
        ]  # fmt: skip
        yield Row(run.data, name, passes, runs, paper={})
