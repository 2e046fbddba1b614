"""The data sets by name, from the table catalogue.toml beside this file. No torch and no numpy here."""

from __future__ import annotations

import difflib
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DataError


class Entry(NamedTuple):
    """A data set: the module of this folder whose ``build(request)`` reads it, and facts about its files."""

    module: str
    description: str
    facts: dict[str, Any]


@cache
def _entries() -> dict[str, Entry]:
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {name: Entry(facts.pop("module"), facts.pop("description"), facts) for name, facts in table.items()}


def names() -> dict[str, str]:
    """The names that `load` knows, each with a line of description.

    >>> names()["digits"]
    '1,797 handwritten digits, 8x8 grey, 10 classes; embedded, the default'
    """
    return {name: entry.description for name, entry in _entries().items()}


def entry(name: str) -> Entry:
    """The entry of a data set; an unknown name is refused, with the closest known one.

    >>> entry("CIFAR-10")
    Traceback (most recent call last):
    leanbayes.errors.DataError: expected the name of a data set, received 'CIFAR-10'; did you mean 'cifar10'? ...
    """
    if isinstance(name, str) and name in _entries():
        return _entries()[name]
    # compared without case and punctuation: FashionMNIST, fashion_mnist
    plain = {_plain(known): known for known in _entries()}
    close = difflib.get_close_matches(_plain(str(name)), plain, n=1)
    hint = f"did you mean {plain[close[0]]!r}? " if close else ""
    raise DataError(f"expected the name of a data set, received {name!r}; {hint}known: {', '.join(_entries())}")


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())
