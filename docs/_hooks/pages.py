"""Adds to the site what is generated: the API pages, the help of commands, results, the changelog.

A page of `docs/` may contain these markers, each on a line of its own:

    <!-- help: train -->                the output of `leanbayes train --help`
    <!-- results: variance-* -->        the command, seeds and duration of every matching file of results/
    <!-- compared: sparse-ood.cpu -->   the rows of a file for which the paper has a figure, beside that figure
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))
sys.path.insert(0, str(Path(__file__).parent))

import api_pages  # noqa: E402
import result_tables  # noqa: E402

MARKER = re.compile(r"^<!-- (help|results|compared): (\S*) -->$", re.MULTILINE)
OUTSIDE = ("results/", "benchmarks/results/", "CHANGELOG.md", "CONTRIBUTING.md")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the API pages where the navigation says "API"."""
    entries = [{title: f"api/{slug}.md"} for slug, (title, _) in api_pages.groups().items()]
    config.nav = [{"API": ["api/index.md", *entries]} if "API" in item else item for item in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the API pages, the changelog, and the files that pages link to outside of docs/."""
    for path, text in api_pages.pages().items():
        files.append(File.generated(config, path, content=text))
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        files.append(File.generated(config, name.lower(), abs_src_path=str(ROOT / name)))
    for pattern in ("results/*.json", "results/figures/*.svg", "results/figures/*.png", "benchmarks/results/*.json"):
        for found in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, str(found.relative_to(ROOT)), abs_src_path=str(found)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the markers; links that leave docs/ lead to the copies in the site."""
    return MARKER.sub(lambda found: _generated(found[1], found[2]), _links(markdown, page.file.src_uri))


def _links(markdown: str, src: str) -> str:
    if src in ("changelog.md", "contributing.md"):  # they stand one folder above docs/
        return markdown.replace("](docs/", "](").replace("](CHANGELOG.md", "](changelog.md")
    up = "../" * (src.count("/") + 1)
    pattern = re.compile(rf"\]\({re.escape(up)}({'|'.join(map(re.escape, OUTSIDE))})")
    return pattern.sub(lambda found: f"]({up[3:]}{found[1].lower()}", markdown)


def _generated(kind: str, argument: str) -> str:
    if kind == "help":
        return f"```text\n{command_help(argument)}\n```"
    return result_tables.listed(argument) if kind == "results" else result_tables.compared(argument)


def command_help(command: str) -> str:
    """The output of ``leanbayes COMMAND --help``, 88 columns wide, without colours."""
    from leanbayes.cli import main

    before, printed = dict(os.environ), io.StringIO()
    os.environ.update(COLUMNS="88", NO_COLOR="1", TERM="dumb")
    try:
        with contextlib.redirect_stdout(printed):
            code = main(["--help"] if command == "leanbayes" else [command, "--help"])
    finally:
        os.environ.clear()
        os.environ.update(before)
    if code:
        raise ValueError(f"leanbayes {command} --help: expected exit code 0, received {code}")
    return re.sub(r"\x1b\[[0-9;]*m", "", printed.getvalue()).rstrip()
