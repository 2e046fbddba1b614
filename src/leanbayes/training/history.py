"""The numbers of a training run: in memory, as JSON lines, and at trackers."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import checks
from ..errors import ArtifactError, LeanBayesWarning
from ..files import write_text
from .noise_trials import Tuning
from .trackers import Tracker, Trackers


@dataclass
class History:
    """The result of `fit`: a row of plain numbers an epoch.

    stopped: why training ended before its last epoch, or None.
    tuning: what `tune_noise_` tried and chose at the end, or None.

    >>> history = History([{"epoch": 0, "loss": 2.0}, {"epoch": 1, "loss": 1.5}])
    >>> history["loss"], history.last["epoch"], len(history)
    ([2.0, 1.5], 1, 2)
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    stopped: str | None = None
    tuning: Tuning | None = None

    def __getitem__(self, name: str) -> list[Any]:
        """The values of a number over the epochs."""
        if self.rows and not any(name in row for row in self.rows):
            raise KeyError(f"expected one of {', '.join(self.rows[-1])}, received {checks.short(name)}")
        return [row.get(name) for row in self.rows]

    @property
    def last(self) -> dict[str, Any]:
        """The row of the last epoch."""
        return self.rows[-1] if self.rows else {}

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        tuning = {} if self.tuning is None else {"tuning": self.tuning.to_dict()}
        return {"rows": self.rows, "stopped": self.stopped, **tuning}


class Journal:
    """Writes rows to a JSONL file and gives them to trackers as they come.

    The file holds the rows of one run and is written anew from those known at the start, so that a resumed run neither
    repeats nor loses any. If it cannot be written there is one warning, and the next row tries to write all of them.

    rows: those of the run; the caller adds to them before `append`.
    """

    def __init__(self, log: str | Path | None, trackers: list[Tracker], rows: list[dict[str, Any]]) -> None:
        self.trackers = Trackers(trackers, rows[-1]["step"] if rows else 0)
        self.path = None if log is None else Path(log)
        self.rows, self.whole, self.warned = rows, False, False
        self._log(None)

    def append(self, row: dict[str, Any]) -> None:
        """Write one more row."""
        self._log(row)
        self.trackers.log(row)

    def _log(self, row: dict[str, Any] | None) -> None:
        if self.path is None:
            return
        try:
            if self.whole and row is not None:
                self.whole = False  # unless this goes well, the last line may be half of one
                with open(self.path, "a", encoding="utf-8") as file:
                    file.write(_line(row))
            else:
                write_text(self.path, "".join(map(_line, self.rows)))
            self.whole = True
        except (OSError, ArtifactError) as error:
            if not self.warned:
                warnings.warn(
                    f"log: the rows cannot be written to {str(self.path)!r} ({error}); training goes on, and they are "
                    "in what fit returns",
                    LeanBayesWarning,
                    stacklevel=2,
                )
            self.warned = True

    def close(self) -> None:
        """Close what is open."""
        self.trackers.close()


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row) + "\n"
