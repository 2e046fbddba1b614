"""Quality against cost: a point for every model with its name, and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .column import Column, written
from .columns import quality
from .figure import INK, MUTED, canvas, label, style, svg
from .metrics import COSTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..evaluation.result import Evaluation

LINE = 17  # points between two names
EM = 6.2  # points of a letter at most, on average
EDGE = 0.62, 0.55  # inches left of the axes and below them


def axes_of(evaluations: Sequence[Evaluation]) -> tuple[Column, Column] | None:
    """The cost and the quality that all models have: prediction time or else parameters; GED, NLL, RMSE or accuracy."""
    wanted = ("ged.unbiased", "nll", "rmse", "accuracy")
    scores = [c for c in quality(evaluations) if c.key in wanted and _all(c, evaluations)]
    costs = [c for c in COSTS if c.key in ("predict_seconds", "parameters") and _all(c, evaluations)]
    costs = [c for c in costs if all((c.value(e) or 0) > 0 for e in evaluations)]
    if not scores or not costs:
        return None
    return costs[-1], min(scores, key=lambda c: wanted.index(c.key))


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """The points that no other beats in both cost and loss, cheapest first.

    >>> pareto_front([(1, 5), (2, 3), (3, 4), (4, 1)])
    [0, 1, 3]
    """
    front: list[int] = []
    for at in sorted(range(len(points)), key=lambda i: points[i]):
        if not front or points[at][1] < points[front[-1]][1]:
            front.append(at)
    return front


def front_of(evaluations: Sequence[Evaluation]) -> list[int]:
    """Which models are on the Pareto front of `axes_of`, the cheapest first; none where there are no axes."""
    if (found := axes_of(evaluations)) is None:
        return []
    cost, score = found
    return pareto_front([(cost.value(e) or 0.0, score.loss(score.value(e) or 0.0)) for e in evaluations])


def quality_and_cost(evaluations: Sequence[Evaluation], width: float) -> str:
    """The scatter plot, ``width`` inches wide, with every name beside its point.

    If names would overlap, all of them stand in a column at the right, with a line to their point.
    """
    found = axes_of(evaluations)
    assert found is not None, "the caller asks `axes_of` first"
    cost, score = found
    points = [(cost.value(e) or 0.0, score.value(e) or 0.0) for e in evaluations]
    longest = 18 if width < 6 else 38
    names = [_short(e.name, longest) for e in evaluations]
    front = front_of(evaluations)
    height = max(3.6, (len(names) * LINE + 20) / 72 + EDGE[1])
    with canvas(width=width, height=height) as (figure, ax):
        figure.set_layout_engine("none")
        if len(front) > 1:
            steps = [points[i] for i in front]
            ax.step(*zip(*steps, strict=True), where="post", color=MUTED[0], linewidth=1, zorder=1)
        for number, (x, y) in enumerate(points):
            ax.plot(x, y, **style(number) | {"linestyle": "none", "markersize": 8}, zorder=3)
        ax.set(xscale="log", xlabel=_axis(cost, width), ylabel=score.label)
        ax.margins(x=0.12, y=0.12)
        _ticks(ax, cost, 4 if width < 6 else 8)
        _place(ax, 0.12)
        if not _beside(ax, names, points, front):
            _place(ax, EM * max(map(len, names)) / 72 + 0.4)
            _in_column(ax, names, points, front)
        spoken = "; ".join(f"{e.name}: {score.text(e)}, {cost.text(e)}" for e in evaluations)
        return svg(figure, f"{score.label} against cost", spoken)


def _place(ax: Axes, right: float) -> None:
    """Place the axes in their figure, ``right`` inches from its right edge."""
    width, height = ax.figure.get_size_inches()  # type: ignore[union-attr]
    ax.set_position((EDGE[0] / width, EDGE[1] / height, 1 - (EDGE[0] + right) / width, 1 - (EDGE[1] + 0.12) / height))


def _beside(ax: Axes, names: list[str], points: list[tuple[float, float]], front: list[int]) -> bool:
    """Write every name beside its point; if names would overlap, write nothing and return False."""
    scale = 72 / ax.figure.dpi  # type: ignore[union-attr]
    at = [tuple(scale * ax.transData.transform(point)) for point in points]
    frame = [float(scale * side) for side in ax.get_window_extent().extents]
    taken = [(x - 7.0, y - 7.0, x + 7.0, y + 7.0) for x, y in at]
    chosen: list[tuple[tuple[float, float], str]] = []
    for (x, y), name in zip(at, names, strict=True):
        long = EM * len(name)
        sides = [((dx, dy), align) for dy in (11, 0, -11) for dx, align in ((10, "left"), (-10, "right"))]
        sides += [((0, 14), "center"), ((0, -14), "center")]
        for (dx, dy), align in sides:
            left = x + dx - {"left": 0.0, "right": long, "center": long / 2}[align]
            box = (left, y + dy - LINE / 2, left + long, y + dy + LINE / 2)
            inside = frame[0] < box[0] and box[2] < frame[2] and frame[1] < box[1] and box[3] < frame[3]
            if inside and not any(_touch(box, other) for other in taken if other != (x - 7, y - 7, x + 7, y + 7)):
                taken.append(box)
                chosen.append(((dx, dy), align))
                break
        else:
            return False
    for i, (offset, align) in enumerate(chosen):
        shade = INK[0] if i in front else MUTED[0]
        style_of: Any = {"ha": align, "va": "center", "fontsize": 10, "color": shade}
        ax.annotate(names[i], points[i], offset, textcoords="offset points", **style_of)
    return True


def _touch(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _in_column(ax: Axes, names: list[str], points: list[tuple[float, float]], front: list[int]) -> None:
    """Write the names in a column right of the axes, in the vertical order of their points, at least a line apart."""
    to_axes = (ax.transData + ax.transAxes.inverted()).transform
    at = [tuple(to_axes(point)) for point in points]
    step = LINE / 72 / (ax.figure.get_size_inches()[1] - EDGE[1] - 0.12)  # type: ignore[union-attr]
    order = sorted(range(len(names)), key=lambda i: -at[i][1])
    for i, place in zip(order, spread([at[i][1] for i in order], step), strict=True):
        line: Any = {"color": style(i)["color"], "linewidth": 0.7, "alpha": 0.7, "clip_on": False, "zorder": 2}
        ax.plot([at[i][0], 1.0, 1.03], [at[i][1], place, place], transform=ax.transAxes, **line)
        shade = INK[0] if i in front else MUTED[0]
        ax.text(1.045, place, names[i], transform=ax.transAxes, va="center", fontsize=10, color=shade)


def spread(places: Sequence[float], step: float) -> list[float]:
    """Places from high to low, moved as little as possible to be a step apart between 0 and 1.

    >>> [round(place, 2) for place in spread([0.9, 0.88, 0.1], 0.1)]
    [0.94, 0.84, 0.1]
    """
    groups: list[list[float]] = []  # [middle, count] of touching neighbours
    for place in places:
        groups.append([place, 1])
        while len(groups) > 1 and groups[-2][0] - groups[-1][0] < step * (groups[-2][1] + groups[-1][1]) / 2:
            (a, n), (b, m) = groups[-2:]
            groups[-2:] = [[(a * n + b * m) / (n + m), n + m]]
        half = step * groups[-1][1] / 2
        groups[-1][0] = max(min(groups[-1][0], 1 - half), half)
    found = [middle + step * ((count - 1) / 2 - i) for middle, count in groups for i in range(int(count))]
    for i in range(len(found) - 2, -1, -1):  # groups pushed up from 0 may touch those above
        found[i] = max(found[i], found[i + 1] + step)
    return found


def _ticks(ax: Axes, cost: Column, most: int) -> None:
    """Set at most ``most`` ticks, at 1, 2 and 5 times powers of ten, or at fewer of these."""
    low, high = sorted(ax.get_xlim())
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for kinds in ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)):
        at = [kind * 10.0**power for power in powers for kind in kinds if low <= kind * 10.0**power <= high]
        if len(at) <= most:
            break
    at = at[:: max(1, -(-len(at) // most))] or [math.sqrt(low * high)]
    ax.set_xticks(at, [written(float(f"{value:.2g}"), cost.kind) for value in at])
    ax.set_xticks([], minor=True)
    ax.set_xlim(low, high)


def _axis(cost: Column, width: float) -> str:
    return cost.label if cost.key == "parameters" else "time per datum" if width < 6 else "prediction time per datum"


def _short(name: str, longest: int) -> str:
    name = label(name)
    return name if len(name) <= longest else name[: longest - 1] + "…"


def _all(column: Column, evaluations: Sequence[Evaluation]) -> bool:
    return all(column.value(e) is not None for e in evaluations)
