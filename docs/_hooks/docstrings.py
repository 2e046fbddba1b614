"""Prepares docstrings for the site: doctests become code, and parameters named in prose become a list."""

from __future__ import annotations

import re
from typing import Any

import griffe

BLOCK = re.compile(r"^>>> .*?(?=\n[ ]*\n|\Z)", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"(?:^|(?<=[.)] )|(?<=[.)]\n))([a-z]\w*(?:, [a-z]\w*)*): ")


class Docstrings(griffe.Extension):
    """Rewrites the docstring of every object that griffe has loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each object."""
        if obj.docstring is None:
            return
        names = {parameter.name.lstrip("*") for parameter in getattr(obj, "parameters", ())}
        text = re.sub(r"[ ]*# doctest: .*", "", obj.docstring.value)
        text = BLOCK.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
        obj.docstring.value = "\n\n".join(_listed(part, names) for part in text.split("\n\n"))


def _listed(paragraph: str, names: set[str]) -> str:
    """A paragraph with an item for each parameter that it describes as ``name: what it is``."""
    if paragraph.lstrip().startswith(("```", "- ", "Args:")) or "\n- " in paragraph:
        return paragraph
    hits = [hit for hit in NAMED.finditer(paragraph) if set(hit[1].split(", ")) <= names]
    if not hits:
        return paragraph
    ends = [*(hit.start() for hit in hits[1:]), len(paragraph)]
    items = [
        f"- **{hit[1]}**: {' '.join(paragraph[hit.end() : end].split())}" for hit, end in zip(hits, ends, strict=True)
    ]
    before = paragraph[: hits[0].start()].rstrip()
    return "\n\n".join(filter(None, [before, "\n".join(items)]))
