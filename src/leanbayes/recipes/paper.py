"""The figures that the papers print, from the table paper.toml beside this file. No torch here."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def printed(recipe: str, *place: str) -> dict[str, Any]:
    """The metrics that the paper prints at a place of a recipe's table, or the table below it; empty if there are none.

    place: keys of the table, from the outside in: a data set or a network, a method, a setting.

    >>> printed("patch-corruptions", "resnet18", "EMP (BN)")
    {'mce': 98.8, 'rmce': 99.0}
    >>> printed("patch-corruptions", "mlp", "EMP (BN)")
    {}
    """
    table: Any = _tables()[recipe]
    columns = table.get("columns", ())
    for name in place:
        table = table.get(name, {})
    return dict(zip(columns, table, strict=True)) if isinstance(table, list) else table
