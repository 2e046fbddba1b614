"""The figures of variance networks: well-formed, small, and with what they are given."""

from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest

from leanbayes.methods.variance.transition import EDGES
from leanbayes.recipes.catalogue import find
from leanbayes.recipes.experiment import reproduce
from leanbayes.recipes.figures import transition

RECORDS = [
    {
        "epoch": epoch,
        "deterministic": accuracy,
        "stochastic": 0.9,
        "ensemble": 0.99,
        "log_alpha": {"dense1": float(epoch)},
        "kappa": {"dense1.weight": {"edges": list(EDGES), "counts": [epoch] * (len(EDGES) - 1), "above": 10 * epoch}},
    }
    for epoch, accuracy in enumerate((0.97, 0.98, 0.5, 0.1), 1)
]
PHASES = {name: RECORDS[at]["kappa"]["dense1.weight"] for name, at in (("before", 0), ("during", 2), ("after", 3))}
CURVES = {
    name: [
        {"log10 kappa": -2.0 + n, "ensemble": 0.99 - n / 100, "compression": 10.0**n, "at": 1 - 10.0**-n}
        for n in range(3)
    ]
    for name in ("zeroed", "mean")
}
POINTS = [
    {"log alpha": a, "deterministic": d, "BatchNorm at means": 0.98, "no affine part": 0.97, "ensemble": 0.99}
    | {"signal": 10.0**-a, "offset": 0.1}
    for a, d in ((2.0, 0.98), (12.0, 0.11))
]


def words(drawn: str) -> str:
    root = ElementTree.fromstring(drawn)
    return " ".join(root.itertext())


@pytest.mark.parametrize(
    ("draw", "given", "expected"),
    [
        (transition.procedures, (RECORDS,), ("ensemble", "deterministic", "log alpha", "epoch", "after epoch 4")),
        (transition.histograms, (PHASES, 1.5), ("before", "during", "after", "kappa_0", "log10 kappa")),
        (transition.above_threshold, (RECORDS, "dense1.weight"), ("deterministic", "weights above kappa_0")),
        (transition.sparse, (CURVES,), ("set to zero", "set to their means", "compression", "100x")),
        (transition.criterion, (RECORDS, [(1, 0), (4, 30)], PHASES, 1.5, CURVES), ("log10 kappa", "set to zero")),
        (transition.collapse, (POINTS, [POINTS[-1]]), ("signal", "offset", "end to end", "log alpha 12: 11.0 %")),
    ],
    ids=["procedures", "histograms", "above", "sparse", "criterion", "collapse"],
)
def test_figures(draw: Callable[..., str], given: tuple[Any, ...], expected: tuple[str, ...]) -> None:
    drawn = draw(*given)
    said = words(drawn)
    assert all(word in said for word in expected), said
    assert "mathdefault" not in said
    assert "nan" not in drawn
    assert len(drawn) < 150_000


def test_zero_means_and_a_single_record() -> None:
    record = {"epoch": 1, "deterministic": None, "stochastic": 0.5, "ensemble": 0.6, "log_alpha": {}}
    assert "deterministic" not in words(transition.procedures([record]))


@pytest.mark.parametrize("name", ["variance-collapse", "variance-criterion"])
def test_recipes_and_their_figures(name: str) -> None:
    """The smoke preset runs through, and its result can be drawn."""
    result = reproduce(name, "smoke")
    drawn = find(name).load().figure(result)
    ElementTree.fromstring(drawn)
    assert len(drawn) < 150_000
    if name == "variance-collapse":
        assert {row["method"] for row in result["rows"]} == {"end to end", "fixed alpha", "from log alpha -5"}
    else:
        (row,) = result["rows"]
        assert set(row["curves"]) == {"epoch", "histogram", "zeroed", "mean", "by variance"}
        assert [point["epoch"] for point in row["curves"]["epoch"]] == [1, 2, 3]
        weights = [sum(point[phase]["mean"] for point in row["curves"]["histogram"]) for phase in ("before", "after")]
        assert weights == [32 * 32] * 2


def test_the_long_run_has_a_figure_of_its_own() -> None:
    from leanbayes.recipes.variance.collapse import figure

    rows = [
        {"method": "from log alpha -5", "setting": epoch, "metrics": {k: {"mean": v} for k, v in values.items()}}
        for epoch, values in (
            (5, {"deterministic": 99.0, "stochastic": 98.0, "ensemble": 99.0, "log alpha": -4.0}),
            (10, {"deterministic": 98.0, "stochastic": 98.0, "ensemble": 99.0, "log alpha": -3.0}),
        )
    ]
    assert "log alpha" in words(figure({"rows": rows}))
