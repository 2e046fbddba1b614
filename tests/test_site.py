"""The documentation site: it builds strictly and offline, and every public name, method and command has a page."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import leanbayes
from leanbayes import cli
from leanbayes.recipes.catalogue import RECIPES
from leanbayes.registry import methods

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NEEDED = ("mkdocs", "material", "mkdocstrings", "latex2mathml")
OUTSIDE = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


def page_of(method: str) -> Path:
    """docs/methods/mean-field.md for MeanField."""
    return ROOT / "docs" / "methods" / (re.sub(r"(?<=[a-z])(?=[A-Z])", "-", method).lower() + ".md")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; the build itself fails on any warning."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        pytest.skip(f"needs {', '.join(missing)}: pip install leanbayes[docs]")
    target = tmp_path_factory.mktemp("site")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    arguments = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def test_every_public_name_has_an_entry(site: Path) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (site / "api").glob("*.html"))
    assert [name for name in leanbayes.__all__ if f'id="leanbayes.{name}"' not in text] == []


def test_every_command_has_a_page_with_its_options(site: Path) -> None:
    for command in cli.COMMANDS:
        page = site / "commands" / f"{command}.html"
        assert page.exists(), f"docs/commands/{command}.md is missing"
        assert f"usage: leanbayes {command} [-h]" in page.read_text(encoding="utf-8")
    index = (site / "commands" / "index.html").read_text(encoding="utf-8")
    assert [command for command in cli.COMMANDS if f"• {command} " not in index] == []


@pytest.mark.parametrize("method", methods())
def test_every_method_has_a_page(method: str) -> None:
    page = page_of(method)
    assert page.exists(), f"{page.relative_to(ROOT)} is missing"
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {method}\n")
    assert "```python\n" in text
    assert f"(../api/methods.md#leanbayes.{method})" in text
    for title in ("When to use it", "Cost", "Limits"):
        assert f"\n## {title}\n" in text, f"{page.name} has no section {title!r}"
    assert f"methods/{page.name}" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert f"]({page.name})" in (ROOT / "docs" / "methods" / "index.md").read_text(encoding="utf-8")


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    found = {}
    for path in site.rglob("*.html"):
        if tags := OUTSIDE.findall(path.read_text(encoding="utf-8")):
            found[path.name] = tags
    assert found == {}
    styles = [path for path in site.rglob("*.css") if "url(http" in path.read_text(encoding="utf-8")]
    assert styles == []


def test_formulas_are_mathml(site: Path) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (site / "methods").glob("*.html"))
    assert "<math" in text
    assert "arithmatex" not in text


def test_every_result_is_on_a_page(site: Path) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.html"))
    results = sorted((ROOT / "results").glob("*.json"))
    assert [path.name for path in results if f"results/{path.name}" not in text] == []
    assert all((site / "results" / path.name).exists() for path in results)


def commands() -> list[str]:
    """Every line of a code block that calls the program, without its comment."""
    found = []
    for page in PAGES:
        blocks = re.findall(
            r"^```\n(.*?)^```|^((?:    leanbayes .*\n)+)", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
        )
        lines = "\n".join(part for block in blocks for part in block).splitlines()
        found += [line.partition(" #")[0].strip() for line in lines if line.strip().startswith("leanbayes ")]
    return sorted(set(found))


@pytest.mark.parametrize("line", commands())
def test_commands_of_the_pages_are_understood(line: str) -> None:
    command = cli._parse(shlex.split(line)[1:])
    if type(command).__name__ == "Reproduce" and command.name:
        assert command.name in RECIPES


def test_recipes_of_the_pages_exist() -> None:
    names = {
        name for page in PAGES for name in re.findall(r"leanbayes reproduce ([a-z][\w-]+)", page.read_text("utf-8"))
    }
    assert names
    assert names <= RECIPES.keys()
