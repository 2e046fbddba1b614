"""`leanbayes evaluate`: is it right, and does it know when it is not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from . import checks

if TYPE_CHECKING:
    from ..evaluate import Evaluation


@dataclass(frozen=True)
class Evaluate:
    """Evaluate a saved network: accuracy, calibration, out-of-domain detection, in a table and a page.

    Args:
        file: a model that leanbayes train or leanbayes.save wrote.
        data: the data set to test on; by default the test part of what it was trained on.
        ood: data sets it should doubt, for example fashion-mnist or not-digits/letters.
        samples: networks drawn from the posterior.
        mean_only: one pass at the posterior means instead.
        seed: of the draws.
        task: what the outputs mean, where the file does not say.
        model: your own network as package.module:factory, where the file does not hold one of the library's.
        html: a page to write.
        json: print JSON instead of a table.
    """

    file: Annotated[Path, tyro.conf.Positional]
    data: str | None = None
    ood: tuple[str, ...] = ()
    samples: int = 32
    mean_only: bool = False
    seed: int = 0
    task: Literal["classification", "regression"] | None = None
    model: str | None = None
    html: Path | None = None
    json: bool = False

    def run(self) -> dict[str, Any]:
        """Print the table, or return it."""
        checks.counts(samples=self.samples)
        checks.seed(self.seed)
        checks.targets(html=self.html)

        from torch.utils.data import DataLoader

        import leanbayes as lb

        from ..errors import ConfigError
        from .saved import open_model

        model, training = open_model(self.file, self.model)
        name = self.data or training.data
        if name is None:
            raise ConfigError(f"{self.file} does not say what it was trained on; add --data NAME")
        data = training.load(name)
        if data.task == "unlabelled":
            raise ConfigError(f"--data: expected a set with labels, {name} has none; use --ood {name}")
        if training.classes is not None and data.num_classes != len(training.classes):
            raise ConfigError(
                f"--data: expected a set of {len(training.classes)} classes, as the model has, {name} has "
                f"{data.num_classes}; use --ood {name} to see whether it is doubted"
            )
        others = {other: DataLoader(training.load(other, like=data).test, 256) for other in self.ood}
        result = lb.evaluate(
            model,
            DataLoader(data.test, 256),
            task=self.task,
            ood=others or None,
            samples=self.samples,
            mean_only=self.mean_only,
            seed=self.seed,
            name=self.file.stem,
        )
        result = in_units_of_target(result, training.y_std)
        if self.html is not None:
            result.save_html(self.html)
        if not self.json:
            print(result)
            if self.html is not None:
                print(f"wrote {self.html}")
        return result.to_dict()


def in_units_of_target(result: Evaluation, scale: float) -> Evaluation:
    """An evaluation of standardised targets, y / scale, in the units of y: errors and widths grow, the density falls.

    >>> from leanbayes.evaluate import Evaluation
    >>> in_units_of_target(Evaluation("mlp", "regression", 9, {"rmse": 0.5, "coverage.0.9": 0.88}), 4.0).metrics
    {'rmse': 2.0, 'coverage.0.9': 0.88}
    """
    import math

    if result.task != "regression":
        return result
    lengths = {k: v * scale for k, v in result.metrics.items() if k in ("rmse", "mae") or k.startswith("width.")}
    densities = {k: v - math.log(scale) for k, v in result.metrics.items() if k == "log_density"}
    return replace(result, metrics={**result.metrics, **lengths, **densities})
