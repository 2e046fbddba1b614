"""Makes a Python in which some extras are installed alone: packages that neither they nor the core bring are not found.

``PYTHONPATH=tests/alone LEANBAYES_ALONE=hub,pytest,hypothesis python -m pytest tests/integrations/test_hub.py``: the
variable names extras of leanbayes and other distributions. It holds for processes that are started from there, too.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from typing import Any

PACKAGES = sysconfig.get_path("purelib")


def normal(name: str) -> str:
    """The name of a distribution as indices compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(requirements: list[str]) -> set[str]:
    """The installed distributions among those that pip would install."""
    from packaging.requirements import Requirement

    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(one) for one in requirements]
    while waiting:
        requirement = waiting.pop()
        name = normal(requirement.name)
        try:
            needs = [Requirement(one) for one in metadata.requires(name) or []]
        except metadata.PackageNotFoundError:  # of another system
            continue
        found.add(name)
        for extra in {"", *requirement.extras} - {extra for owner, extra in seen if owner == name}:
            seen.add((name, extra))
            waiting += [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]
    return found


class Filter:
    """A finder that does not find some modules and distributions."""

    def __init__(self, finder: Any, hidden: set[str], kept: set[str]) -> None:
        self.finder, self.hidden, self.kept = finder, hidden, kept

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As the finder, unless the module belongs to a package that is hidden; copies inside others do not."""
        found = self.finder.find_spec(name, path, target)
        if found is None or name not in self.hidden:
            return found
        places = filter(None, [found.origin, *(found.submodule_search_locations or ())])
        return None if any(os.path.relpath(place, PACKAGES).startswith(name) for place in places) else found

    def find_distributions(self, *context: Any) -> Iterator[Any]:
        """As the finder, without what is hidden."""
        found = getattr(self.finder, "find_distributions", lambda *_: ())(*context)
        return (one for one in found if normal(one.metadata["Name"]) in self.kept)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.finder, name)


def chosen(names: list[str]) -> tuple[set[str], set[str]]:
    """The modules to hide, and the distributions to keep: those of the core, of these extras, and these."""
    extras = [name for name in names if name in metadata.metadata("leanbayes").get_all("Provides-Extra", [])]
    kept = closure([f"leanbayes[{','.join(extras)}]", *(name for name in names if name not in extras)])
    owners = metadata.packages_distributions()
    return {module for module, brought in owners.items() if not kept & set(map(normal, brought))}, kept


if "LEANBAYES_ALONE" in os.environ:
    if "LEANBAYES_CHOSEN" not in os.environ:  # processes that are started from here need not look again
        found = chosen(os.environ["LEANBAYES_ALONE"].split(","))
        os.environ["LEANBAYES_CHOSEN"] = " ".join(",".join(sorted(names)) for names in found)
    hidden, kept = (set(names.split(",")) for names in os.environ["LEANBAYES_CHOSEN"].split(" "))
    sys.meta_path[:] = [Filter(finder, hidden, kept) for finder in sys.meta_path]
    for module in [module for module in sys.modules if module.partition(".")[0] in hidden]:
        del sys.modules[module]
