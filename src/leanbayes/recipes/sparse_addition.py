"""Figure 3, left, of sparse subspace VI: by which gradients weights are added.

Under one draw (the default), at the means, or averaged over 5 or 10 steps. The paper's bars have no numbers; it finds
minimal differences. The cpu preset trains a perceptron on Fashion-MNIST.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .base import Jobs, Row, recipe
from .sparse import Setting, digits, mlp, published, seeds

SETTINGS: dict[str, Setting] = {"smoke": digits(), "cpu": mlp(), "paper": published("cifar100")}


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
        yield Row(setting.label, name, passes, seeds(jobs, setting, run, f"{name} ({passes})"), paper={})


def figure(result: Mapping[str, Any]) -> str:
    """Figure 3, left, as SVG: a bar a criterion, its spread over seeds on it."""
    from ..report.sparse import bars

    return bars(result, "Criteria for addition", _name)


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['setting']} steps" if row["method"] == "several steps" else row["method"]
