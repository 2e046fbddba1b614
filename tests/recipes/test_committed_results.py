"""Every result in the repository is complete, and can be shown and drawn."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from leanbayes.recipes.catalogue import find
from leanbayes.recipes.table import result_table

RESULTS = sorted((Path(__file__).parents[2] / "results").glob("*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_every_result_can_be_shown_and_drawn(path):
    result = json.loads(path.read_text())
    assert {"recipe", "preset", "command", "version", "seeds", "seconds", "rows"} <= result.keys()
    for row in result["rows"]:
        assert {"dataset", "method", "setting", "metrics", "paper"} <= row.keys()
        assert row["setting"] is not None
        summaries = [*row["metrics"].values()]
        for points in row.get("curves", {}).values():
            summaries += [value for point in points for value in list(point.values())[1:]]
        assert all(summary.keys() == {"mean", "std", "n"} for summary in summaries)
    assert result["recipe"] in result_table(result)
    figure = find(result["recipe"]).load().figure
    drawn = path.parent / "figures" / f"{path.stem}.svg"
    assert drawn.exists() == (figure is not None)
    if figure is not None:
        ElementTree.fromstring(figure(result))
