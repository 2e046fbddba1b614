"""`leanbayes evaluate`: is it right, does it know when it is not, and does it hold up."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ..errors import ConfigError, LeanBayesWarning
from ..optional import require
from . import checks

if TYPE_CHECKING:
    from ..evaluation import Comparison, Evaluation
    from .saved import Training

LIMIT, STEP, ITERATIONS = 1000, 0.5, 20


@dataclass(frozen=True)
class Evaluate:
    """Evaluate saved networks: accuracy, calibration, out-of-domain, corruption, attack, in a table and a page.

    Args:
        files: models that leanbayes train or leanbayes.save wrote; several are compared.
        data: the data set to test on: a name, a file or folder of your own, or package.module:function; by default the
            test part of what they were trained on.
        ood: data sets they should doubt, for example fashion-mnist or not-digits/letters.
        samples: networks drawn from the posterior; several numbers make a row each.
        procedures: of stochastic (one sample), deterministic (the means) and ensemble (all samples), a row each.
        mean_only: one pass at the posterior means instead of samples.
        seed: of the draws.
        corruptions: spoil the images: all corruptions that suit them, or those named.
        severities: of the corruptions, from 1 to 5; by default all five.
        attack: push the images towards a wrong class, as in the Variance Networks paper.
        attack_step: of the attack, in units of 1/255 of the pixel range (by default 0.5).
        attack_iterations: steps of the attack (by default 20).
        limit: images for each corruption and for the attack (by default 1000).
        temperature: fit one temperature on the validation part of the training data and show what it does.
        reference: the JSON of another model's evaluation with the same corruptions, for mCE.
        replicates: of the bootstrap behind the intervals; 0 for none.
        resume: a file that remembers what is done: after an interruption, the same command goes on from it.
        task: what the outputs mean, where the file does not say.
        model: your own network as package.module:factory, where the file does not hold one of the library's.
        name: what the table calls the model; by default the name of its file.
        html: a page to write.
        json: print JSON instead of a table.
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    data: str | None = None
    ood: tuple[str, ...] = ()
    samples: tuple[int, ...] = (32,)
    procedures: tuple[Literal["stochastic", "deterministic", "ensemble"], ...] = ()
    mean_only: bool = False
    seed: int = 0
    corruptions: tuple[str, ...] | None = None
    severities: tuple[int, ...] = ()
    attack: bool = False
    attack_step: float | None = None
    attack_iterations: int | None = None
    limit: int | None = None
    temperature: bool = False
    reference: Path | None = None
    replicates: int = 200
    resume: Path | None = None
    task: Literal["classification", "regression", "segmentation"] | None = None
    model: str | None = None
    name: str | None = None
    html: Path | None = None
    json: bool = False

    def run(self) -> dict[str, Any]:
        """Print the table, or return it."""
        self._check()
        result = self._evaluate()
        if self.html is not None:
            result.save_html(self.html)
        if not self.json:
            print(result)
            if self.html is not None:
                print(f"wrote {self.html}")
        return result.to_dict()

    def go_on(self) -> str:
        """What to do after an interruption."""
        return checks.continued(self.resume, "with --resume FILE an evaluation")

    def _check(self) -> None:
        """Refuse wrong options before anything is loaded."""
        if not self.files:
            raise ConfigError("expected at least one model file, received none; leanbayes train makes one")
        for samples in self.samples:
            checks.counts(samples=samples)
        if not self.samples or len(set(self.samples)) < len(self.samples):
            given = " ".join(map(str, self.samples)) or "none"
            raise ConfigError(f"--samples: expected one number or several different ones, received {given}")
        checks.seed(self.seed)
        checks.not_negative(replicates=self.replicates)
        checks.targets(html=self.html, resume=self.resume)
        if self.html is not None:
            require("matplotlib", "plots", "--html")
        checks.counts(limit=self.limit, attack_iterations=self.attack_iterations)
        checks.positive(attack_step=self.attack_step)
        self._check_pairs()

    def _check_pairs(self) -> None:
        """Refuse options without, or beside, another option."""
        sweep = self.corruptions is not None
        needs = (
            ("--severities", bool(self.severities), "--corruptions", sweep),
            ("--reference", self.reference is not None, "--corruptions", sweep),
            ("--attack-step", self.attack_step is not None, "--attack", self.attack),
            ("--attack-iterations", self.attack_iterations is not None, "--attack", self.attack),
            ("--limit", self.limit is not None, "--corruptions or --attack", sweep or self.attack),
        )
        for option, given, other, there in needs:
            if given and not there:
                raise ConfigError(f"{option}: expected {other} beside it, received none; add it, or drop {option}")
        if self.mean_only and (self.procedures or len(self.samples) > 1):
            raise ConfigError("--mean-only: expected no --procedures and one number of --samples beside it; drop one")
        if self.name is not None and len(self.files) > 1:
            raise ConfigError(
                f"--name: expected one file to name, received {len(self.files)}; rename the files instead"
            )

    def _evaluate(self) -> Evaluation | Comparison:
        from ..evaluation import compare
        from ..evaluation.several_models import evaluate_rows, rows
        from .saved import open_model

        names = self._names()
        opened = [open_model(file, self.model) for file in self.files]
        options = self._options()
        found: list[Evaluation] = []
        for name, file, (model, training) in zip(names, self.files, opened, strict=True):
            each = rows({name: model}, self.samples, self.procedures or None)
            loader, data_options = self._data(training, file)
            table = evaluate_rows(each, loader, resume=self._resume(name), **options, **data_options)
            found += [in_units_of_target(e, training.y_std) for e in table]
        return found[0] if len(found) == 1 else compare(found)

    def _names(self) -> list[str]:
        """The stem of each file, or its path where stems repeat."""
        if self.name is not None:
            return [self.name]
        stems = [file.stem for file in self.files]
        names = stems if len(set(stems)) == len(stems) else [str(file) for file in self.files]
        if len(set(names)) < len(names):
            raise ConfigError("expected different files, received one of them twice")
        return names

    def _resume(self, name: str) -> Path | None:
        if self.resume is None or len(self.files) == 1:
            return self.resume
        return self.resume.with_name(f"{self.resume.stem}.{Path(name).stem}{self.resume.suffix}")

    def _options(self) -> dict[str, Any]:
        """The options of `evaluate` that are the same for all files."""
        from ..evaluation import Attack, Corruptions, Evaluation

        limit = self.limit or LIMIT
        options: dict[str, Any] = {"task": self.task, "seed": self.seed, "replicates": self.replicates}
        if self.mean_only:
            options["mean_only"] = True
        if self.corruptions is not None:
            chosen: dict[str, Any] = {"severities": self.severities} if self.severities else {}
            options["corruptions"] = Corruptions(names=self.corruptions, limit=limit, **chosen)
        if self.attack:
            step, iterations = self.attack_step or STEP, self.attack_iterations or ITERATIONS
            options["attack"] = Attack(step=step, iterations=iterations, limit=limit, seed=self.seed)
        if self.reference is not None:
            options["reference"] = Evaluation.load_json(self.reference)
        return options

    def _data(self, training: Training, file: Path) -> tuple[Any, dict[str, Any]]:
        """The test data of a model, and the options of `evaluate` that concern data."""
        from .own_data import is_function, loader

        name = training.data_name(self.data, file)
        data = training.load(name)
        if data.task == "unlabelled":
            raise ConfigError(f"--data: expected a set with labels, {name} has none; use --ood {name}")
        if training.mean is None and not is_function(name):
            warnings.warn(
                f"{file} does not say how inputs were scaled in training; those of {name} are scaled by its own mean "
                "and standard deviation",
                LeanBayesWarning,
                stacklevel=2,
            )
        if training.classes is not None and data.num_classes != len(training.classes):
            raise ConfigError(
                f"--data: expected a set of {len(training.classes)} classes, as the model has, {name} has "
                f"{data.num_classes}; use --ood {name} to see whether it is doubted"
            )
        options: dict[str, Any] = {}
        if self.ood:
            options["ood"] = {other: loader(training.load(other, like=data).test) for other in self.ood}
        for option, asked in (("--corruptions", self.corruptions is not None), ("--attack", self.attack)):
            if asked and (data.task != "classification" or len(data.input_shape) != 3):
                raise ConfigError(f"{option}: expected a set of images with classes, {name} is not one; drop {option}")
        if self.corruptions is not None or self.attack:
            from ..evaluation import Pixels

            options["pixels"] = Pixels(tuple(data.mean.tolist()), tuple(data.std.tolist()))
        if self.temperature:
            if data.task == "regression":
                raise ConfigError(f"--temperature: expected a classification, {name} is a {data.task}; drop it")
            if training.data is None:
                raise ConfigError(
                    f"{file} does not say what it was trained on, so it has no validation data; drop --temperature"
                )
            held_out = data if is_function(name) else training.load(training.data, like=data, part="val")
            options["temperature"] = loader(held_out.val)
        return loader(data.test), options


def in_units_of_target(result: Evaluation, scale: float) -> Evaluation:
    """An evaluation of standardised targets, y / scale, in the units of y.

    >>> from leanbayes.evaluation import Evaluation
    >>> in_units_of_target(Evaluation("mlp", "regression", 9, {"rmse": 0.5, "coverage.0.9": 0.88}), 4.0).metrics
    {'rmse': 2.0, 'coverage.0.9': 0.88}
    """

    if result.task != "regression":
        return result

    def scaled(name: str, value: float) -> float:
        if name in ("rmse", "mae", "crps", "sharpness", "conformal.width") or name.startswith("width."):
            return value * scale
        return value - math.log(scale) if name == "log_density" else value

    metrics = {name: scaled(name, value) for name, value in result.metrics.items()}
    replicates = {name: [scaled(name, value) for value in values] for name, values in result.replicates.items()}
    curves = dict(result.curves)
    if "coverage" in curves:
        widths = [None if width is None else width * scale for width in curves["coverage"]["width"]]
        curves["coverage"] = curves["coverage"] | {"width": widths}
    if "ood" in curves:  # of variances
        curves["ood"] = [h | {"edges": [edge * scale**2 for edge in h["edges"]]} for h in curves["ood"]]
    return replace(result, metrics=metrics, replicates=replicates, curves=curves)
