"""What is published is executed: every Python block of the README and the documentation, in order, page by page."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r'^```python(?: title="needs (\w+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for needed, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if needed and importlib.util.find_spec(needed) is None:
            continue
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text(encoding="utf-8"))
    # the API pages are made with the site, whose strict build checks the links to them
    assert [t for t in targets if not (page.parent / t).exists() and not re.match(r"(\.\./)?api/", t)] == []
