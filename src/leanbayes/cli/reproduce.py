"""`leanbayes reproduce`: a table of a paper, ours beside theirs."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ..optional import require
from . import checks


@dataclass(frozen=True)
class Reproduce:
    """Reproduce a table or figure; without a name, list what there is.

    Args:
        name: of the recipe.
        preset: smoke takes seconds on embedded data; cpu minutes to hours on real data; paper is as published.
        out: where the result is written; by default results/NAME.PRESET.json, unless the preset is smoke.
        resume: a folder for finished pieces, so that an interrupted run goes on where it stopped; by default runs,
            unless the preset is smoke.
        json: print JSON instead of a table.
    """

    name: Annotated[str, tyro.conf.Positional] = ""
    preset: Literal["smoke", "cpu", "paper"] = "smoke"
    out: Path | None = None
    resume: Path | None = None
    json: bool = False

    def run(self) -> dict[str, Any]:
        """Run it and print ours beside the paper's."""
        from .. import files
        from ..recipes.base import check, recipes, reproduce
        from ..recipes.table import result_table

        if not self.name:
            known = {name: recipe.summary for name, recipe in recipes().items()}
            if not self.json:
                for name, text in known.items():
                    print(f"{name:{max(map(len, known))}}  {text}")
            return known
        draw = check(self.name, self.preset).figure
        for package in ("matplotlib", "sklearn", "scipy", "PIL"):
            require(package, "all", "leanbayes reproduce")
        target, folder = self._target, self._folder
        if target is not None:
            if self.out is None:
                target.parent.mkdir(exist_ok=True)
            checks.targets(out=target)
        result = reproduce(self.name, self.preset, resume=folder, tell=lambda text: print(text, file=sys.stderr))
        if target is not None:
            files.write_text(target, json.dumps(result, indent=1, allow_nan=False) + "\n")
        if target is not None and draw is not None:
            picture = target.parent / "figures" / f"{target.stem}.svg"
            picture.parent.mkdir(exist_ok=True)
            files.write_text(picture, draw(result))
        if not self.json:
            print(result_table(result))
            if target is not None:
                print(f"wrote {target}" + (f" and {picture}" if draw is not None else ""))
        return result

    def go_on(self) -> str:
        """What to do after an interruption."""
        return "" if self._folder is None else f"; the same command goes on from the pieces in {self._folder}"

    @property
    def _target(self) -> Path | None:
        quick = self.preset == "smoke"
        return self.out or (None if quick else Path("results") / f"{self.name}.{self.preset}.json")

    @property
    def _folder(self) -> Path | None:
        if self.resume is None and self.preset == "smoke":
            return None
        return (self.resume or Path("runs")) / f"{self.name}.{self.preset}"
