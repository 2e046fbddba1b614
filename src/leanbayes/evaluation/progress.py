"""One bar over a whole evaluation: the stage it is at, how far all of it is, how long the rest will take."""

from __future__ import annotations

from types import TracebackType
from typing import Any


class Bar:
    """A rich progress bar on stderr, or nothing where it is not wanted or nobody is looking.

    Work is counted in data that a network has looked at; what was not foreseen makes the total grow.

    >>> with Bar(shown=False) as bar:
    ...     bar.expect(100)
    ...     bar.stage("test data")
    ...     bar.advance(64)
    """

    def __init__(self, *, shown: bool) -> None:
        self.progress: Any = None
        self.total = self.behind = 0.0
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
        """Add work to come; None where nobody knows how much."""
        self.total += amount or 0

    def stage(self, name: str) -> None:
        """Say what happens now."""
        if self.progress is not None:
            self.progress.update(self.task, description=name, total=self.total or None)

    def advance(self, amount: float) -> None:
        """Work that is behind us."""
        self.behind += amount
        self.total = max(self.total, self.behind)
        if self.progress is not None:
            self.progress.update(self.task, completed=self.behind, total=self.total)
