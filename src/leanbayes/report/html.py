"""One self-contained HTML page: what was found in words, numbers and pictures, what it costs, how to get it again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

from .._version import __version__
from . import columns, figure, plots, words
from .table import conditions

if TYPE_CHECKING:
    from ..evaluate.result import Evaluation


def page(evaluations: Sequence[Evaluation], title: str | None = None) -> str:
    """The page as text: no network, no scripts; light and dark, phone and print. Every string of the user is escaped.

    >>> from leanbayes.evaluate import Evaluation
    >>> text = page([Evaluation("<b>mlp</b>", "classification", 100, {"accuracy": 0.93})])
    >>> text.startswith("<!DOCTYPE html>"), "<b>mlp</b>" in text, "&lt;b&gt;mlp" in text
    (True, False, True)
    """
    first, several = evaluations[0], len(evaluations) > 1
    title = title or (f"{len(evaluations)} models compared" if several else first.name)
    about = _text(f"{first.task} · {conditions(evaluations)}")
    body = [
        f"<header><h1>{_text(title)}</h1><p class=meta>{about}</p></header>",
        f"<div class=summary>{''.join(f'<p>{_text(s)}</p>' for s in words.summary(evaluations))}</div>",
        _quality_and_cost(evaluations),
    ]
    if several:
        body.append(_grid(_compared(evaluations), "grid start"))
    body += [_model(e, several) for e in evaluations]
    body += [_meanings(evaluations), _reproduce(evaluations)]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>\n{_css()}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + f"\n<footer>Made by leanbayes {_text(__version__)}.</footer>\n</main>\n</body>\n</html>\n"
    )


def _quality_and_cost(evaluations: Sequence[Evaluation]) -> str:
    """One row a model; quality on the left, what it costs on the right."""
    quality = columns.quality(evaluations, full=False)
    costs = columns.cost(evaluations)
    groups = f"<th></th><th colspan={len(quality)} scope=colgroup>Quality</th>"
    groups += f"<th colspan={len(costs)} scope=colgroup class=cost>Cost</th>" if costs else ""
    heads = "".join(_head(c, c is costs[0] if costs else False) for c in [*quality, *costs])
    rows = []
    for number, e in enumerate(evaluations):
        cells = []
        for c in [*quality, *costs]:
            kinds = ["best"] if number in columns.best(c, evaluations) else []
            kinds += ["cost"] if costs and c is costs[0] else []
            cells.append(
                f'<td class="{" ".join(kinds)}">{_text(c.text(e))}</td>' if kinds else f"<td>{_text(c.text(e))}</td>"
            )
        rows.append(f"<tr><th scope=row>{_text(e.name)}</th>{''.join(cells)}</tr>")
    return (
        f'<div class="card"><div class="scroll"><table class=wide><thead><tr class=groups>{groups}</tr>'
        f"<tr><th scope=col>Model</th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></div>"
    )


def _head(column: columns.Column, edge: bool) -> str:
    label = column.label + {"higher": " ↑", "lower": " ↓"}.get(column.better, "")
    return f'<th scope=col title="{_text(column.meaning)}"{" class=cost" if edge else ""}>{_text(label)}</th>'


def _compared(evaluations: Sequence[Evaluation]) -> Iterable[str]:
    caption = "Filled dots are the best of their scale."
    if any("accuracy" in e.metrics for e in evaluations):
        caption += " The bar at the accuracy is its 95 % sampling interval."
    yield _figure("Side by side", plots.comparison(evaluations), caption)
    others = []
    if all("reliability" in e.curves for e in evaluations):
        caption = (
            "On the dashed line, a model that says 80 % is right 80 % of the time. Below it, it is over-confident."
        )
        others.append(_figure("Is confidence honest?", plots.reliability_overlay(evaluations), caption))
    if all("coverage" in e.curves for e in evaluations):
        curves = {e.name: e.curves["coverage"] for e in evaluations}
        others.append(_figure("Do the intervals hold?", plots.coverage(curves), _COVERAGE))
    if all(e.cost.get("predict_seconds") and e.metrics.keys() & {"nll", "rmse"} for e in evaluations):
        caption = "Down is better, left is cheaper; all samples of a prediction are counted."
        others.append(_figure("What does quality cost?", plots.quality_and_cost(evaluations), caption))
    yield f"<div class=stack>{''.join(others)}</div>"


def _model(e: Evaluation, several: bool) -> str:
    """Everything about one model."""
    figures = []
    if "reliability" in e.curves:
        caption = "How often it is right when it is that sure; hollow bins are too small to count. Below: data per bin."
        figures.append(_figure("Reliability", plots.reliability(e.curves["reliability"]), caption))
    if "confidence" in e.curves:
        caption = "How sure it was where it was right and where it was wrong, each adding up to 100 %."
        figures.append(_figure("Confidence", plots.confidence(e.curves["confidence"]), caption))
    if "coverage" in e.curves and not several:
        figures.append(_figure("Coverage", plots.coverage({e.name: e.curves["coverage"]}), _COVERAGE))
    for histogram in e.curves.get("ood", ()):
        if histogram["score"] in ("entropy", "mutual_information", "variance"):
            auroc = e.metrics.get(f"ood.{histogram['set']}.{histogram['score']}.auroc")
            score = columns.SCORES[histogram["score"]]
            caption = f"Test data and {histogram['set']}, each adding up to 100 %. The further apart, the better."
            figures.append(
                _figure(f"Doubt about {histogram['set']}: {score}", plots.ood_histogram(histogram, auroc), caption)
            )
    if e.history:
        figures.append(_figure("Training", plots.training(e.history), f"{len(e.history)} epochs."))
    notes = "".join(f"<p class=note>Note: {_text(note)}</p>" for note in e.notes)
    heading = f"<h2>{_text(e.name) if several else 'In detail'}</h2>"
    return f"<section>{heading}{notes}{_grid(figures)}{_grid(_numbers(e), 'grid start')}</section>"


def _numbers(e: Evaluation) -> Iterable[str]:
    """All numbers of one model as small tables."""
    single, intervals, ranks = columns.grouped(e)
    yield _card("All numbers", ["", ""], [[c.label, c.text(e)] for c in [*single, *columns.cost([e])]])
    if intervals:
        rows = [[level, *(c.text(e) for c in pair)] for level, pair in intervals.items()]
        yield _card("Intervals", ["Level", "Truths inside", "Mean width"], rows)
    if ranks:
        rows = [[f"{name}, {score}", *(c.text(e) for c in three)] for (name, score), three in ranks.items()]
        yield _card("Out of domain", ["Set, score", "AUROC ↑", "AUPR ↑", "FPR95 ↓"], rows)


def _meanings(evaluations: Sequence[Evaluation]) -> str:
    main = {c.key for c in columns.quality(evaluations, full=False)}
    shown = [c for c in columns.quality(evaluations) if c.meaning and not c.key.startswith("ood.")]
    shown = [c for c in shown if c.key in main or "." not in c.key]  # one level stands for all
    items = {c.label: c.meaning for c in [*shown, *columns.cost(evaluations)]}
    if any(k.startswith("ood.") for e in evaluations for k in e.metrics):
        items |= {label: meaning for label, _, meaning in columns.RANKS.values()}
    rows = "".join(f"<dt>{_text(label)}</dt><dd>{_text(meaning)}</dd>" for label, meaning in items.items())
    return f"<section><h2>What the numbers mean</h2><div class=card><dl>{rows}</dl></div></section>"


def _reproduce(evaluations: Sequence[Evaluation]) -> str:
    """The command and the versions, once where all models share them."""
    blocks = []
    shared = {_command(e) for e in evaluations}
    for e in evaluations[:1] if len(shared) == 1 else evaluations:
        name = "" if len(shared) == 1 else f"<h3>{_text(e.name)}</h3>"
        blocks.append(f"{name}<pre>{_text(_command(e))}</pre>")
    details: dict[str, list[str]] = {}
    for e in evaluations:
        for key, value in _flat(e.settings).items():
            details.setdefault(key, []).append(value)
    # One value where all agree; else one per model, in the order of the table.
    rows = "".join(
        f"<dt>{_text(key)}</dt><dd>{_text(values[0] if len(set(values)) == 1 else ' | '.join(values))}</dd>"
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


def _text(text: str) -> str:
    """Safe as text and as an attribute; a number keeps its unit on the line."""
    return escape(text).replace(" %", "&nbsp;%").replace(" ↑", "&nbsp;↑").replace(" ↓", "&nbsp;↓")


def _figure(title: str, picture: str, caption: str) -> str:
    return f"<figure class=card><h3>{_text(title)}</h3>{picture}<figcaption>{_text(caption)}</figcaption></figure>"


def _card(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th scope=col>{_text(h)}</th>" for h in header)
    body = "".join(
        f"<tr><th scope=row>{_text(row[0])}</th>{''.join(f'<td>{_text(cell)}</td>' for cell in row[1:])}</tr>"
        for row in rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if any(header) else ""
    table = f"<table>{top}<tbody>{body}</tbody></table>"
    return f"<div class=card><h3>{_text(title)}</h3><div class=scroll>{table}</div></div>"


def _grid(cards: Iterable[str], kind: str = "grid") -> str:
    inner = "".join(cards)
    return f'<div class="{kind}">{inner}</div>' if inner else ""


def _css() -> str:
    """The style sheet, with the colours of the figures filled in."""
    text = (resources.files(__package__) / "page.css").read_text(encoding="utf-8")
    light = " ".join(f"{variable}: {value};" for value, variable, _ in figure.THEME)
    dark = " ".join(f"{variable}: {value};" for _, variable, value in figure.THEME)
    return text.replace("/*theme-light*/", f"  {light}").replace("/*theme-dark*/", f"    {dark}")


_COVERAGE = (
    "On the dashed line, 90 % of the truths lie inside the 90 % intervals. Below it, the intervals are too narrow."
)
