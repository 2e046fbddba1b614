"""One self-contained HTML page: a summary, tables, figures, costs, and the command that reproduces them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING

from .._version import __version__
from . import compared, detail, examples, figure, parts, reproduce_command
from .parts import text
from .summary import summary
from .table import conditions

if TYPE_CHECKING:
    from ..evaluation.result import Evaluation


def page(evaluations: Sequence[Evaluation], title: str | None = None, extra: str = "") -> str:
    """The page as text, without network access or scripts. Every string of the user is escaped.

    extra: HTML below the summary.

    >>> from leanbayes.evaluation import Evaluation
    >>> found = page([Evaluation("<b>mlp</b>", "classification", 100, {"accuracy": 0.93})])
    >>> found.startswith("<!DOCTYPE html>"), "<b>mlp</b>" in found, "&lt;b&gt;mlp" in found
    (True, False, True)
    """
    first, several = evaluations[0], len(evaluations) > 1
    title = title or (f"{len(evaluations)} models compared" if several else first.name)
    about = text(f"{first.task} · {conditions(evaluations)}")
    body = [
        f"<header><h1>{text(title)}</h1><p class=meta>{about}</p></header>",
        f"<div class=summary>{''.join(f'<p>{text(s)}</p>' for s in summary(evaluations))}</div>",
        extra,
        compared.overview(evaluations),
        examples.card(evaluations),
    ]
    if several:
        body.append(parts.columns(compared.figures(evaluations)))
        body.append("<h2>Each model</h2>")
    body += [detail.model(e, several) for e in evaluations]
    body += [reproduce_command.meanings(evaluations), reproduce_command.reproduce(evaluations)]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>\n{_css()}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + f"\n<footer>Made by leanbayes {text(__version__)}.</footer>\n</main>\n</body>\n</html>\n"
    )


def _css() -> str:
    """The style sheet, with the colours of the figures filled in."""
    text = (resources.files(__package__) / "page.css").read_text(encoding="utf-8")
    light = " ".join(f"{variable}: {value};" for value, variable, _ in figure.THEME)
    dark = " ".join(f"{variable}: {value};" for _, variable, value in figure.THEME)
    return text.replace("/*theme-light*/", f"  {light}").replace("/*theme-dark*/", f"    {dark}")
