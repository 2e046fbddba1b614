"""The progress bar of an evaluation: its stage, the share that is done, the time that is left."""

from __future__ import annotations

from types import TracebackType
from typing import Any


class Bar:
    """A rich progress bar on stderr, or nothing if it is not wanted or stderr is no terminal.

    Work is counted in data; the total grows if there is more of it than expected.

    >>> with Bar(shown=False) as bar:
    ...     bar.expect(100)
    ...     bar.stage("test data")
    ...     bar.advance(64)
    """

    def __init__(self, *, shown: bool) -> None:
        self.progress: Any = None
        self.total = self.done = 0.0
        if not shown:
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
            # Stages differ in speed: the estimate looks back further than usual.
            self.progress = Progress(*columns, console=console, transient=True, speed_estimate_period=120)

    def __enter__(self) -> Bar:
        if self.progress is not None:
            self.progress.start()
            self.task = self.progress.add_task("", total=None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.progress is not None:
            self.progress.stop()

    def expect(self, amount: float | None) -> None:
        """Add to the total; None where the amount is unknown."""
        self.total += amount or 0

    def stage(self, name: str) -> None:
        """Show the name of the current stage."""
        if self.progress is not None:
            self.progress.update(self.task, description=name, total=self.total or None)

    def advance(self, amount: float) -> None:
        """Add to the work that is done."""
        self.done += amount
        self.total = max(self.total, self.done)
        if self.progress is not None:
            self.progress.update(self.task, completed=self.done, total=self.total)
