"""Figures of an evaluation, one function each, from plain lists to an SVG string."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .figure import INK, MUTED, canvas, colour, columns, label, legend, percent_axis, style, svg
from .metrics import SCORES

if TYPE_CHECKING:
    from ..evaluation.result import Evaluation


def reliability(curve: Mapping[str, Any], axes: tuple[str, str] = ("confidence", "accuracy")) -> str:
    """The reliability diagram: accuracy against confidence in bins, with the gap to the diagonal.

    curve: `Reliability.to_dict()`. Dots grow with the data in their bins; bins too small for the ECE are hollow.
    axes: what is compared with what.
    """
    least = max(curve["min_count"], 1)
    bins = [row for row in zip(curve["count"], curve["confidence"], curve["accuracy"], strict=True) if row[0]]
    kept, small = [b for b in bins if b[0] >= least], [b for b in bins if b[0] < least]
    total = sum(b[0] for b in bins) or 1
    with canvas() as (figure, ax):
        ax.plot([0, 1], [0, 1], color=MUTED[0], linewidth=1, dashes=(4, 3), zorder=1)
        for _, sure, right in kept:
            ax.plot([sure] * 2, [sure, right], color=colour(1), linewidth=3, alpha=0.4)
        xs, ys = [sure for _, sure, _ in kept], [right for _, _, right in kept]
        ax.plot(xs, ys, color=colour(0), linewidth=1.2, zorder=3)
        ax.scatter(xs, ys, [16 + 160 * n / total for n, _, _ in kept], color=colour(0), zorder=4, label=axes[1])
        if small:
            hollow = {"facecolors": "none", "edgecolors": MUTED[0], "linewidths": 1}
            ax.scatter([b[1] for b in small], [b[2] for b in small], 16, **hollow, zorder=2, label="too few data")
        ax.plot([], [], color=colour(1), alpha=0.4, linewidth=3, label="gap")
        ax.set(xlim=(0, 1), ylim=(0, 1.04), xlabel=axes[0], ylabel=axes[1])
        percent_axis(ax)
        legend(ax)
        words = ("sure", "right") if axes[0] == "confidence" else axes
        spoken = "; ".join(f"{100 * x:.0f} % {words[0]}, {100 * y:.0f} % {words[1]}" for _, x, y in kept)
        return svg(figure, "Reliability diagram", spoken)


def reliability_overlay(evaluations: Sequence[Evaluation]) -> str:
    """The reliability curves of several models in one diagram, in bins with at least a twelfth of the data."""
    with canvas() as (figure, ax):
        curves = [pooled(e.curves["reliability"], 1 / 12) for e in evaluations]
        for number, (e, points) in enumerate(zip(evaluations, curves, strict=True)):
            ax.plot(*columns(points), **style(number), label=label(e.name))
        low = min((min(point) for points in curves for point in points), default=0.0)
        ax.plot([low, 1], [low, 1], color=MUTED[0], linewidth=1, dashes=(4, 3), zorder=1)
        ax.set(xlabel="confidence", ylabel="accuracy")
        percent_axis(ax)
        legend(ax)
        return svg(figure, "Reliability of all models")


def pooled(curve: Mapping[str, Any], share: float) -> list[tuple[float, float]]:
    """Confidence and accuracy of neighbouring bins, joined until each has a ``share`` of the data.

    >>> pooled({"count": [1, 9, 10], "confidence": [0.5, 0.7, 0.9], "accuracy": [0.0, 1.0, 1.0]}, 0.4)
    [(0.68, 0.9), (0.9, 1.0)]
    """
    rows = [row for row in zip(curve["count"], curve["confidence"], curve["accuracy"], strict=True) if row[0]]
    least, groups = share * sum(row[0] for row in rows), [[0.0, 0.0, 0.0]]
    for count, sure, right in rows:
        if groups[-1][0] >= least:
            groups.append([0.0, 0.0, 0.0])
        groups[-1] = [groups[-1][0] + count, groups[-1][1] + count * sure, groups[-1][2] + count * right]
    if len(groups) > 1 and groups[-1][0] < least:  # join the rest with the bin before
        last = groups.pop()
        groups[-1] = [a + b for a, b in zip(groups[-1], last, strict=True)]
    return [(round(sure / n, 6), round(right / n, 6)) for n, sure, right in groups if n]


def confidence(histogram: Mapping[str, Any]) -> str:
    """Histograms of the confidence of right and of wrong answers, each normalised by itself.

    histogram: edges, and the counts of right and wrong answers between them.
    """
    with canvas() as (figure, ax):
        for number, name in enumerate(("right", "wrong")):
            if total := sum(histogram[name]):
                _steps(ax, histogram["edges"], histogram[name], colour(number), f"{name} ({total:,})")
        ax.set(xlim=(0, 1), ylim=(0, None), xlabel="confidence", ylabel="share of answers")
        percent_axis(ax)
        legend(ax)
        return svg(figure, "Confidence of right and of wrong answers")


def ood_histograms(histograms: Sequence[Mapping[str, Any]], aurocs: Sequence[float | None]) -> str:
    """Histograms of the scores of the test data and of one out-of-domain set, each normalised by itself.

    histograms: set, score, edges, and the counts inside and outside of the domain; a panel for each score.
    """
    name, count = label(str(histograms[0]["set"])), len(histograms)
    with canvas(count) as (figure, drawn):
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
    """The share of truths inside the intervals against their nominal level, with a line for each model.

    curves: by model, the nominal levels and the observed shares.
    """
    with canvas() as (figure, ax):
        ax.plot([0, 1], [0, 1], color=MUTED[0], linewidth=1, dashes=(4, 3))
        for number, (name, curve) in enumerate(curves.items()):
            ax.plot(curve["nominal"], curve["observed"], **style(number), label=label(name))
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
    same = all(row.get("loss") == row.get("nll") for row in history)  # a network without randomness has no KL
    gone = {"kl", "loss"} if same else set()
    found = {k for row in history for k, value in row.items() if _number(value)} - gone
    panels = [(text, [k for k in keys if k in found]) for text, keys in kinds]
    panels = [(text, keys) for text, keys in panels if keys]
    with canvas(max(len(panels), 1)) as (figure, drawn):
        axes = [drawn] if len(panels) <= 1 else list(drawn)
        for ax, (text, keys) in zip(axes, panels, strict=False):
            for number, key in enumerate(keys):
                points = [(at, row[key]) for at, row in enumerate(history, 1) if _number(row.get(key))]
                ax.plot(
                    *columns(points), _LINES[number % 4], color=colour(number), label=label(key.replace("_", " ")),
                    marker="o" if len(points) == 1 else None,
                )  # fmt: skip
            ax.set_ylabel(text)
            legend(ax)
            ax.tick_params(labelbottom=ax is axes[-1])
        axes[-1].set_xlabel("epoch")
        axes[-1].xaxis.get_major_locator().set_params(integer=True)
        figure.align_ylabels()
        return svg(figure, "Training curves")


_LINES = ("-", "--", ":", "-.")
_SCORES = ("accuracy", "val_accuracy", "rmse", "val_rmse", "metric", "val_metric")


def _steps(ax: Any, edges: Sequence[float], counts: Sequence[int], shade: str, text: str) -> None:
    total = sum(counts) or 1
    ax.stairs([n / total for n in counts], edges, fill=True, color=shade, alpha=0.25)
    ax.stairs([n / total for n in counts], edges, color=shade, linewidth=1.6, label=text)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
