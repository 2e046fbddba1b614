"""`leanbayes demo`: what a Bayesian network is good for, on data that come with the package."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..optional import require
from . import checks


@dataclass(frozen=True)
class Demo:
    """Train a network on digits, show it letters and photographs, make it Bayesian in three ways, and write a page.

    Args:
        epochs: passes through the training data; each Bayesian network is trained for a third as many more.
        samples: networks drawn from each posterior.
        seed: of everything.
        html: the page to write.
        json: print JSON instead of text.
    """

    epochs: int = 60
    samples: int = 32
    seed: int = 0
    html: Path = Path("report.html")
    json: bool = False

    def run(self) -> dict[str, Any]:
        """Tell the story and write the page."""
        checks.counts(epochs=self.epochs, samples=self.samples)
        checks.seed(self.seed)
        checks.targets(html=self.html)
        for package in ("matplotlib", "sklearn"):
            require(package, "all", "leanbayes demo")

        from .demo_story import tell

        def say(text: str) -> None:
            print(text, file=sys.stderr if self.json else sys.stdout, flush=True)

        return tell(self.epochs, self.samples, self.seed, self.html, say)
