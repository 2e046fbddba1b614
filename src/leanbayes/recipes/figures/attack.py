"""The figure of the attacks on ensembles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...report.figure import canvas, colour, columns, label, percent_axis, svg
from .charts import STYLES, mean


def attacks(result: Mapping[str, Any]) -> str:
    """Figure 2 of variance networks as SVG: success rate above, entropy below, against the iteration."""
    names = list(dict.fromkeys(row["method"] for row in result["rows"]))
    with canvas(2, width=5.4, height=5.2) as (drawn, (top, bottom)):
        for number, name in enumerate(names):
            mine = [row for row in result["rows"] if row["method"] == name]
            style = {"color": colour(number), "label": label(name), "markersize": 3.5}
            for ax, metric in ((top, "success"), (bottom, "entropy")):
                line = [(row["setting"], mean(row, metric)) for row in mine]
                ax.plot(*columns(line), STYLES[number % len(STYLES)], **style)
        top.set(ylim=(0, 1.02), ylabel="successful attacks")
        bottom.set(ylim=(0, None), ylabel="entropy (nats)", xlabel="iteration of the attack")
        percent_axis(top, "y")
        top.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2, handlelength=1.8)
        top.tick_params(labelbottom=False)
        bottom.xaxis.get_major_locator().set_params(integer=True)
        drawn.align_ylabels()
        last = {row["method"]: row for row in result["rows"]}
        ends = (f"{method}: {mean(row, 'success'):.0%}" for method, row in last.items())
        return svg(drawn, "Targeted attacks by iteration", "Successful in the end: " + "; ".join(ends))
