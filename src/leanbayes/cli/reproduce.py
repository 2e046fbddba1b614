"""`leanbayes reproduce`: a table of a paper, ours beside theirs."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from .. import files
from ..errors import ConfigError
from ..optional import require
from ..recipes.catalogue import RECIPES, find
from . import checks

if TYPE_CHECKING:
    from ..recipes.experiment import Experiment
    from ..recipes.jobs import Jobs


@dataclass(frozen=True)
class Reproduce:
    """Reproduce a table or figure; without a name, list what there is.

    Args:
        name: of the recipe.
        preset: smoke takes seconds on embedded data; cpu minutes to hours on real data; paper is as published.
        out: where the result is written; by default results/NAME.PRESET.json, unless the preset is smoke.
        resume: a folder for finished pieces, so that an interrupted run goes on where it stopped; by default runs,
            unless the preset is smoke.
        only: run the pieces whose names contain this text or match this pattern ("*seed 0", several with "|" between
            them), and no others; the same command without it makes the table, with --out a table of these alone.
            Several of these may run at a time.
        engine: process runs the pieces here, one after another; ray runs them as tasks on a Ray cluster.
        address: of the cluster, host:port or auto; without it Ray is started on this machine.
        list: list the pieces, and which of them are finished, instead of running them.
        json: print JSON instead of a table.
    """

    name: Annotated[str, tyro.conf.Positional] = ""
    preset: Literal["smoke", "cpu", "paper"] = "smoke"
    out: Path | None = None
    resume: Path | None = None
    only: str = ""
    engine: Literal["process", "ray"] = "process"
    address: str | None = None
    list: bool = False
    json: bool = False

    def run(self) -> Any:
        """Run it and print ours beside the paper's."""
        if not self.name:
            return self._recipes()
        if self.engine != "ray" and self.address is not None:
            raise ConfigError("--address: expected --engine ray as well")
        recipe, target = find(self.name, self.preset), self._target
        for package in ("matplotlib", "sklearn", "scipy", "PIL"):
            require(package, "all", "leanbayes reproduce")
        if self.only and not self.list and self._folder is None:
            raise ConfigError("--only: expected a folder for the pieces it runs, received none; add --resume FOLDER")
        is_table = not self.list and (not self.only or self.out is not None)
        if target is not None and is_table:
            if self.out is None:
                target.parent.mkdir(exist_ok=True)
            checks.targets(out=target)

        from ..recipes.experiment import reproduce
        from ..recipes.jobs import Jobs
        from ..recipes.spread import spread
        from ..recipes.table import result_table

        with contextlib.ExitStack() as stack:
            folder = self._folder
            if self.engine == "ray" and not self.list:
                folder = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()), self.name)
                spread(self.name, self.preset, folder, self.address, _tell, self.only)
            experiment, jobs = recipe.load(), Jobs(folder, _tell)
            if not is_table:
                return self._pieces(experiment, jobs)
            if not any(piece.matches(self.only) for piece in experiment.pieces(self.preset)):
                raise self._no_piece()
            result = reproduce(self.name, self.preset, resume=folder, tell=_tell, only=self.only)
        written = [] if target is None else self._write(result, target, experiment)
        if not self.json:
            print(result_table(result))
            if written:
                print(f"wrote {' and '.join(map(str, written))}")
        return result

    def go_on(self) -> str:
        """What to do after an interruption."""
        return "" if self._folder is None else f"; the same command goes on from the pieces in {self._folder}"

    def _recipes(self) -> dict[str, str]:
        if self.only or self.list:
            raise ConfigError("name: expected the name of a recipe with --only and --list, received none")
        known = {name: recipe.summary for name, recipe in RECIPES.items()}
        if not self.json:
            for name, text in known.items():
                print(f"{name:{max(map(len, known))}}  {text}")
        return known

    def _pieces(self, experiment: Experiment, jobs: Jobs) -> Sequence[dict[str, Any]]:
        """Run the chosen pieces, unless --list; returns the chosen pieces with their seconds."""
        chosen = [piece for piece in experiment.pieces(self.preset) if piece.matches(self.only)]
        if not chosen:
            raise self._no_piece()
        if not self.list:
            experiment.run(self.preset, jobs, self.only)
        found = [{"piece": piece.label, "seconds": jobs.seconds_of(piece.key)} for piece in chosen]
        if not self.json:
            for one in found:
                done = "to do" if one["seconds"] is None else f"{one['seconds']:.1f} s"
                print(f"{done:>10}  {one['piece']}")
        return found

    def _no_piece(self) -> ConfigError:
        return ConfigError(f"--only: expected the name of a piece or a pattern, received {self.only!r}; try --list")

    def _write(self, result: dict[str, Any], target: Path, experiment: Experiment) -> Sequence[Path]:
        """Write the result and its figure, if it has one."""
        files.write_text(target, json.dumps(result, indent=1, allow_nan=False) + "\n")
        if experiment.figure is None:
            return [target]
        picture = target.parent / "figures" / f"{target.stem}.svg"
        picture.parent.mkdir(exist_ok=True)
        files.write_text(picture, experiment.figure(result))
        return [target, picture]

    @property
    def _target(self) -> Path | None:
        quick = self.preset == "smoke"
        return self.out or (None if quick else Path("results") / f"{self.name}.{self.preset}.json")

    @property
    def _folder(self) -> Path | None:
        if self.resume is None and self.preset == "smoke":
            return None
        return (self.resume or Path("runs")) / f"{self.name}.{self.preset}"


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
