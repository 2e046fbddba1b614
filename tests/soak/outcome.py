"""What one case of a soak test showed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """failure: a line that says what is wrong, or None. notes: names of what else is counted, such as "kernels ran"."""

    failure: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Failures of one kind are counted together: the words in front of the first colon."""
        return (self.failure or "").split(":")[0].split(" (")[0]
