"""`leanbayes demo`: the whole library on data it carries."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..optional import require
from . import checks


@dataclass(frozen=True)
class Demo:
    """Train a plain network and Bayesian ones on the embedded digits, test them on digits and letters, write a page.

    Args:
        epochs: passes through the training data.
        samples: networks drawn from each posterior.
        seed: of everything.
        html: the page to write.
        json: print JSON instead of a table.
    """

    epochs: int = 40
    samples: int = 32
    seed: int = 0
    html: Path = Path("report.html")
    json: bool = False

    def run(self) -> dict[str, Any]:
        """Print the table and write the page."""
        checks.counts(epochs=self.epochs, samples=self.samples)
        checks.seed(self.seed)
        checks.targets(html=self.html)
        for package in ("matplotlib", "sklearn"):
            require(package, "all", "leanbayes demo")

        import torch

        from ..evaluation import Evaluation, compare
        from ..recipes.baselines import CONTESTANTS, BaselineSetup, train_and_evaluate

        ood = ("not-digits/letters", "not-digits/photos")
        setup = BaselineSetup("digits", "convnet", ood, epochs=self.epochs, samples=self.samples)
        torch.set_num_threads(1)  # the network is small: threads that wait for each other cost more than they bring
        results: list[Evaluation] = []
        for step, name in enumerate(CONTESTANTS, 1):
            print(f"[{step}/{len(CONTESTANTS)}] training: {name}", file=sys.stderr, flush=True)
            results += train_and_evaluate(name, setup, self.seed)
        table = compare(results)
        table.save_html(self.html)
        if not self.json:
            print(table)
            print(f"wrote {self.html}: open it in a browser")
        return table.to_dict()
