"""The model card of a repository on the Hub: what a model is, how it is loaded, its evaluation in tables and plots."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from typing import Any

from torch import nn

from .._version import __version__
from ..convert import record
from ..evaluation.result import Evaluation
from ..report import detail, figure
from ..report.sections import Section, sections
from ..report.summary import summary
from ..report.table import conditions

FILE = "model.safetensors"
HEADLINES = ("accuracy", "nll", "ece", "brier", "rmse", "crps", "dice")


def card(
    model: nn.Module, repo: str, evaluation: Evaluation | None, license: str | None, description: str
) -> tuple[str, dict[str, bytes]]:
    """README.md as text, and the pictures it shows by the name of their file."""
    parts = [f"# {_text(repo.rpartition('/')[2])}", description.strip(), _about(model), _loading(repo)]
    pictures: dict[str, bytes] = {}
    if evaluation is not None:
        parts += [
            "## Evaluation",
            *map(_text, summary([evaluation])),
            _text(conditions([evaluation]).capitalize() + "."),
        ]
        parts += [_table(section) for section in sections(evaluation)]
        with figure.pictures() as found:
            detail.model(evaluation, several=False)
        for number, (title, picture) in enumerate(found, 1):
            name = f"plots/{number:02}-{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-')[:60]}.png"
            pictures[name] = picture
            parts.append(f"![{_text(title)}]({name})")
        parts += [_text(f"Note: {note}") for note in evaluation.notes]
    head = "\n".join(f"{key}: {json.dumps(value)}" for key, value in _head(model, repo, evaluation, license))
    return f"---\n{head}\n---\n\n" + "\n\n".join(filter(None, parts)) + "\n", pictures


def _head(model: nn.Module, repo: str, evaluation: Evaluation | None, license: str | None) -> Iterator[tuple[str, Any]]:
    """The metadata: YAML, of which JSON is a part."""
    yield "library_name", "leanbayes"
    yield "tags", ["leanbayes", "bayesian", "uncertainty", *sorted({m.lower() for m in _methods(model)})]
    if license is not None:
        yield "license", license
    if evaluation is not None:
        kept = {name: evaluation.metrics[name] for name in HEADLINES if name in evaluation.metrics}
        metrics = [{"type": name, "name": name, "value": round(value, 6)} for name, value in kept.items()]
        data = {"type": "test-data", "name": f"{evaluation.count:,} test data"}
        result = {"task": {"type": evaluation.task}, "dataset": data, "metrics": metrics}
        yield "model-index", [{"name": repo.rpartition("/")[2], "results": [result]}]


def _methods(model: nn.Module) -> list[str]:
    return [type(method).__name__ for method in dict.fromkeys(record.conversions(model).values())]


def _about(model: nn.Module) -> str:
    known, methods = record.get(model), _methods(model)
    count = sum(p.numel() for p in model.parameters())
    lines = [
        f"- Network: `{type(model).__name__}`, {count:,} parameters",
        f"- Bayesian layers: {len(record.conversions(model))} ({', '.join(methods)})"
        if methods
        else "- A plain network",
    ]
    if known is not None and known.likelihood is not None:
        lines.append(f"- Outputs: {_text(str(known.likelihood.get('kind', '')).lower())}")
    if known is not None and known.classes:
        shown = ", ".join(map(_text, known.classes[:50])) + (" ..." if len(known.classes) > 50 else "")
        lines.append(f"- Classes: {shown}")
    return "\n".join([*lines, f"- Made with leanbayes {__version__}"])


def _loading(repo: str) -> str:
    return (
        "```python\nimport leanbayes as lb\n\n"
        f'model = lb.from_hub("{repo}", into=...)  # a network of the same architecture\n'
        "predictive = lb.predict(model, inputs)\n```"
    )


def _table(section: Section) -> str:
    meanings = section.meanings or ("",) * len(section.rows)
    header = [*section.header, ""] if section.meanings else section.header
    rows = [[*row, meaning] if section.meanings else row for row, meaning in zip(section.rows, meanings, strict=True)]
    lines = [header, ["---"] * len(header), *rows]
    return f"### {_text(section.title)}\n\n" + "\n".join("| " + " | ".join(map(_text, line)) + " |" for line in lines)


def _text(value: str) -> str:
    """A string of the user as text of Markdown: no table, tag, link or line of its own."""
    plain = html.escape(" ".join(value.split()), quote=False)
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", plain)
