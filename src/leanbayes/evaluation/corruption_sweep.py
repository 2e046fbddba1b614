"""Evaluation under corruption: which corruptions, their batches, and corruption errors against a reference."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from .. import batches
from ..errors import EvaluationError, LeanBayesWarning
from . import corruptions
from .configs import Corruptions as Corruptions
from .pixels import Pixels
from .result import Evaluation

Cell = tuple[str, int]
"""A corruption and a severity."""

METRICS = ("accuracy", "nll", "ece")


def cells(config: Corruptions, shape: Sequence[int]) -> list[Cell]:
    """Every corruption at every severity, for images of shape (C, H, W).

    >>> cells(Corruptions(severities=(1, 5)), (1, 28, 28))[:3]
    [('gaussian_noise', 1), ('gaussian_noise', 5), ('shot_noise', 1)]
    """
    suitable = corruptions.names(tuple(shape))
    return [(name, severity) for name in config.names or suitable for severity in config.severities]


def corrupted(
    loader: Iterable[Any], name: str, severity: int, config: Corruptions, pixels: Pixels
) -> Iterator[tuple[Any, Any]]:
    """Yield batches (inputs, targets) of the first `config.limit` data of a loader, corrupted.

    loader: batches of (inputs, targets) in a fixed order. pixels: the normalisation of the inputs. The noise of a
    datum is keyed by (seed, corruption, severity, index) and does not depend on the batch size.

    >>> import torch
    >>> from leanbayes.evaluation.pixels import Pixels
    >>> batch = (torch.rand(6, 3, 32, 32), torch.arange(6))
    >>> [targets.tolist() for _, targets in corrupted([batch], "fog", 2, Corruptions(limit=4), Pixels())]
    [[0, 1, 2, 3]]
    """
    start = 0
    for batch in loader:
        inputs, targets = batches.split(batch)
        if config.limit is not None:
            inputs, targets = (batches.rows(part, 0, config.limit - start) for part in (inputs, targets))
        count = batches.size(inputs)
        if count:
            yield _corrupted(inputs, name, severity, config.seed, start, pixels), targets
        start += count
        if config.limit is not None and start >= config.limit:
            return


def ce(errors: Mapping[Cell, float], reference: Mapping[Cell, float]) -> dict[str, float]:
    """The corruption error CE_c = E_c / E_c(reference) of every corruption; EMP paper, appendix D.4.

    E_c is the top-1 error summed over severities. errors, reference: fractions by (corruption, severity).
    """
    total, other = _summed(errors), _summed(_same_cells(errors, reference))
    return {name: _ratio(total[name], other[name], name, "the reference makes no error under") for name in total}


def relative_ce(
    errors: Mapping[Cell, float], clean: float, reference: Mapping[Cell, float], reference_clean: float
) -> dict[str, float]:
    """The relative error rCE_c = (E_c - E_clean) / (E_c - E_clean)(reference) of every corruption; appendix D.4.

    E_clean is the error on clean data, summed as often as there are severities. The paper's denominator takes the
    clean error of the model itself, which is a slip: it is the reference's, as in Hendrycks & Dietterich 2019.
    """
    total = _summed({cell: error - clean for cell, error in errors.items()})
    other = _summed({cell: e - reference_clean for cell, e in _same_cells(errors, reference).items()})
    return {name: _ratio(total[name], other[name], name, "the reference loses nothing under") for name in total}


def mce(errors: Mapping[Cell, float], reference: Mapping[Cell, float]) -> float:
    """The mean corruption error: the mean of `ce` over corruptions; 1 is as robust as the reference, less is better.

    >>> vanilla = {("fog", 1): 0.2, ("fog", 2): 0.4, ("snow", 1): 0.1, ("snow", 2): 0.3}
    >>> model = {("fog", 1): 0.1, ("fog", 2): 0.2, ("snow", 1): 0.2, ("snow", 2): 0.4}
    >>> round(mce(model, vanilla), 12)  # (0.3 / 0.6 + 0.6 / 0.4) / 2
    1.0
    """
    return _mean(ce(errors, reference).values())


def relative_mce(
    errors: Mapping[Cell, float], clean: float, reference: Mapping[Cell, float], reference_clean: float
) -> float:
    """The relative mean corruption error: the mean of `relative_ce`, which measures the loss due to corruption alone.

    >>> vanilla = {("fog", 1): 0.2, ("fog", 2): 0.4, ("snow", 1): 0.1, ("snow", 2): 0.3}
    >>> model = {("fog", 1): 0.1, ("fog", 2): 0.2, ("snow", 1): 0.2, ("snow", 2): 0.4}
    >>> round(relative_mce(model, 0.1, vanilla, 0.05), 12)  # (0.1 / 0.5 + 0.4 / 0.3) / 2
    0.766666666667
    """
    return _mean(relative_ce(errors, clean, reference, reference_clean).values())


def summary(
    cells: list[dict[str, Any]], clean: Mapping[str, float], reference: Evaluation | None = None
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Metrics ``corruption.*`` and the rows for the report.

    cells: rows of corruption, severity, accuracy, nll, ece, count. clean: the metrics of the same data uncorrupted.
    corruption.accuracy, .nll, .ece: means over all cells; corruption.accuracy.3 and so on: over those of severity 3;
    corruption.clean_accuracy; and with a reference corruption.mce and .rmce, NaN (and a warning) where undefined.

    >>> rows = [{"corruption": "fog", "severity": 1, "accuracy": 0.8, "nll": 0.7, "ece": 0.1, "count": 100}]
    >>> metrics, _ = summary(rows, {"accuracy": 0.9})
    >>> metrics["corruption.accuracy"], metrics["corruption.accuracy.1"], metrics["corruption.clean_accuracy"]
    (0.8, 0.8, 0.9)
    """
    if not cells:
        raise EvaluationError("corruption: expected at least one cell, received none")
    errors = {(row["corruption"], row["severity"]): 1 - row["accuracy"] for row in cells}
    if len(errors) < len(cells):
        raise EvaluationError("corruption: expected each corruption and severity once, received one of them twice")
    metrics = {f"corruption.{metric}": _mean(row[metric] for row in cells) for metric in METRICS}
    for severity in sorted({row["severity"] for row in cells}):
        rows = [row for row in cells if row["severity"] == severity]
        metrics |= {f"corruption.{metric}.{severity}": _mean(row[metric] for row in rows) for metric in METRICS}
    metrics["corruption.clean_accuracy"] = clean["accuracy"]
    if reference is not None:
        others, other_clean = reference_errors(reference, errors)
        for metric, value in (
            ("mce", lambda: mce(errors, others)),
            ("rmce", lambda: relative_mce(errors, 1 - clean["accuracy"], others, other_clean)),
        ):
            try:
                metrics[f"corruption.{metric}"] = value()
            except EvaluationError as error:
                warnings.warn(f"corruption.{metric} is undefined: {error}", LeanBayesWarning, stacklevel=2)
                metrics[f"corruption.{metric}"] = float("nan")
    return metrics, [dict(row) for row in cells]


def reference_errors(reference: Evaluation, wanted: Iterable[Cell]) -> tuple[dict[Cell, float], float]:
    """The errors of a reference in the wanted cells, and its clean error.

    >>> from leanbayes.evaluation.result import Evaluation
    >>> rows = [{"corruption": "fog", "severity": 1, "accuracy": 0.75}]
    >>> vanilla = Evaluation("vanilla", "classification", 100, {"accuracy": 0.875}, {"corruption": rows})
    >>> reference_errors(vanilla, [("fog", 1)])
    ({('fog', 1): 0.25}, 0.125)
    """
    name = reference.name if isinstance(reference, Evaluation) else None
    rows = reference.curves.get("corruption") if isinstance(reference, Evaluation) else None
    if not rows:
        raise EvaluationError(
            f"reference: expected an Evaluation with corruptions, received {name or type(reference).__name__!r} "
            f"without; try evaluate(vanilla, loader, corruptions=Corruptions(), ...)"
        )
    errors = {(row["corruption"], row["severity"]): 1 - row["accuracy"] for row in rows}
    metrics = reference.metrics
    clean = 1 - metrics.get("corruption.clean_accuracy", metrics.get("accuracy", float("nan")))
    return _same_cells(wanted, errors, f"reference {name!r}"), clean


def _corrupted(inputs: Any, name: str, severity: int, seed: int, start: int, pixels: Pixels) -> Any:
    images: list[Any] = []
    batches.map_tensors(images.append, inputs)
    if len(images) != 1 or images[0].ndim != 4:
        shapes = ", ".join(str(tuple(t.shape)) for t in images) or type(inputs).__name__
        raise EvaluationError(f"corruption: expected inputs of images (N, C, H, W) alone, received {shapes}")

    def through(tensor: Tensor) -> Tensor:
        corrupted = corruptions.corrupt(pixels.to_pixels(tensor.detach()), name, severity, seed, start)
        return pixels.to_inputs(corrupted)

    return batches.map_tensors(through, inputs)


def _same_cells(wanted: Iterable[Cell], errors: Mapping[Cell, float], name: str = "reference") -> dict[Cell, float]:
    """The errors of the wanted cells, in their order."""
    wanted = list(wanted)
    for cell in wanted:
        if cell not in errors:
            raise EvaluationError(
                f"{name}: expected the same corruptions and severities as the model, but there is no cell "
                f"({cell[0]}, severity {cell[1]}); evaluate both with the same Corruptions(...)"
            )
    return {cell: errors[cell] for cell in wanted}


def _summed(errors: Mapping[Cell, float]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for (name, _), error in errors.items():
        sums[name] = sums.get(name, 0.0) + error
    if not sums:
        raise EvaluationError("corruption: expected at least one cell, received none")
    return sums


def _ratio(error: float, other: float, name: str, why: str) -> float:
    if abs(other) < 1e-12:  # zero up to rounding
        raise EvaluationError(f"{name}: expected a reference error to divide by, but {why} {name}; take more data")
    return error / other


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
