"""The figures of the report, one function each: plain lists in, an SVG string out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import columns
from .figure import GRID, INK, MUTED, SURFACE, canvas, colour, label, legend, percent_axis, svg
from .metrics import SCORES

if TYPE_CHECKING:
    from ..evaluation.result import Evaluation


def reliability(curve: Mapping[str, Any]) -> str:
    """The reliability diagram: accuracy against confidence in bins, the gap to the diagonal, the data in each.

    curve: `Reliability.to_dict()`. Bins too small to count towards ECE are drawn hollow.
    """
    edges, counts = curve["edges"], curve["count"]
    bins = [
        (low, high, n, c, a)
        for low, high, n, c, a in zip(
            edges[:-1], edges[1:], counts, curve["confidence"], curve["accuracy"], strict=True
        )
        if n
    ]
    with canvas(2, ratios=[3, 1]) as (figure, (top, bottom)):
        top.plot([0, 1], [0, 1], color=MUTED[0], linewidth=1, dashes=(4, 3), zorder=1)
        for _, _, n, confidence, accuracy in bins:
            counted = n >= max(curve["min_count"], 1)
            top.plot(
                [confidence] * 2, [confidence, accuracy], color=colour(1), linewidth=4, alpha=0.35 if counted else 0.12
            )
        kept = [(c, a) for _, _, n, c, a in bins if n >= max(curve["min_count"], 1)]
        small = [(c, a) for _, _, n, c, a in bins if n < max(curve["min_count"], 1)]
        top.plot(*_columns(kept), "o-", color=colour(0), markersize=4.5, zorder=3, label="accuracy")
        if small:
            top.plot(
                *_columns(small),
                "o",
                markerfacecolor="none",
                color=MUTED[0],
                markersize=4,
                zorder=2,
                label="too few data",
            )
        top.plot([], [], color=colour(1), alpha=0.35, linewidth=4, label="gap")
        top.set(xlim=(0, 1), ylim=(0, 1.02), ylabel="accuracy")
        legend(top)
        top.tick_params(labelbottom=False)
        lows, highs = [b[0] for b in bins], [b[1] for b in bins]
        widths = [(high - low) * 0.9 for low, high in zip(lows, highs, strict=True)]
        middles = [(low + high) / 2 for low, high in zip(lows, highs, strict=True)]
        bottom.bar(middles, [b[2] for b in bins], widths, color=colour(0), alpha=0.75)
        bottom.set(xlim=(0, 1), xlabel="confidence", ylabel="data", yscale="log", ylim=(0.7, max(counts) * 2))
        _plain_log(bottom.yaxis, lambda value: f"{value:,.0f}")
        percent_axis(top)
        percent_axis(bottom, "x")
        figure.align_ylabels()
        spoken = "; ".join(f"{_percent(c)} sure, {_percent(a)} right" for c, a in kept)
        return svg(figure, "Reliability diagram", spoken)


def reliability_overlay(evaluations: Sequence[Evaluation]) -> str:
    """The reliability curves of several models in one diagram."""
    with canvas() as (figure, ax):
        ax.plot([0, 1], [0, 1], color=MUTED[0], linewidth=1, dashes=(4, 3))
        for number, evaluation in enumerate(evaluations):
            curve = evaluation.curves["reliability"]
            points = [
                (c, a)
                for n, c, a in zip(curve["count"], curve["confidence"], curve["accuracy"], strict=True)
                if n >= max(curve["min_count"], 1)
            ]
            ax.plot(
                *_columns(points),
                _MARKERS[number % 6],
                color=colour(number),
                markersize=4.5,
                label=label(evaluation.name),
            )
        ax.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="confidence", ylabel="accuracy")
        percent_axis(ax)
        legend(ax)
        return svg(figure, "Reliability of all models")


def confidence(histogram: Mapping[str, Any]) -> str:
    """How sure it was where it was right and where it was wrong, each as a share of its own kind.

    histogram: edges, and the counts of right and wrong answers between them.
    """
    with canvas() as (figure, ax):
        for number, (name, text) in enumerate((("right", "right"), ("wrong", "wrong"))):
            counts, total = histogram[name], sum(histogram[name])
            if total:
                _steps(ax, histogram["edges"], counts, colour(number), f"{text} ({total:,})")
        ax.set(xlim=(0, 1), ylim=(0, None), xlabel="confidence", ylabel="share of answers")
        percent_axis(ax)
        legend(ax)
        return svg(figure, "Confidence of right and of wrong answers")


def ood_histograms(histograms: Sequence[Mapping[str, Any]], aurocs: Sequence[float | None]) -> str:
    """The scores of the test data and of one out-of-domain set, each as a share of its own; apart is good.

    histograms: set, score, edges, and the counts inside and outside of the domain; a panel for each score.
    """
    name, count = label(str(histograms[0]["set"])), len(histograms)
    with canvas(count, height=max(3.5, 0.3 + 1.55 * count)) as (figure, drawn):
        for ax, histogram, auroc in zip([drawn] if count == 1 else drawn, histograms, aurocs, strict=True):
            score = SCORES.get(histogram["score"], str(histogram["score"]))
            _steps(ax, histogram["edges"], histogram["inside"], colour(0), "test data")
            _steps(ax, histogram["edges"], histogram["outside"], colour(1), name)
            edges = histogram["edges"][0], histogram["edges"][-1]
            ax.set(xlim=edges, ylim=(0, None), xlabel=score, ylabel="share of data" if count == 1 else "share")
            ax.locator_params(axis="y", nbins=4)
            ax.locator_params(axis="x", nbins=7)
            percent_axis(ax, "y")
            title = "" if auroc is None else f"AUROC {auroc:.3f}"
            if histogram is histograms[0]:
                legend(ax, title)
            else:
                ax.set_title(title, loc="right", fontsize=10, color=INK[0])
        figure.align_ylabels()
        return svg(figure, f"Scores of test data and of {name}")


def coverage(curves: Mapping[str, Mapping[str, Any]]) -> str:
    """The share of truths inside the intervals against their nominal level, one line a model; the diagonal is honest.

    curves: by model, the nominal levels and the observed shares.
    """
    with canvas() as (figure, ax):
        ax.plot([0, 1], [0, 1], color=MUTED[0], linewidth=1, dashes=(4, 3))
        for number, (name, curve) in enumerate(curves.items()):
            style = {"color": colour(number), "markersize": 4.5, "label": label(name)}
            ax.plot(curve["nominal"], curve["observed"], _MARKERS[number % 6], **style)
        ax.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="nominal level of the interval", ylabel="truths inside")
        percent_axis(ax)
        if len(curves) > 1:
            legend(ax)
        return svg(figure, "Coverage of the prediction intervals")


def training(history: Sequence[Mapping[str, Any]]) -> str:
    """The curves of training, a panel for each kind of number: losses, scores, KL.

    history: one row of numbers an epoch; empty panels are left out.
    """
    kinds = (("loss", ("loss", "nll", "val_loss", "val_nll")), ("score", _SCORES), ("KL (nats)", ("kl",)))
    same = all(row.get("loss") == row.get("nll") for row in history)  # no KL: a network without randomness
    gone = {"kl", "loss"} if same else set()
    found = {k for row in history for k, value in row.items() if _number(value)} - gone
    panels = [(text, [k for k in keys if k in found]) for text, keys in kinds]
    panels = [(text, keys) for text, keys in panels if keys]
    with canvas(max(len(panels), 1), height=max(3.5, 0.6 + 1.2 * len(panels))) as (figure, drawn):
        axes = [drawn] if len(panels) <= 1 else list(drawn)
        for ax, (text, keys) in zip(axes, panels, strict=False):
            for number, key in enumerate(keys):
                points = [(at, row[key]) for at, row in enumerate(history, 1) if _number(row.get(key))]
                ax.plot(
                    *_columns(points), _LINES[number % 4], color=colour(number), label=label(key.replace("_", " ")),
                    marker="o" if len(points) == 1 else None,
                )  # fmt: skip
            ax.set_ylabel(text)
            legend(ax)
            ax.tick_params(labelbottom=ax is axes[-1])
        axes[-1].set_xlabel("epoch")
        axes[-1].xaxis.get_major_locator().set_params(integer=True)
        figure.align_ylabels()
        return svg(figure, "Training curves")


def comparison(evaluations: Sequence[Evaluation]) -> str:
    """The main numbers of all models as dots on a scale each, with bars where their 95 % intervals are known."""
    shown = columns.quality(evaluations, full=False)
    shown = [c for c in shown if c.better != "none" and c.key != "brier"][:6]
    count = len(evaluations)
    with canvas(len(shown), height=len(shown) * (0.5 + 0.23 * count) + 0.2) as (figure, found):
        for ax, column in zip([found] if len(shown) == 1 else found, shown, strict=True):
            best = columns.best(column, evaluations)
            for row, evaluation in enumerate(evaluations):
                if (value := column.value(evaluation)) is None:
                    continue
                if (ends := column.ends(evaluation)) is None and column.key == "accuracy":
                    spread = 1.96 * math.sqrt(max(value * (1 - value), 0) / max(evaluation.count, 1))
                    ends = value - spread, value + spread
                if ends is not None:
                    ax.plot(ends, [row] * 2, color=colour(row), alpha=0.4, linewidth=4)
                face = colour(row) if row in best or not best else SURFACE[0]
                ax.plot(value, row, "o", color=colour(row), markerfacecolor=face, markersize=6.5, zorder=3)
            if column.better == "nominal":
                ax.axvline(column.nominal, color=MUTED[0], linewidth=1, dashes=(4, 3))
            ax.set(yticks=range(count), ylim=(count - 0.4, -0.6))
            ax.set_yticklabels([label(e.name) for e in evaluations], color=INK[0])
            arrow = {"higher": " (higher is better)", "lower": " (lower is better)"}.get(column.better, "")
            ax.set_title(label(column.label) + arrow, loc="left", fontsize=10.5, color=INK[0])
            ax.grid(True, axis="y", color=GRID[0])
            ax.spines["left"].set_visible(False)
            ax.tick_params(axis="y", length=0)
            ax.margins(x=0.08)
            ax.locator_params(axis="x", nbins=5)
            if column.kind == "percent":
                percent_axis(ax, "x")
        return svg(figure, "All models compared")


def quality_and_cost(evaluations: Sequence[Evaluation]) -> str:
    """The main number of quality against the measured time of a prediction; down and left is better."""
    key = "nll" if "nll" in evaluations[0].metrics else "rmse"
    with canvas() as (figure, ax):
        for number, e in enumerate(evaluations):
            style = {"color": colour(number), "markersize": 7, "linestyle": "none", "label": label(e.name)}
            ax.plot(e.cost["predict_seconds"], e.metrics[key], marker=_MARKERS[number % 6][0], **style)
        ax.set(xscale="log", xlabel="time of one prediction", ylabel=key.upper())
        ax.margins(x=0.15, y=0.15)
        _plain_log(ax.xaxis, lambda value: columns.written(value, "seconds"))
        legend(ax)
        return svg(figure, f"{key.upper()} against the time of one prediction")


_MARKERS = ("o-", "s-", "^-", "D-", "v-", "P-")
_LINES = ("-", "--", ":", "-.")
_SCORES = ("accuracy", "val_accuracy", "rmse", "val_rmse", "metric", "val_metric")


def _steps(ax: Any, edges: Sequence[float], counts: Sequence[int], shade: str, text: str) -> None:
    total = sum(counts) or 1
    ax.stairs([n / total for n in counts], edges, fill=True, color=shade, alpha=0.25)
    ax.stairs([n / total for n in counts], edges, color=shade, linewidth=1.6, label=text)


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _plain_log(axis: Any, written: Callable[[float], str]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    axis.set_minor_locator(NullLocator())
    if high < 100 * low:  # less than two decades: powers of ten alone would leave it bare
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: written(value)))
