"""What the papers print: every table belongs to a recipe, and its figures reach the rows of that recipe."""

import tomllib
from pathlib import Path

import pytest

import leanbayes.recipes
from leanbayes.recipes.catalogue import RECIPES, find

TABLE = tomllib.loads((Path(leanbayes.recipes.__file__).parent / "paper.toml").read_text(encoding="utf-8"))


def numbers(table):
    """All figures of a table."""
    if isinstance(table, dict):
        return [value for name, inner in table.items() if name != "columns" for value in numbers(inner)]
    return [value for inner in table for value in numbers(inner)] if isinstance(table, list) else [table]


@pytest.mark.parametrize("name", TABLE)
def test_the_figures_of_a_table_are_shown(name):
    assert name in RECIPES
    cells = [cell for preset in ("cpu", "paper") for cell in find(name).load().cells(preset)]
    assert cells
    if any(callable(cell.paper) for cell in cells):
        return  # by method and setting, once they have been measured: tests of the recipe
    shown = {value for cell in cells for value in cell.paper.values()}
    missing = set(numbers(TABLE[name])) - shown
    assert not missing, sorted(missing)[:5]
