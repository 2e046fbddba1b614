"""The page about your own model and data: its Python and its commands, one after the other, in an empty folder."""

import re
import shlex
from pathlib import Path

from leanbayes.cli import DONE

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "own.md"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_commands_of_the_page_run(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    names, said = {}, {}
    for kind, block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if kind == "python" and "savez" in block:  # the other block is run with all pages
            exec("import numpy as np\nrng = np.random.default_rng(0)\nx = rng.normal(size=(300, 6))\n", names)
            exec("y = (x[:, :3] + 0.5 * rng.normal(size=(300, 3))).argmax(1)\n" + block, names)
        for line in block.splitlines() if kind == "sh" else ():
            program, *arguments = shlex.split(line)
            assert program == "leanbayes"
            code, said[line], err = run(*arguments)
            assert code == DONE, err
    tables = [text for line, text in said.items() if "evaluate" in line]
    assert all("Conformal prediction" in text for text in tables)
    assert len(tables) == 2
    assert "conformal_low" in next(text for line, text in said.items() if "new.csv" in line)
    assert "digit 3" in (tmp_path / "answers.csv").read_text()


def test_the_page_shows_the_example():
    example = (Path(__file__).parents[2] / "examples" / "own_arrays.py").read_text(encoding="utf-8")
    block = next(block for kind, block in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if kind == "python")
    assert example.split("\n", 2)[2].strip() == block.strip()
