"""Figures of selective prediction, corruptions and attacks, from plain lists to an SVG string."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from .figure import MUTED, canvas, colour, columns, label, legend, percent_axis, style, svg


def risk_coverage(curves: Mapping[str, Mapping[str, Any]]) -> str:
    """The error rate among the answers against the share that is answered, with a line for each model.

    curves: by model, coverage and risk.
    """
    with canvas() as (figure, ax):
        for number, (name, curve) in enumerate(curves.items()):
            look = style(number, len(curve["risk"])) if len(curves) > 1 else {"color": colour(number)}
            ax.plot(curve["coverage"], curve["risk"], **look, label=label(name))
        ax.set(xlim=(0, 1), ylim=(0, None), xlabel="share of data that is answered", ylabel="wrong among the answers")
        percent_axis(ax)
        if len(curves) > 1:
            legend(ax)
        return svg(figure, "Error rate against the share of data that is answered")


def pit(histogram: Mapping[str, Any]) -> str:
    """The histogram of the probability integral transform; flat is calibrated.

    histogram: edges and count of the probability integral transform.
    """
    counts, edges = histogram["count"], histogram["edges"]
    total = sum(counts) or 1
    widths = [high - low for low, high in itertools.pairwise(edges)]
    heights = [n / total / width for n, width in zip(counts, widths, strict=True)]
    with canvas() as (figure, ax):
        ax.stairs(heights, edges, fill=True, color=colour(0), alpha=0.3)
        ax.stairs(heights, edges, color=colour(0), linewidth=1.6)
        ax.axhline(1, color=MUTED[0], linewidth=1, dashes=(4, 3))
        ax.set(xlim=(0, 1), ylim=(0, max(1.3, 1.05 * max(heights))), ylabel="relative frequency")
        ax.set_xlabel("predicted probability of a smaller value than the truth")
        return svg(figure, "Histogram of the probability integral transform")


def severity(sweeps: Mapping[str, Mapping[str, Any]]) -> str:
    """Accuracy, NLL and ECE against the severity of corruption, means over corruptions, with a line for each model.

    sweeps: by model, "cells" (each with corruption, severity, accuracy, nll, ece) and "clean" (the same metrics at
    severity 0).
    """
    rows = (("accuracy", "accuracy"), ("nll", "NLL"), ("ece", "ECE"))
    with canvas(3) as (figure, axes):
        for ax, (key, text) in zip(axes, rows, strict=True):
            for number, (name, sweep) in enumerate(sweeps.items()):
                points = _by_severity(sweep["cells"], key)
                if isinstance(sweep["clean"].get(key), (int, float)):
                    points = [(0, sweep["clean"][key]), *points]
                ax.plot(*columns(points), **style(number), label=label(name))
            ax.set_ylabel(text)
            ax.tick_params(labelbottom=ax is axes[-1])
            ax.xaxis.get_major_locator().set_params(integer=True)
        percent_axis(axes[0], "y")
        axes[-1].set_xlabel("severity of the corruption (0: as they are)")
        if len(sweeps) > 1:
            legend(axes[0])
        figure.align_ylabels()
        return svg(figure, "Accuracy, NLL and ECE against the severity of corruption")


def attack(curves: Mapping[str, Mapping[str, Any]]) -> str:
    """The success of the attack and the mean entropy after every iteration, with a line for each model.

    curves: by model, success and entropy of iterations 0 to T; of one model, a dashed line is the entropy before.
    """
    with canvas(2) as (figure, (top, bottom)):
        for number, (name, curve) in enumerate(curves.items()):
            steps = range(len(curve["success"]))
            look = style(number, len(steps)) if len(curves) > 1 else {"color": colour(number)}
            top.plot(steps, curve["success"], **look, label=label(name))
            bottom.plot(steps, curve["entropy"], **look)
        if len(curves) == 1:
            bottom.axhline(next(iter(curves.values()))["entropy"][0], color=MUTED[0], linewidth=1, dashes=(4, 3))
        top.set(ylim=(0, 1.02), ylabel="success")
        top.tick_params(labelbottom=False)
        percent_axis(top, "y")
        bottom.set(ylim=(0, None), ylabel="entropy (nats)", xlabel="iteration")
        bottom.xaxis.get_major_locator().set_params(integer=True)
        if len(curves) > 1:
            legend(top)
        figure.align_ylabels()
        return svg(figure, "Success of the attack and entropy, iteration by iteration")


def _by_severity(cells: Sequence[Mapping[str, Any]], key: str) -> list[tuple[int, float]]:
    """Means over corruptions by severity, of cells that have a number."""
    found: dict[int, list[float]] = {}
    for cell in cells:
        if isinstance(cell.get(key), (int, float)) and cell[key] == cell[key]:
            found.setdefault(int(cell["severity"]), []).append(float(cell[key]))
    return [(level, sum(values) / len(values)) for level, values in sorted(found.items())]
