"""A heat map of a square matrix."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from .figure import INK, SURFACE, colour, label


def matrix(ax: Any, values: Sequence[Sequence[float]], names: Sequence[str], heading: str) -> str:
    """Draw numbers up to 1 for pairs of names, each in its cell; returns them as text."""
    from matplotlib.patches import Rectangle

    count = len(names)
    for i, j in itertools.product(range(count), repeat=2):
        # the strength of one colour suits light and dark pages
        look: Any = {"facecolor": colour(0), "alpha": 0.08 + 0.85 * max(values[i][j], 0.0), "edgecolor": SURFACE[0]}
        ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, linewidth=1.0, **look))
        ink = SURFACE[0] if values[i][j] > 0.55 else INK[0]
        ax.text(j, i, f"{values[i][j]:.2f}", ha="center", va="center", fontsize=8.5, color=ink)
    ax.set(xlim=(-0.5, count - 0.5), ylim=(count - 0.5, -0.5), aspect="equal")
    ax.set_xticks(range(count), [label(name) for name in names], rotation=40, ha="right")
    ax.set_yticks(range(count), [label(name) for name in names])
    ax.grid(visible=False)
    ax.set_title(heading, loc="left", fontsize=10.5, color=INK[0])
    for spine in ax.spines.values():
        spine.set_visible(False)
    pairs = (f"{names[i]} and {names[j]} {values[i][j]:.2f}" for i in range(count) for j in range(i))
    return f"{heading}: " + ", ".join(pairs)
