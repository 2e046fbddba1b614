"""The figures of nested networks: learned importance, and samples of Downhill.

Plain lists and dictionaries in, an SVG string out. The numbers come from `leanbayes.importance`, from
`downhill_samples`, or from the recipe nested-tails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ...ordering import gumbel_noise, log_tails, slope, uniform_logits
from ...report.figure import MUTED, canvas, colour, label, legend, percent_axis, svg

_MARKS = ("o-", "s--", "^:", "D-.")
_WIDTH = 5.6


def tails(layers: Mapping[str, Sequence[float]], fixed: Mapping[str, Sequence[float]] | None = None) -> str:
    """Figure 1: the probability of each tail index, a line a layer, against the part of the nodes that is kept.

    layers: by name, the tail probabilities of nodes 1..K, as `leanbayes.importance` gives them.
    fixed: others to compare with, geometric or uniform ones say, as thin lines.
    """
    with canvas(width=_WIDTH, height=3.8) as (figure, ax):
        for name, beta in (fixed or {}).items():
            ax.plot(*_by_part(beta), ":", color=MUTED[0], linewidth=1.2, label=label(name))
        for number, (name, beta) in enumerate(layers.items()):
            shade, mark = colour(number), _MARKS[number // 6 % 4]
            ax.plot(*_by_part(beta), mark, color=shade, markersize=2.5, linewidth=1.4, label=label(name))
        ax.set(xlabel="part of the nodes that is kept", ylabel="K times the probability of the tail", ylim=(0, None))
        percent_axis(ax, "x")
        legend(ax)
        return svg(figure, "Learned importance: tail probabilities by layer", _spoken(layers))


def downhill(samples: Mapping[float, Sequence[Sequence[float]]]) -> str:
    """Figure 2: samples of the Downhill distribution, a panel a temperature: a cliff when cold, a slope when warm.

    samples: by temperature, lists of z_1..z_K, as `downhill_samples` draws them.
    """
    with canvas(len(samples), width=_WIDTH, height=0.6 + 1.5 * len(samples)) as (figure, axes):
        panels = [axes] if len(samples) == 1 else list(axes)
        for ax, (temperature, drawn) in zip(panels, samples.items(), strict=True):
            for number, z in enumerate(drawn):
                ax.plot(range(1, len(z) + 1), z, color=colour(number), linewidth=1.3)
            ax.set(ylim=(-0.03, 1.05), ylabel="z")
            ax.set_title(f"temperature {temperature:g}", loc="right", fontsize=10)
            if ax is not panels[-1]:
                ax.tick_params(labelbottom=False)
        panels[-1].set(xlabel="node")
        return svg(figure, "Samples of the Downhill distribution by temperature")


def downhill_samples(
    nodes: int = 32, temperatures: Sequence[float] = (0.1, 0.5, 1.0, 2.0), draws: int = 6, seed: int = 0
) -> dict[float, list[list[float]]]:
    """Draws of Downhill with uniform tails, the same noise at every temperature.

    >>> drawn = downhill_samples(nodes=4, temperatures=(0.1,), draws=2)
    >>> len(drawn[0.1]), drawn[0.1][0][0]
    (2, 1.0)
    """
    noise = gumbel_noise((draws, nodes), generator=torch.Generator().manual_seed(seed))
    log_beta = log_tails(uniform_logits(nodes))
    return {temperature: slope(log_beta, temperature, noise).tolist() for temperature in temperatures}


def _by_part(beta: Sequence[float]) -> tuple[list[float], list[float]]:
    """Layers with other numbers of nodes are comparable as densities: 1 where all widths are as likely."""
    count = len(beta)
    return [(j + 1) / count for j in range(count)], [count * float(b) for b in beta]


def _spoken(layers: Mapping[str, Sequence[float]]) -> str:
    likely = {name: max(range(len(beta)), key=lambda j: float(beta[j])) + 1 for name, beta in layers.items()}
    return "; ".join(f"{name}: most likely {j} of {len(layers[name])} nodes" for name, j in likely.items())
