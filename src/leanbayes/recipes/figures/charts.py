"""Lines, bars and matrices for the figures of all papers; `lines` and `bars` draw a whole result as an SVG string."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes

from ...report.figure import INK, canvas, colour, label, legend, percent_axis, svg

STYLES = ("o-", "s--", "^-.", "D:", "v-", "x--")
Rows = Sequence[Mapping[str, Any]]
Figure = Callable[[Mapping[str, Any]], str]


def lines(
    title: str, xlabel: str, metrics: Sequence[str], methods: Iterable[str] | None = None, log: bool = False
) -> Figure:
    """A function that draws a result: a line for every method against the setting, bars for standard deviations.

    Panels of metrics are above one another, data sets side by side.

    >>> row = {"dataset": "d", "method": "m", "setting": 0.5, "metrics": {"accuracy": {"mean": 0.9, "std": None}}}
    >>> lines("Title", "density", ["accuracy"])({"rows": [row]})[:4]
    '<svg'
    """
    return partial(_lines, title, xlabel, metrics, methods, log)


def _lines(
    title: str, xlabel: str, metrics: Sequence[str], methods: Iterable[str] | None, log: bool, result: Mapping[str, Any]
) -> str:
    rows = [row for row in result["rows"] if row["metrics"] and (methods is None or row["method"] in set(methods))]
    data, names = (list(dict.fromkeys(row[key] for row in rows)) for key in ("dataset", "method"))
    width, height = 5.4 if len(data) == 1 else 4.2 * len(data), 1.4 + 2.2 * len(metrics)
    spoken = []
    with canvas(len(metrics), columns=len(data), width=width, height=height) as (drawn, _):
        for number, ax in enumerate(drawn.axes):
            below, beside = divmod(number, len(data))
            mine = [row for row in rows if row["dataset"] == data[beside]]
            said = curves(ax, mine, metrics[below], names, log=log)
            if below == 0:
                spoken.append(f"{data[beside]}: {said}" if len(data) > 1 else said)
                ax.set_title(data[beside] if len(data) > 1 else "", loc="right", fontsize=10)
            if below == len(metrics) - 1:
                ax.set_xlabel(xlabel)
            if beside:
                ax.set_ylabel("")
        if len(data) == 1:
            legend(drawn.axes[0])
        else:
            drawn.legend(*drawn.axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=len(names))
        return svg(drawn, title, "; ".join(spoken))


def curves(ax: Axes, rows: Rows, metric: str, names: Sequence[str] | None = None, *, log: bool = False) -> str:
    """The lines of one panel, a method each (``names``, or all there are); what they say in words is returned."""
    names = names or list(dict.fromkeys(row["method"] for row in rows))
    ends = []
    for number, method in enumerate(names):
        mine = [row["metrics"][metric] | {"at": float(row["setting"])} for row in rows
                if row["method"] == method and metric in row["metrics"]]  # fmt: skip
        found = sorted((one["at"], one["mean"], one["std"] or 0.0) for one in mine if one["mean"] is not None)
        ax.errorbar(
            [at for at, _, _ in found],
            [mean for _, mean, _ in found],
            yerr=[std for _, _, std in found],
            fmt=STYLES[(number + number // len(STYLES)) % len(STYLES)],  # colours repeat, lines do not
            color=colour(number),
            label=label(method),
            markersize=3.5,
        )
        ends += [f"{method}: {mean:.3g} at {at:g}" for at, mean, _ in found[-1:]]
    ax.set_ylabel(metric)
    if metric == "accuracy":
        percent_axis(ax, "y")
    if log:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")  # the usual one writes powers as mathematics
        ax.xaxis.set_minor_formatter(lambda value, _: "")
    return "; ".join(ends)


def mean(row: Mapping[str, Any], metric: str) -> float:
    """The mean of a metric over seeds; NaN where a row does not have it."""
    found = row["metrics"].get(metric)
    return math.nan if found is None or found["mean"] is None else float(found["mean"])


def bars(title: str, name: Callable[[Mapping[str, Any]], str], metric: str = "accuracy") -> Figure:
    """A function that draws a result: a bar for every row, its standard deviation on it.

    name: of a row. The axis begins where the differences can be seen.

    >>> row = {"method": "m", "metrics": {"accuracy": {"mean": 0.9, "std": 0.01}}}
    >>> bars("Title", lambda row: row["method"])({"rows": [row]})[:4]
    '<svg'
    """
    return partial(_bars, title, name, metric)


def _bars(title: str, name: Callable[[Mapping[str, Any]], str], metric: str, result: Mapping[str, Any]) -> str:
    found = [(name(row), row["metrics"][metric]) for row in result["rows"] if metric in row["metrics"]]
    found = [(text, value) for text, value in found if value["mean"] is not None]
    means = [value["mean"] for _, value in found]
    spread = [value["std"] or 0.0 for _, value in found]
    low, high = min(means) - max(spread), max(means) + max(spread)
    with canvas(width=5.4, height=0.9 + 0.36 * len(found)) as (drawn, ax):
        places = range(len(found))
        ax.barh(places, means, 0.62, xerr=spread, color=colour(0), alpha=0.8, error_kw={"ecolor": INK[0]})
        ax.set_yticks(places, [label(text) for text, _ in found])
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        margin = max(high - low, 0.005)
        ax.set_xlim(max(0.0, low - margin), high + margin / 4)
        ax.set_xlabel(f"{metric} (the axis does not begin at 0)")
        if metric == "accuracy":
            percent_axis(ax, "x")
        return svg(drawn, title, "; ".join(f"{text}: {value['mean']:.4g}" for text, value in found))
