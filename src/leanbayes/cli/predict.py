"""`leanbayes predict`: predictions with their uncertainty, from a file of inputs to a file of answers."""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from .. import files
from ..errors import ConfigError
from . import checks

if TYPE_CHECKING:
    from ..prediction import Predictive
    from .saved import Training

SHOWN = 20


@dataclass(frozen=True)
class Predict:
    """Predict with a saved network: probabilities or means, and how sure it is, one line a datum.

    Of a segmentation the line of an image has shares of its pixels; leanbayes segment writes masks and maps.

    Args:
        file: a model that leanbayes train or leanbayes.save wrote.
        inputs: data in original units, prepared as in training. Of a model of data of your own, what it was trained
            on: a .csv or .parquet table with the same columns, a .npz or .npy file, an image or a folder of them. Of
            others a .npy array or a .csv of numbers, pixels from 0 to 1, an image or a folder of them. Or
            package.module:function that returns inputs as the network takes them. With --out FILE.parquet also a
            pattern such as 'folder/*.parquet' or a folder of .parquet or .npy files, read one at a time.
        out: a .csv or .parquet to write; without it the lines are printed, on a terminal the first of them.
        samples: networks drawn from the posterior.
        mean_only: one pass at the posterior means instead.
        seed: of the draws.
        scaled: the inputs are scaled already, as in training.
        task: what the outputs mean, where the file does not say.
        model: your own network as package.module:factory, where the file does not hold one of the library's.
        engine: process predicts here; ray spreads files over a Ray cluster, with the same answers.
        address: of the cluster, host:port or auto; without it Ray is started on this machine.
        workers: at most so many at a time on the cluster; as many as it has processors if not given.
        json: print JSON instead of text.
    """

    file: Annotated[Path, tyro.conf.Positional]
    inputs: Annotated[Path, tyro.conf.Positional]
    out: Path | None = None
    samples: int = 32
    mean_only: bool = False
    seed: int = 0
    scaled: bool = False
    task: Literal["classification", "regression", "segmentation"] | None = None
    model: str | None = None
    engine: Literal["process", "ray"] = "process"
    address: str | None = None
    workers: int | None = None
    json: bool = False

    def run(self) -> dict[str, Any]:
        """Write or print the table."""
        checks.counts(samples=self.samples, workers=self.workers)
        checks.seed(self.seed)
        checks.targets(out=self.out)
        if self.engine != "ray" and (self.address is not None or self.workers is not None):
            raise ConfigError("--address and --workers: expected --engine ray as well")

        import leanbayes as lb

        from .inputs import inputs_of
        from .many_files import is_pattern, predict_files
        from .saved import open_model

        parquet = self.out is not None and self.out.suffix.lower() in (".parquet", ".pq")
        if parquet or self.engine == "ray" or is_pattern(str(self.inputs)):
            done = predict_files(self)
            if not self.json:
                print(f"wrote {done['count']} rows of {done['files']} files to {self.out}")
            return done
        model, training = open_model(self.file, self.model)
        x = inputs_of(str(self.inputs), training, scaled=self.scaled)
        options: dict[str, Any] = {"samples": self.samples, "seed": self.seed, "mean_only": self.mean_only}
        header, rows = table(lb.predict(model, x, task=self.task, **options), training)
        if self.out is not None:
            files.write_text(self.out, as_csv(header, rows))
        if not self.json:
            print(f"wrote {len(rows)} rows to {self.out}" if self.out else _shown(header, rows))
        result = {"columns": header, "count": len(rows), "out": None if self.out is None else str(self.out)}
        return result if self.out is not None else {**result, "rows": rows}


def table(prediction: Predictive, training: Training) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows: for classes the label, its probability, the uncertainties and every probability.

    A segmentation has a row an image: the share of pixels of each class, and the mean uncertainties of a pixel.
    """
    if prediction.task == "regression":
        low, high = prediction.interval(0.95)
        scale, shift = training.y_std, training.y_mean
        columns = {
            "mean": prediction.mean * scale + shift,
            "std": prediction.variance.sqrt() * scale,
            "epistemic_std": prediction.epistemic.sqrt() * scale,
            "low95": low * scale + shift,
            "high95": high * scale + shift,
        }
        if prediction.conformal is not None:
            low, high = prediction.prediction_intervals
            columns |= {"conformal_low": low * scale + shift, "conformal_high": high * scale + shift}
        outputs = prediction.mean[0].numel()
        header = [f"{name}_{k}" if outputs > 1 else name for name in columns for k in range(outputs)]
        numbers = [column for value in columns.values() for column in value.reshape(-1, outputs).T]
        return header, [[float(column[i]) for column in numbers] for i in range(len(prediction))]
    if prediction.task == "segmentation":
        return _of_images(prediction, training)
    confidence, label = prediction.probs.max(1)
    names = training.classes or list(prediction.classes) or [str(c) for c in range(prediction.probs.shape[1])]
    header = ["label", "confidence", "entropy", "mutual_information", *(f"p({name})" for name in names)]
    numbers = [confidence, prediction.entropy, prediction.mutual_information, *prediction.probs.T]
    rows = [[names[int(label[i])], *(float(c[i]) for c in numbers)] for i in range(len(prediction))]
    if prediction.conformal is None:
        return header, rows
    from ..evaluation.conformalize import sets_as_text

    sets = sets_as_text(prediction.prediction_sets, names)
    return [*header, "set"], [[*row, chosen] for row, chosen in zip(rows, sets, strict=True)]


def _of_images(prediction: Predictive, training: Training) -> tuple[list[str], list[list[Any]]]:
    names = training.classes or [str(c) for c in range(prediction.probs.shape[1])]
    shares = [(prediction.labels == c).double().flatten(1).mean(1) for c in range(len(names))]
    doubt = [part.flatten(1).mean(1) for part in (prediction.entropy, prediction.mutual_information)]
    header = ["entropy", "mutual_information", *(f"share({name})" for name in names)]
    return header, [[float(column[i]) for column in (*doubt, *shares)] for i in range(len(prediction))]


def as_csv(header: list[str], rows: list[list[Any]]) -> str:
    """Lines of comma-separated values, six digits a number.

    >>> as_csv(["label", "p"], [["a, b", 1 / 3]])
    'label,p\\n"a, b",0.333333\\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([f"{v:.6g}" if isinstance(v, float) else v for v in row] for row in rows)
    return text.getvalue()


def _shown(header: list[str], rows: list[list[Any]]) -> str:
    """All rows for a pipe or a file; on a terminal the first rows and a note."""
    if not sys.stdout.isatty() or len(rows) <= SHOWN:
        return as_csv(header, rows).rstrip("\n")
    return f"{as_csv(header, rows[:SHOWN])}... and {len(rows) - SHOWN} more; --out FILE writes them all"
