"""The figures of variance networks: the phase transition in training, kappa, sparse ensembles, and the collapse.

Plain lists and dictionaries in, an SVG string out. The numbers come from `leanbayes.Transition` or from the recipes
variance-criterion and variance-collapse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ...report.figure import MUTED, canvas, colour, columns, legend, percent_axis, svg

_MARKS = ("o-", "s--", "^:", "D-.")
_PROCEDURES = ("ensemble", "stochastic", "deterministic")
_WIDTH = 5.6


def procedures(records: Sequence[Mapping[str, Any]]) -> str:
    """Figure 1: accuracy of the ensemble, of one sample and of the means over the epochs, and log alpha below.

    records: as `Transition` keeps them, accuracies from 0 to 1.
    """
    layers = list(dict.fromkeys(name for record in records for name in record["log_alpha"]))
    with canvas(2 if layers else 1, width=_WIDTH, height=4.6 if layers else 3.2) as (figure, axes):
        top, *rest = axes if layers else [axes]
        _draw_procedures(top, records)
        for ax in rest:
            for number, layer in enumerate(layers):
                points = [(r["epoch"], r["log_alpha"][layer]) for r in records if layer in r["log_alpha"]]
                ax.plot(*columns(points), _MARKS[number % 4], color=colour(number), markersize=3.5, label=layer)
            ax.set(ylabel="log alpha")
            top.tick_params(labelbottom=False)
            if len(layers) > 1:
                legend(ax)
        _epochs(rest[-1] if rest else top)
        figure.align_ylabels()
        return svg(figure, "Accuracy of the three procedures over training", _spoken(records))


def histograms(phases: Mapping[str, Mapping[str, Any]], limit: float | None = None) -> str:
    """Figure 3: how many weights have which log10 kappa, before, during and after the phase transition.

    phases: by name, the edges of the bins and the counts between them. limit: log10 kappa_0, as a vertical line.
    """
    with canvas(width=_WIDTH) as (figure, ax):
        _draw_histograms(ax, phases, limit)
        return svg(figure, "kappa before and after the phase transition")


def above_threshold(records: Sequence[Mapping[str, Any]], tensor: str) -> str:
    """Figure 4: deterministic accuracy over the epochs, and the number of weights whose kappa exceeds kappa_0 below.

    records: as `Transition` keeps them. tensor: the name of the weight, "dense1.weight" say.
    """
    counts = [(record["epoch"], record["kappa"][tensor]["above"]) for record in records]
    with canvas(2, width=_WIDTH, height=4.6) as (figure, (top, bottom)):
        _draw_procedures(top, records, only=("deterministic",))
        _draw_counts(bottom, counts)
        top.tick_params(labelbottom=False)
        _epochs(bottom)
        figure.align_ylabels()
        return svg(figure, "Deterministic accuracy and weights above kappa_0")


def sparse(curves: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Figure 5: ensemble accuracy once the weights below a kappa are zeroed or at their means, and the compression.

    curves: by name ("zeroed", "mean"), points with "log10 kappa", "ensemble" (0 to 1) and "compression"; the point
    whose compression is 1 is the whole ensemble, drawn as a horizontal line.
    """
    with canvas(2, width=_WIDTH, height=4.6) as (figure, (top, bottom)):
        _draw_sparse(top, bottom, curves)
        figure.align_ylabels()
        return svg(figure, "Sparse ensembles by kappa", _spoken_sparse(curves))


def criterion(
    records: Sequence[Mapping[str, Any]],
    counts: Sequence[tuple[float, float]],
    phases: Mapping[str, Mapping[str, Any]],
    limit: float,
    curves: Mapping[str, Sequence[Mapping[str, float]]],
) -> str:
    """Figures 3, 4 and 5 in one, from top to bottom; counts: (epoch, number of weights above kappa_0)."""
    with canvas(5, width=_WIDTH, height=12.0, ratios=[1.3, 1.1, 0.9, 1.1, 0.9]) as (figure, axes):
        _draw_histograms(axes[0], phases, limit)
        _draw_procedures(axes[1], records)
        axes[1].tick_params(labelbottom=False)
        _draw_counts(axes[2], counts)
        _epochs(axes[2])
        _draw_sparse(axes[3], axes[4], curves)
        figure.align_ylabels()
        return svg(figure, "The phase-transition criterion", f"{_spoken(records)}; {_spoken_sparse(curves)}")


def collapse(
    points: Sequence[Mapping[str, float]],
    dots: Sequence[Mapping[str, float]] = (),
    names: Mapping[str, str] | None = None,
) -> str:
    """Our own: deterministic accuracy against log alpha under three treatments of BatchNorm, and what explains it.

    points: in order of "log alpha", with the accuracies (0 to 1) called as `names` says, and "signal" and "offset" of
    the logits at the means. dots: trained end to end, with "log alpha", "deterministic" and "ensemble".
    """
    shown = names or COLLAPSE
    with canvas(2, width=_WIDTH, height=6.4, ratios=[1.6, 1.0]) as (figure, (top, bottom)):
        for number, (key, text) in enumerate(shown.items()):
            line = [(p["log alpha"], p[key]) for p in points if key in p]
            top.plot(*columns(line), _MARKS[number % 4], color=colour(number), markersize=4.5, label=text)
        for key in ("ensemble", "deterministic"):
            if found := [(dot["log alpha"], dot[key]) for dot in dots]:
                shade = colour(list(shown).index(key))
                top.plot(*columns(found), "*", color=shade, markersize=9, markeredgecolor="none")
        if dots:
            top.plot([], [], "*", color=MUTED[0], markersize=9, label="end to end, from log alpha 12")
        top.set(ylabel="test accuracy", ylim=(0, 1.03))
        percent_axis(top, "y")
        legend(top)
        top.tick_params(labelbottom=False)
        for number, key in enumerate(("signal", "offset")):
            line = [(p["log alpha"], p[key]) for p in points if p.get(key)]
            bottom.plot(*columns(line), _MARKS[number], color=colour(4 + number), markersize=4.5, label=_PARTS[key])
        bottom.set(yscale="log", xlabel="log alpha", ylabel="logits at the means", xlim=top.get_xlim())
        _plain_log(bottom, "{:g}")
        legend(bottom)
        figure.align_ylabels()
        spoken = "; ".join(f"log alpha {p['log alpha']:g}: {_percent(p['deterministic'])}" for p in points)
        return svg(figure, "Why the deterministic procedure collapses", f"deterministic accuracy at {spoken}")


COLLAPSE = {
    "ensemble": "ensemble",
    "BatchNorm at means": "means, BatchNorm at means",
    "no affine part": "means, no affine part",
    "deterministic": "means, BatchNorm under noise",
}
_PARTS = {"signal": "signal (between images)", "offset": "offset (same for all)"}


def _draw_procedures(ax: Any, records: Sequence[Mapping[str, Any]], only: Sequence[str] = _PROCEDURES) -> None:
    for number, name in enumerate(_PROCEDURES):
        points = [(record["epoch"], record[name]) for record in records if record.get(name) is not None]
        if name in only and points:
            size = 3.5 if len(points) < 30 else 0
            ax.plot(*columns(points), _MARKS[number], color=colour(number), markersize=size, label=name)
    ax.set(ylabel="test accuracy", ylim=(0, 1.03))
    percent_axis(ax, "y")
    legend(ax)


def _draw_histograms(ax: Any, phases: Mapping[str, Mapping[str, Any]], limit: float | None) -> None:
    filled = [e for shown in phases.values() for e, n in zip(shown["edges"], shown["counts"], strict=False) if n]
    for number, (name, shown) in enumerate(phases.items()):
        edges = [*shown["edges"]]
        ax.stairs(shown["counts"], edges, fill=True, color=colour(number), alpha=0.2)
        ax.stairs(shown["counts"], edges, color=colour(number), linewidth=1.6, label=name)
    if limit is not None:
        ax.axvline(limit, color=MUTED[0], linewidth=1.2, dashes=(4, 3), label="kappa_0")
    # weights whose kappa is exactly 0 are in the first bin, far from all others; the axis begins where the rest does
    rest = [e for e in filled if e > min((s["edges"][0] for s in phases.values()), default=0.0)] or [0.0]
    ax.set(xlim=(min(rest) - 0.5, max([*rest, limit or rest[0]]) + 1), ylim=(0, None))
    ax.set(xlabel="log10 kappa", ylabel="weights")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    legend(ax)


def _draw_counts(ax: Any, counts: Sequence[tuple[float, float]]) -> None:
    ax.plot(*columns(counts), "o-", color=colour(3), markersize=3.5)
    ax.set(ylabel="weights above kappa_0", ylim=(0, None))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _draw_sparse(top: Any, bottom: Any, curves: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    whole = [p["ensemble"] for points in curves.values() for p in points if p["compression"] == 1]
    if whole:
        top.axhline(sum(whole) / len(whole), color=MUTED[0], linewidth=1.2, dashes=(4, 3), label="whole ensemble")
    sparse_points: list[tuple[float, float]] = []
    for number, (name, points) in enumerate(curves.items()):
        line = [(p["log10 kappa"], p["ensemble"]) for p in points if p["compression"] > 1]
        top.plot(
            *columns(line), _MARKS[number], color=colour(number), markersize=4.5, label=_TREATMENTS.get(name, name)
        )
        sparse_points = [(p["log10 kappa"], p["compression"]) for p in points if p["compression"] > 1]
    bottom.plot(*columns(sparse_points), "o--", color=colour(3), markersize=3.5)
    top.set(ylabel="ensemble accuracy")
    percent_axis(top, "y")
    legend(top)
    top.tick_params(labelbottom=False)
    bottom.set(
        yscale="log", xlabel="log10 of the kappa below which weights go", ylabel="compression", xlim=top.get_xlim()
    )
    _plain_log(bottom, "{:g}x")


_TREATMENTS = {"zeroed": "set to zero", "mean": "set to their means"}


def _plain_log(ax: Any, text: str) -> None:
    """Plain numbers on a logarithmic axis, at the decades, and between them where there are few."""
    low, high = ax.get_ylim()
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 100 * low else (1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text.format(value)))


def _epochs(ax: Any) -> None:
    ax.set_xlabel("epoch")
    ax.xaxis.get_major_locator().set_params(integer=True)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _spoken(records: Sequence[Mapping[str, Any]]) -> str:
    last = records[-1]
    said = [f"{name} {_percent(last[name])}" for name in _PROCEDURES if last.get(name) is not None]
    return f"after epoch {last['epoch']:g}: {', '.join(said)}"


def _spoken_sparse(curves: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    return "; ".join(
        f"{_TREATMENTS.get(name, name)}, compressed {p['compression']:.3g}x: {_percent(p['ensemble'])}"
        for name, points in curves.items()
        for p in points
    )
