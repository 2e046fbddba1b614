"""The result of an experiment for the terminal: ours, with its spread, beside the paper's."""

from __future__ import annotations

from typing import Any

from ..report.table import as_text, table


def result_table(result: dict[str, Any]) -> str:
    """Rows as they stand in the JSON, the paper's figure in brackets where it has one.

    >>> row = {"dataset": "mnist", "method": "mean-field", "setting": 32, "paper": {"accuracy": 0.99}}
    >>> row["metrics"] = {"accuracy": {"mean": 0.985, "std": 0.001, "n": 3}}
    >>> print(result_table({"recipe": "baselines", "preset": "cpu", "seeds": 3, "seconds": 60, "rows": [row]}))
    data    method       setting               accuracy
    ───────────────────────────────────────────────────
    mnist   mean-field        32   0.985 ± 0.001 (0.99)
    baselines, preset cpu, 3 seeds, 60 s
    """
    rows = [row for row in result["rows"] if row["metrics"] or row["paper"]]
    names = list(dict.fromkeys(name for row in rows for name in [*row["metrics"], *row["paper"]]))
    header = ["data", "method", "setting", *names]
    lines = [[row["dataset"], row["method"], _setting(row["setting"]), *(_cell(row, n) for n in names)] for row in rows]
    shown, seeds = table(header, lines), result["seeds"]
    shown.columns[1].justify = "left"
    note = f"{result['recipe']}, preset {result['preset']}, {seeds} seed{'s' * (seeds > 1)}, {result['seconds']:.0f} s"
    curves = dict.fromkeys(name for row in result["rows"] for name in row.get("curves", ()))
    note += f"; curves in the JSON: {', '.join(curves)}" if curves else ""
    return f"{as_text(shown)}\n{note}"


def _cell(row: dict[str, Any], name: str) -> str:
    found = row["metrics"].get(name)
    if found is None:
        text = "-"
    else:
        text = "undefined" if found["mean"] is None else _number(found["mean"])
        text += f" ± {found['std']:.2g}" if found["std"] is not None else ""
    return text + (f" ({_number(row['paper'][name])})" if name in row["paper"] else "")


def _setting(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    """Counts in full, the rest to four digits."""
    return f"{value:,.0f}" if value == int(value) and abs(value) >= 1000 else f"{value:.4g}"
