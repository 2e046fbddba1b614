"""Tables of results/*.json for the pages about papers, so that no figure is copied by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def listed(pattern: str) -> str:
    """Command, seeds, duration and files of every result that matches a pattern such as ``variance-*``."""
    lines = ["| command | seeds | minutes | files |", "| --- | --- | --- | --- |"]
    for path in sorted(p for one in pattern.split(",") for p in ROOT.glob(f"results/{one}.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        files = f"[data](../results/{path.name})"
        if (ROOT / "results" / "figures" / f"{path.stem}.svg").exists():
            files += f", [figure](../results/figures/{path.stem}.svg)"
        lines.append(f"| `{data['command']}` | {data['seeds']} | {max(1, round(data['seconds'] / 60))} | {files} |")
    if len(lines) == 2:
        raise ValueError(f"results: expected a pattern that matches files of results/, received {pattern!r}")
    return "\n".join(lines)


def compared(name: str) -> str:
    """The rows of a result for which the paper prints a figure, ours beside it."""
    data = json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))
    lines = [
        "| data | method | setting | measure | leanbayes | seeds | paper |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in data["rows"]:
        for measure, published in row["paper"].items():
            ours = row["metrics"].get(measure)
            if ours is None or ours["mean"] is None:
                continue
            first = f"{row['dataset']} | {row['method']} | {_number(row['setting'])} | {measure}"
            lines.append(f"| {first} | {_spread(ours)} | {ours['n']} | {_number(published)} |")
    if len(lines) == 2:
        raise ValueError(f"compared: {name} has no row with a figure of the paper")
    return "\n".join(lines)


def _spread(value: dict[str, Any]) -> str:
    """The mean, and the standard deviation with as many decimals."""
    mean = _number(value["mean"])
    decimals = len(mean.partition(".")[2])
    return mean if value["std"] is None else f"{mean} ± {value['std']:.{decimals}f}"


def _number(value: Any) -> str:
    """Whole numbers as they are, others with four significant digits."""
    if not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"
