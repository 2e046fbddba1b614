"""Every dotted name of the package that a message, a docstring or a page mentions can be typed."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leanbayes

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = [path for path in sorted((ROOT / "src").rglob("*.py")) if path.name != "moved.py"]  # it lists old names
NAME = re.compile(r"(?P<imported>\b(?:from|import) +)?(?<![\w./-])(?:leanbayes|lb)(?P<path>(?:\.[A-Za-z_]\w*)+)")


def resolve(path: str) -> Any:
    """What ``leanbayes`` + path is: attributes first, as in a prompt, then submodules that were not imported yet."""
    found: Any = leanbayes
    for part in path.lstrip(".").split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            if not inspect.ismodule(found):
                raise
            try:
                found = importlib.import_module(f"{found.__name__}.{part}")
            except ModuleNotFoundError as error:
                raise AttributeError(str(error)) from error
    return found


def wrong(text: str) -> Iterator[str]:
    """The names in a text that cannot be typed; a name behind ``from`` or ``import`` is a module."""
    for found in NAME.finditer(text):
        try:
            if found["imported"]:
                importlib.import_module("leanbayes" + found["path"])
            else:
                resolve(found["path"])
        except (AttributeError, ModuleNotFoundError):
            yield found[0].strip()


def strings(source: str) -> Iterator[str]:
    """Every string of a program: messages, the parts of f-strings, docstrings."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_names_of_pages_resolve(page: Path) -> None:
    assert list(wrong(page.read_text(encoding="utf-8"))) == []


def test_names_of_messages_and_docstrings_resolve() -> None:
    found = {}
    for path in SOURCES:
        if names := [name for text in strings(path.read_text(encoding="utf-8")) for name in wrong(text)]:
            found[str(path.relative_to(ROOT))] = names
    assert found == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lb.fit and leanbayes.Evaluation.load_json", []),
        ("use leanbayes.fti(model)", ["leanbayes.fti"]),
        ("lb.cost.no_such_name", ["lb.cost.no_such_name"]),  # lb.cost is a function
        ("from leanbayes.methods import MeanField", []),
        ("from leanbayes.no_such_module import x", ["from leanbayes.no_such_module"]),
        ("leanbayes.methods.patch.norms", []),
        ("a file called model.leanbayes.bin or my-leanbayes.html", []),
    ],
)
def test_the_check_itself(text: str, expected: list[str]) -> None:
    assert list(wrong(text)) == expected
