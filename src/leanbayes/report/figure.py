"""Figures as SVG that uses the colours and the font of the page around it, with defaults of its own."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import warnings
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape, quoteattr

from ..optional import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colour, the CSS variable that may replace it, its value in the dark. Each pair is at least 3:1 against its background,
# and the order keeps neighbours apart for colour-blind readers (blue, orange, green, purple, red, brown).
SERIES = (
    ("#2563c9", "--series-1", "#7aa7f7"),
    ("#c8590b", "--series-2", "#f2a15a"),
    ("#0d7d64", "--series-3", "#51c7a7"),
    ("#7d4bb8", "--series-4", "#bd97ec"),
    ("#c02b52", "--series-5", "#f083a0"),
    ("#776013", "--series-6", "#d3b84f"),
)
INK = ("#1f2733", "--ink", "#e6e9ee")
MUTED = ("#5d6877", "--muted", "#9aa5b4")
GRID = ("#dde2e9", "--grid", "#333c49")
SURFACE = ("#ffffff", "--surface", "#171c24")
THEME = (*SERIES, INK, MUTED, GRID, SURFACE)

MARKERS = "os^DvPX*<>ph"
LINES = ("-", (0, (5, 2)), (0, (1, 1.5)))
LINE_OF_LEGEND = 18  # points

_pictures: ContextVar[list[tuple[str, bytes]] | None] = ContextVar("pictures", default=None)
_numbers = itertools.count(1)


def colour(number: int) -> str:
    """The colour of series ``number``, repeating after the last."""
    return SERIES[number % len(SERIES)][0]


def style(number: int, points: int = 0) -> dict[str, Any]:
    """Colour, marker and line of a series; twelve series differ in their markers, and in colour and line together.

    points: of a curve with this many points only some are marked; 0 marks every point.
    """
    size = {"*": 8.0, "X": 6.0, "P": 6.0, "p": 6.0, "h": 6.0}.get(marker := MARKERS[number % len(MARKERS)], 5.0)
    line = LINES[number // len(SERIES) % len(LINES)]
    every = {"markevery": (number % 5 / 40, 0.2)} if points > 12 else {}
    return {"color": colour(number), "marker": marker, "markersize": size, "linestyle": line, **every}


@contextlib.contextmanager
def canvas(
    rows: int = 1,
    *,
    columns: int = 1,
    width: float = 4.6,
    height: float | None = None,
    ratios: list[float] | None = None,
) -> Iterator[Any]:
    """Yield a figure with its style and axes: one, several in a column, or an array of rows and columns.

    height: in inches; None gives every row of axes more than two of them.
    """
    require("matplotlib", "plots", "figures")
    import matplotlib as mpl
    from matplotlib.figure import Figure  # no pyplot: no global state, no display, nothing to close

    style: Any = {
        "axes.edgecolor": MUTED[0],
        "axes.labelcolor": INK[0],
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.labelsize": 10.5,
        "font.size": 10.5,
        "grid.color": GRID[0],
        "grid.linewidth": 0.7,
        "legend.fontsize": 10,
        "legend.frameon": False,
        "legend.labelcolor": INK[0],
        "lines.linewidth": 1.8,
        "svg.fonttype": "none",  # text stays text: selectable, searchable, in the font of the page
        "text.color": INK[0],
        "text.parse_math": False,  # a model may be called "$x"
        "xtick.color": MUTED[0],
        "ytick.color": MUTED[0],
        "xtick.labelsize": 10,
        "ytick.labelsize": 10,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(width, height or 0.6 + 2.9 * rows), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.subplots(rows, columns, squeeze=False, gridspec_kw={"height_ratios": ratios or [1.0] * rows})
        for ax in axes.flat:
            ax.patch.set_alpha(0)
            ax.tick_params(length=3, width=0.8)
        first = axes[:, 0]
        yield figure, axes if columns > 1 else first[0] if rows == 1 else first


@contextlib.contextmanager
def pictures() -> Iterator[list[tuple[str, bytes]]]:
    """Yield a list that gets the title and the PNG of every figure drawn inside, for output that cannot show SVG."""
    found: list[tuple[str, bytes]] = []
    token = _pictures.set(found)
    try:
        yield found
    finally:
        _pictures.reset(token)


def svg(figure: Figure, title: str, description: str = "") -> str:
    """The figure as an ``<svg>`` element with theme colours, unique ids, and words for screen readers."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    if (kept := _pictures.get()) is not None:
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=144, facecolor="white", metadata={"Software": None})
        kept.append((title, picture.getvalue()))
    file = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the browser has glyphs that matplotlib's font lacks
        FigureCanvasSVG(figure).print_svg(file, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Only tags are changed; text between them is the user's.
    prefix = f"f{next(_numbers)}-"
    text = re.sub(r"<[^>]*>", lambda tag: _themed(tag[0], prefix), text)
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
    assert box is not None, "matplotlib always writes a viewBox"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        f'viewBox="0 0 {box[1]} {box[2]}" width="{box[1]}" height="{box[2]}" aria-label={quoteattr(title)}>'
        f"<title>{escape(title)}</title>" + (f"<desc>{escape(description)}</desc>" if description else "")
    )
    return head + text[text.index(">") + 1 :].strip()


def _themed(tag: str, prefix: str) -> str:
    for value, variable, _ in THEME:
        tag = tag.replace(value, f"var({variable}, {value})")
    tag = re.sub(r"(font: [^;\"]*?px) [^;\"]*", r"\1 system-ui, -apple-system, 'Segoe UI', sans-serif", tag)
    tag = re.sub(r"(\d\.\d\d)\d+", r"\1", tag)  # a hundredth of a pixel is enough
    # Several figures share a page, and matplotlib reuses its ids.
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}", tag)


def label(text: str) -> str:
    """A user's string as matplotlib shows it: no control characters, shortened, not hidden by a leading underscore."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    shown = shown if len(shown) <= 40 else shown[:39] + "…"
    return "\u200b" + shown if shown.startswith("_") else shown


def legend(ax: Axes, title: str = "") -> None:
    """The legend above the axes, with as many entries a line as fit; the figure grows by its further lines."""
    names = ax.get_legend_handles_labels()[1]
    fits = sum(len(name) + 6 for name in names) <= 50
    longest = max(map(len, names), default=1)
    columns = max(1, len(names) if fits else 44 // (longest + 6))
    ax.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=columns,
        borderaxespad=0.2, handlelength=2.4, columnspacing=1.2, handletextpad=0.6,
    )  # fmt: skip
    lines = -(-len(names) // columns)
    figure = ax.get_figure(root=True)
    if figure is not None and lines > 1:
        figure.set_size_inches(figure.get_figwidth(), figure.get_figheight() + (lines - 1) * LINE_OF_LEGEND / 72)
    if title:
        ax.set_title(title, loc="right", fontsize=10, color=INK[0])


def percent_axis(ax: Axes, which: str = "both") -> None:
    """Write the ticks of axes from 0 to 1 as percentages."""
    from matplotlib.ticker import FuncFormatter

    for axis in (ax.xaxis, ax.yaxis):
        if which in ("both", axis.axis_name):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))


def columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """The x and the y of points as two lists."""
    return [x for x, _ in points], [y for _, y in points]
