"""The progress bar of `fit`: loss, nll, kl and the last validation metric, on a terminal only."""

from __future__ import annotations

from typing import Any

METRICS = ("val_accuracy", "val_rmse", "val_nll")  # the first that a row has is shown


class Bar:
    """A rich progress bar; nothing is shown if ``show`` is False or stderr is no terminal."""

    def __init__(self, epochs: int, batches: int, done: int, *, show: bool) -> None:
        self.epochs, self.metric, self.progress = epochs, "", None
        if not show:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        if not console.is_terminal:
            return
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=console,
            transient=True,
        )
        self.task = self.progress.add_task("", total=epochs * batches or None, completed=done, numbers="")
        self.progress.start()

    def step(self, epoch: int, done: int, loss: float, nll: float, kl: float) -> None:
        """Show one more training step."""
        if self.progress is not None:
            numbers = f"loss {loss:.4g}  nll {nll:.4g}  kl {kl:.4g}  {self.metric}"
            self.progress.update(
                self.task, completed=done, description=f"epoch {epoch + 1}/{self.epochs}", numbers=numbers
            )

    def epoch(self, row: dict[str, Any]) -> None:
        """Remember the validation metric of an epoch."""
        for name in METRICS:
            if isinstance(row.get(name), float):
                self.metric = f"{name.removeprefix('val_')} {row[name]:.4g}"
                return

    def close(self) -> None:
        """Remove the bar."""
        if self.progress is not None:
            self.progress.stop()


def tell(text: str) -> None:
    """Print a line to stderr if it is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        console.print(text, highlight=False)
