"""Reading figures: tables of pages, and the files of results that they come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def load(path: str) -> dict[str, Any]:
    """One file of results."""
    return dict(json.loads((ROOT / path).read_text(encoding="utf-8")))


def rows(page: str, first: str) -> list[list[str]]:
    """The cells of the table whose heading begins with `first`, below the heading."""
    text = (ROOT / page).read_text(encoding="utf-8")
    table = text[text.index(first) :].split("\n\n")[0].strip().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def spread(metric: dict[str, Any], digits: int, scale: float = 1.0) -> str:
    """Mean and standard deviation, as pages write them."""
    mean = f"{scale * metric['mean']:.{digits}f}"
    return mean if metric["std"] is None else f"{mean} ± {scale * metric['std']:.{digits}f}"


def by_method(path: str, dataset: str = "") -> dict[str, dict[str, Any]]:
    """The metrics of a result by method, of data sets whose name begins like this."""
    return {row["method"]: row["metrics"] for row in load(path)["rows"] if row["dataset"].startswith(dataset)}
