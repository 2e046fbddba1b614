"""What a recipe is: one table or figure, three presets, resumable jobs, and one shape for all results.

No torch here: the command line lists recipes without paying for an import of torch.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import importlib
import json
import math
import pkgutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .. import files
from .._version import __version__
from ..errors import ConfigError, DataError

if TYPE_CHECKING:
    from torch import nn

Preset = Literal["smoke", "cpu", "paper"]
Metrics = dict[str, float]
_RECIPES: dict[str, Recipe] = {}


@dataclass(frozen=True)
class Row:
    """One line of a table: the metrics of each seed, and what the paper prints there.

    setting: what varies from line to line: a width, a density, a sample count.

    >>> Row("mnist", "mean-field", 32, [{"accuracy": 0.99}], paper={"accuracy": 0.991}).to_dict()["metrics"]
    {'accuracy': {'mean': 0.99, 'std': None, 'n': 1}}
    """

    dataset: str
    method: str
    setting: str | float
    runs: Sequence[Metrics]
    paper: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Mean, standard deviation and count over the seeds."""
        names = dict.fromkeys(name for run in self.runs for name in run)
        metrics = {name: summary([run[name] for run in self.runs if name in run]) for name in names}
        return {
            "dataset": self.dataset,
            "method": self.method,
            "setting": self.setting,
            "metrics": metrics,
            "paper": dict(self.paper),
        }


class Jobs:
    """Runs the pieces of a recipe, each once: what an earlier run finished is read back instead.

    folder: where finished pieces are kept as JSON; None keeps nothing.
    tell: called with a line of text when a piece starts.
    seconds: what all pieces took, also those of earlier runs; one that asks for others takes as long as all of them.

    >>> jobs = Jobs(None)
    >>> jobs({"method": "mean-field", "seed": 0}, lambda: {"accuracy": 0.9})
    {'accuracy': 0.9}
    """

    def __init__(self, folder: Path | None, tell: Callable[[str], None] = lambda text: None) -> None:
        self.folder, self.tell, self.seconds = folder, tell, 0.0
        self._earlier, self._counted = 0.0, set[str]()  # seconds of earlier runs; pieces whose seconds are counted
        self._networks: dict[str, nn.Module] = {}

    def __call__(self, key: Mapping[str, Any], work: Callable[[], Metrics], label: str = "") -> Metrics:
        """The metrics of the piece that ``key`` describes completely: whatever changes them must be in it."""
        label = label or ", ".join(str(value) for value in key.values())
        text, digest = _told(key)
        path = None if self.folder is None else self.folder / f"{digest}.json"
        if path is not None and path.exists():
            self.tell(f"{label}: already done")
            piece = _piece(path)
            took = 0.0 if digest in self._counted else piece["seconds"]
            self._earlier, self.seconds = self._earlier + took, self.seconds + took
        else:
            self.tell(label)
            began, earlier, before = time.perf_counter(), self._earlier, self.seconds
            metrics = {name: float(value) for name, value in work().items()}
            took = time.perf_counter() - began + self._earlier - earlier
            self.seconds = before + took
            piece = {"key": json.loads(text), "seconds": took, "metrics": metrics}
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                # JSON has no infinity: float() reads its name back
                told = {k: v if math.isfinite(v) else repr(v) for k, v in metrics.items()}
                files.write_text(path, json.dumps({**piece, "metrics": told}))
        self._counted.add(digest)
        return dict(piece["metrics"])

    def network(
        self,
        key: Mapping[str, Any],
        fresh: Callable[[], nn.Module],
        train: Callable[..., nn.Module],
        label: str = "",
        *,
        anew: bool = False,
    ) -> nn.Module:
        """A copy of the trained network that ``key`` describes completely, trained once for all pieces that ask for it.

        fresh: the plain network, which a file is read into. train: is given options of `fit`, a checkpoint to go on
        from, so that an interrupted training continues. anew: train it from the start in any case, for callbacks
        that have to see it all.

        The file is kept in networks/ beside the folder of this recipe, so that recipes share it; without a folder the
        network is kept in memory.
        """
        from ..artifacts import load, save

        text, digest = _told(key)
        path = None if self.folder is None else self.folder.parent / "networks" / f"{digest}.safetensors"
        if path is not None and path.exists() and not anew:
            return load(path, into=fresh())
        if digest not in self._networks or anew:
            self.tell(label or ", ".join(str(value) for value in key.values()))
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                halfway = path.with_suffix(".checkpoint")
                network = train() if anew else train(checkpoint=halfway, resume=True)
                save(network, path, metadata={"key": json.loads(text)})
                halfway.unlink(missing_ok=True)
                return network
            self._networks[digest] = train()
        return copy.deepcopy(self._networks[digest])


def _told(key: Mapping[str, Any]) -> tuple[str, str]:
    """A key as JSON, and the name of its file."""
    text = json.dumps({"version": __version__, **key}, sort_keys=True, default=str)
    return text, hashlib.sha256(text.encode()).hexdigest()[:16]


def _piece(path: Path) -> dict[str, Any]:
    try:
        piece = json.loads(path.read_text(encoding="utf-8"))
        return {"seconds": float(piece["seconds"]), "metrics": {k: float(v) for k, v in piece["metrics"].items()}}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(
            f"{path}: expected a finished piece of a recipe ({error!r}); delete it to run it again"
        ) from error


@dataclass(frozen=True)
class Recipe:
    """A named table: ``rows(preset, jobs)`` yields its lines.

    seeds: how many each preset uses.
    """

    name: str
    summary: str
    seeds: Mapping[str, int]
    rows: Callable[[str, Jobs], Iterator[Row]]

    @property
    def figure(self) -> Callable[[Mapping[str, Any]], str] | None:
        """Draws a result as SVG, where the recipe's file has a function of that name."""
        return getattr(sys.modules[self.rows.__module__], "figure", None)


def recipe(name: str, summary: str, seeds: Mapping[str, int]) -> Callable[[Any], Any]:
    """Register a function of (preset, jobs) that yields rows."""

    def decorate(rows: Callable[[str, Jobs], Iterator[Row]]) -> Callable[[str, Jobs], Iterator[Row]]:
        _RECIPES[name] = Recipe(name, summary, seeds, rows)
        return rows

    return decorate


def recipes() -> dict[str, Recipe]:
    """Every recipe by name: importing a module of this room registers what is in it, and none of them imports torch.

    >>> "baselines" in recipes()
    True
    """
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"{__package__}.{module.name}")
    return dict(sorted(_RECIPES.items()))


def check(name: str, preset: str) -> Recipe:
    """The recipe of that name, if it has the preset.

    >>> check("baseline", "smoke")
    Traceback (most recent call last):
    leanbayes.errors.ConfigError: recipe: expected one of baselines, ..., received 'baseline'; did you mean 'baselines'?
    """
    known = recipes()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"recipe: expected one of {', '.join(known)}, received {name!r}{hint}")
    if preset not in known[name].seeds:
        raise ConfigError(f"preset of {name}: expected one of {', '.join(known[name].seeds)}, received {preset!r}")
    return known[name]


def reproduce(
    name: str, preset: str = "smoke", *, resume: Path | None = None, tell: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Run a recipe; the result has the one shape that documents, reports and checks read.

    resume: a folder for finished pieces. tell: called with a line of text as the run goes on.
    """
    chosen, jobs = check(name, preset), Jobs(resume, tell)
    rows = [row.to_dict() for row in chosen.rows(preset, jobs)]
    return {
        "recipe": name,
        "preset": preset,
        "command": f"leanbayes reproduce {name} --preset {preset}",
        "version": __version__,
        "seeds": chosen.seeds[preset],
        "seconds": round(jobs.seconds, 1),
        "rows": rows,
    }


def summary(values: Sequence[float]) -> dict[str, float | int | None]:
    """Mean, sample standard deviation (None for one value) and count.

    Where one of the values is not finite so is their mean, which JSON cannot say: it is None, and not the mean of the
    rest, which would hide a run that failed.

    >>> summary([1.0, 3.0])
    {'mean': 2.0, 'std': 1.4142135623730951, 'n': 2}
    >>> summary([1.0, float("nan")])
    {'mean': None, 'std': None, 'n': 2}
    """
    count = len(values)
    if not all(math.isfinite(v) for v in values):
        return {"mean": None, "std": None, "n": count}
    mean = sum(values) / count
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (count - 1)) if count > 1 else None
    return {"mean": mean, "std": spread, "n": count}
