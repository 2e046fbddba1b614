"""The end of a page: the meanings of the numbers, and the command and versions to reproduce them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import columns
from .metrics import RANKS
from .parts import text

if TYPE_CHECKING:
    from ..evaluation.result import Evaluation


def meanings(evaluations: Sequence[Evaluation]) -> str:
    main = {c.key for c in columns.quality(evaluations, full=False)}
    shown = [c for c in columns.quality(evaluations) if c.meaning and not c.key.startswith("ood.")]
    shown = [c for c in shown if c.key in main or "." not in c.key]  # one level stands for all
    items = {c.label: c.meaning for c in [*shown, *columns.cost(evaluations)]}
    if any(k.startswith("ood.") for e in evaluations for k in e.metrics):
        items |= {label: meaning for label, _, meaning in RANKS.values()}
    rows = "".join(f"<dt>{text(label)}</dt><dd>{text(meaning)}</dd>" for label, meaning in items.items())
    return f"<section><h2>What the numbers mean</h2><div class=card><dl>{rows}</dl></div></section>"


def reproduce(evaluations: Sequence[Evaluation]) -> str:
    """The command and the versions, once if all models share them."""
    blocks = []
    shared = {_command(e) for e in evaluations}
    for e in evaluations[:1] if len(shared) == 1 else evaluations:
        name = "" if len(shared) == 1 else f"<h3>{text(e.name)}</h3>"
        blocks.append(f"{name}<pre>{text(_command(e))}</pre>")
    details: dict[str, list[str]] = {}
    for e in evaluations:
        for key, value in _flat(e.settings).items():
            details.setdefault(key, []).append(value)
    # one value if all models agree, otherwise one per model
    rows = "".join(
        f"<dt>{text(key)}</dt><dd>{text(values[0] if len(set(values)) == 1 else ' | '.join(values))}</dd>"
        for key, values in details.items()
        if key != "command"
    )
    return (
        f"<section><h2>To get these numbers again</h2><div class=card>{''.join(blocks)}<dl>{rows}</dl></div></section>"
    )


def _command(e: Evaluation) -> str:
    if isinstance(command := e.settings.get("command"), str):
        return command
    keys = ("task", "samples", "seed", "mean_only", "bins", "min_count", "adaptive")
    options = "".join(f", {k}={e.settings[k]!r}" for k in keys if k in e.settings)
    return f"leanbayes.evaluate(model, loader{options})"


def _flat(settings: dict[str, Any]) -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            text = ", ".join(f"{k} {v}" for k, v in value.items())
        else:
            text = "default" if value is None else str(value)
        if text:
            flat[key.replace("_", " ")] = text
    return flat
