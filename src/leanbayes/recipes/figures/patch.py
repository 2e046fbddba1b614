"""The figures of ensemble model patching: a result, as `leanbayes reproduce` writes it, in; an SVG string out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...report.figure import MUTED, canvas, colour, columns, label, legend, percent_axis, svg
from ..results import points_as_rows
from .charts import mean

Result = Mapping[str, Any]
_MARKS = ("o", "s", "^", "D", "v", "P")
_LINES = ("-", "--", "-.", ":", "-", "--")


def calibration(result: Result) -> str:
    """Figures 4, 5 and 7: accuracy against confidence, a panel for every network, a line for every method."""
    bins = points_as_rows(result["rows"], "calibration")
    networks = list(dict.fromkeys(row["dataset"] for row in bins))
    with canvas(max(len(networks), 1), width=5.0, height=1.2 + 3.4 * max(len(networks), 1)) as (figure, axes):
        spoken = []
        for ax, network in zip([axes] if len(networks) <= 1 else axes, networks, strict=False):
            ax.plot([0, 1], [0, 1], color=MUTED[0], linewidth=1, dashes=(4, 3))
            mine = [row for row in bins if row["dataset"] == network]
            for number, method in enumerate(dict.fromkeys(row["method"] for row in mine)):
                points = [(mean(r, "confidence"), mean(r, "accuracy")) for r in mine if r["method"] == method]
                style = _MARKS[number % 6] + _LINES[number % 6]
                ax.plot(*columns(sorted(points)), style, color=colour(number), markersize=3.5, label=label(method))
                spoken.append(f"{network}, {method}: {100 * points[-1][1]:.0f} % right in its surest bin")
            ax.set(xlim=(0, 1), ylim=(0, 1.02), xlabel=f"confidence ({label(network)})", ylabel="accuracy")
            percent_axis(ax)
            legend(ax)
        return svg(figure, "Calibration curves", "; ".join(spoken))


def sweep(title: str, xlabel: str, result: Result) -> str:
    """Figure 6: accuracy, calibration error and loss by a row's setting; the vanilla network is a level."""
    rows = result["rows"]
    metrics = ("accuracy", "ece", "nll")
    methods = list(dict.fromkeys(row["method"] for row in rows if row["method"] != "vanilla"))
    ticks = sorted({float(row["setting"]) for row in rows if row["method"] in methods})
    spoken = []
    with canvas(3, width=5.4, height=7.5) as (figure, axes):
        for ax, metric in zip(axes, metrics, strict=True):
            level = [mean(row, metric) for row in rows if row["method"] == "vanilla"]
            if level:
                ax.axhline(level[0], color=MUTED[0], linewidth=1.2, dashes=(4, 3), label="vanilla")
            for number, method in enumerate(methods):
                mine = [row for row in rows if row["method"] == method]
                line = sorted((float(row["setting"]), mean(row, metric)) for row in mine)
                style = _MARKS[number % 6] + _LINES[number % 6]
                ax.plot(*columns(line), style, color=colour(number), markersize=4, label=label(method))
                if metric == "ece":
                    spoken.append(
                        f"{method}: ECE {line[0][1]:.3f} with {line[0][0]:g}, {line[-1][1]:.3f} with {line[-1][0]:g}"
                    )
            ax.set(xscale="log", ylabel=metric.upper() if metric != "accuracy" else metric)
            ax.set_xticks(ticks, minor=False)
            ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            ax.minorticks_off()
        percent_axis(axes[0], "y")
        axes[-1].set_xlabel(xlabel)
        legend(axes[0])
        figure.align_ylabels()
        return svg(figure, title, "; ".join(spoken))


def corruptions(result: Result) -> str:
    """Table 7 as a picture: the error under every corruption, in percent of the vanilla network's."""
    known = {"mce", "rmce", "lost", "clean accuracy", "corrupted accuracy", "corrupted ece", "corrupted nll"}
    shown = [row for row in result["rows"] if row["method"] != "vanilla" and row["metrics"]]
    names = [name for name in (shown[0]["metrics"] if shown else {}) if name not in known]
    with canvas(width=5.4, height=1.4 + 0.32 * max(len(names), 2)) as (figure, ax):
        ax.axvline(100, color=MUTED[0], linewidth=1, dashes=(4, 3))
        for number, row in enumerate(shown):
            values = [mean(row, name) for name in names]
            text = label(f"{row['method']}, mCE {mean(row, 'mce'):.1f}")
            ax.plot(values, range(len(names)), _MARKS[number % 6], color=colour(number), markersize=5, label=text)
        ax.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
        ax.invert_yaxis()
        ax.set(xlabel="error, vanilla network = 100")
        legend(ax)
        spoken = "; ".join(f"{row['method']}: mCE {mean(row, 'mce'):.1f}" for row in shown)
        return svg(figure, "Errors under corruption", spoken)


def prior(result: Result) -> str:
    """Figure 3: functions drawn under each method, one panel above the other."""
    points = points_as_rows(result["rows"], "functions")
    methods = list(dict.fromkeys(row["method"] for row in points))
    with canvas(max(len(methods), 1), width=5.4, height=1.0 + 2.0 * max(len(methods), 1)) as (figure, axes):
        for ax, method in zip([axes] if len(methods) <= 1 else axes, methods, strict=False):
            mine = sorted((row for row in points if row["method"] == method), key=lambda row: float(row["setting"]))
            for number, name in enumerate(mine[0]["metrics"]):
                line = [(float(row["setting"]), mean(row, name)) for row in mine]
                ax.step(*columns(line), where="mid", color=colour(number), linewidth=1.4)
            ax.set(ylabel=label(method.removesuffix(", drawn")), xlim=(mine[0]["setting"], mine[-1]["setting"]))
        figure.axes[-1].set_xlabel("x")
        figure.align_ylabels()
        return svg(figure, "Functions drawn from the implied prior", ", ".join(m.split(",")[0] for m in methods))


def regression(ceiling: float, result: Result) -> str:
    """Tables 12 and 13 as a picture: RMSE in percent of the vanilla network's, and log density, with standard errors.

    ceiling: the highest log density that there can be.
    """
    rows = result["rows"]
    sets = list(dict.fromkeys(row["dataset"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    found = {(row["dataset"], row["method"]): row for row in rows}
    with canvas(2, width=6.4, height=7.0) as (figure, (top, bottom)):
        top.axhline(100, color=MUTED[0], linewidth=1, dashes=(4, 3))
        bottom.axhline(ceiling, color=MUTED[0], linewidth=1, dashes=(4, 3), label="highest possible")
        for number, method in enumerate(methods):
            shift = 0.12 * (number - (len(methods) - 1) / 2)
            for ax, metric in ((top, "rmse"), (bottom, "lpd")):
                places, values, errors = [], [], []
                for at, name in enumerate(sets):
                    row, plain = found.get((name, method)), found.get((name, "vanilla"))
                    if row is None or plain is None:
                        continue
                    unit = 100 / mean(plain, "rmse") if metric == "rmse" else 1.0
                    places.append(at + shift)
                    values.append(mean(row, metric) * unit)
                    errors.append(mean(row, f"{metric} SE") * unit)
                ax.errorbar(
                    places, values, yerr=errors, fmt=_MARKS[number % 6], color=colour(number), markersize=4.5,
                    linewidth=1.2, label=label(method),
                )  # fmt: skip
        for ax in (top, bottom):
            ax.set_xticks(range(len(sets)), [name.removeprefix("uci/") for name in sets], rotation=25)
        top.set(ylabel="RMSE, vanilla = 100")
        bottom.set(ylabel="log predictive density")
        legend(top)
        figure.align_ylabels()
        ranked = sorted(rows, key=lambda row: mean(row, "rmse"))
        best = {name: next(row["method"] for row in ranked if row["dataset"] == name) for name in sets}
        return svg(figure, "UCI regression", "; ".join(f"{name}: lowest RMSE {best[name]}" for name in sets))
