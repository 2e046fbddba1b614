"""Trackers, which get the numbers of a training run as it goes: an interface, and TensorBoard."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from .. import checks
from ..errors import LeanBayesWarning
from ..optional import require


@runtime_checkable
class Tracker(Protocol):
    """The methods that ``fit(trackers=[...])`` calls, in the first process alone; any object with them is a tracker.

    It is made before training and may be sent to another process, so it opens files and connections in `start`.
    """

    def start(self, step: int) -> None:
        """Called at the start (step 0), or when a run resumes after this step. An error here ends `fit`."""

    def log(self, values: dict[str, float], step: int) -> None:
        """Called with the numbers of an epoch that ended with this step. An error here gives a warning."""

    def close(self) -> None:
        """Called at the end, also if training failed."""


class TensorBoardTracker:
    """Writes the numbers of training into a folder that ``tensorboard --logdir folder`` shows.

    `pip install 'leanbayes[tensorboard]'`. ``fit(tensorboard=folder)`` is the same.
    """

    def __init__(self, folder: Any) -> None:
        self.folder: Path = checks.path("folder", folder)
        require("tensorboard", "tensorboard", "TensorBoardTracker")
        self.writer: Any = None

    def start(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # purge_step hides what an interrupted run logged after the checkpoint that this one resumes from
        self.writer = SummaryWriter(str(self.folder), purge_step=step + 1 if step else 0)

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.writer = None


def check(trackers: Iterable[Any]) -> list[Tracker]:
    """The trackers as a list."""

    def tracker(name: str, value: Any) -> Tracker:
        if isinstance(value, type) or not isinstance(value, Tracker):
            checks.refuse(name, "an object with start(step), log(values, step) and close()", value)
        return value

    return checks.iterable_of("trackers", trackers, "trackers", tracker, hint="pass [tracker]")


class Trackers:
    """Several trackers of one run. One that fails during training is left out from then on, with a warning."""

    def __init__(self, trackers: list[Tracker], step: int) -> None:
        self.started: list[Tracker] = []
        try:
            for tracker in trackers:
                self.started.append(tracker)
                tracker.start(step)
        except BaseException:
            self.close()
            raise
        self.working = list(self.started)

    def log(self, row: dict[str, Any]) -> None:
        """Give every tracker the numbers of an epoch."""
        values = {name: value for name, value in row.items() if isinstance(value, float)}
        for tracker in list(self.working):
            self._attempt(tracker, lambda tracker=tracker: tracker.log(values, row["step"]))

    def close(self) -> None:
        """Close them all."""
        self.working = self.started
        for tracker in list(self.started):
            self._attempt(tracker, tracker.close)
        self.started = self.working = []

    def _attempt(self, tracker: Tracker, action: Any) -> None:
        try:
            action()
        except Exception as error:  # of a server or a disk: no reason to lose a training run
            self.working = [other for other in self.working if other is not tracker]
            warnings.warn(
                f"trackers: {type(tracker).__name__} failed ({error}); training goes on, and the numbers are in what "
                "fit returns",
                LeanBayesWarning,
                stacklevel=3,
            )
