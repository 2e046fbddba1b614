"""`leanbayes bench`: what methods cost on a network and this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import CascadeSubcommandArgs as Anywhere  # before the name of the method or after it

from .. import files
from ..errors import ConfigError
from .choices import MethodChoice, Plain


@dataclass(frozen=True)
class Bench:
    """Time training steps and predictions of a network under several methods beside the plain one, in turns.

    Args:
        method: the method to time; several if left out.
        model: a network of the library (for --data), or your own as package.module:factory.
        options: of a network of the library, for example width=16.
        data: the data set that inputs are taken from.
        batch: how many of them.
        samples: networks drawn for a prediction.
        vary: time one method at several --values of this: batch, samples, threads, or one of its settings (density).
        values: of what varies.
        seconds: how long it may take, about.
        threads: of torch; as it is set if left out.
        out: an SVG file for the figure.
        json: print JSON instead of a table.
    """

    method: MethodChoice = Plain()  # noqa: RUF009  (frozen)
    model: Anywhere[str] = "auto"
    options: Anywhere[str] = ""
    data: Anywhere[str] = "digits"
    batch: Anywhere[int] = 64
    samples: Anywhere[int] = 16
    vary: Anywhere[str | None] = None
    values: Anywhere[tuple[float, ...]] = ()
    seconds: Anywhere[float] = 60.0
    threads: Anywhere[int | None] = None
    out: Anywhere[Path | None] = None
    json: Anywhere[bool] = False

    def run(self) -> dict[str, Any]:
        """Measure, print the table, or return it."""
        from .. import batches, checks
        from ..benchmark import benchmark, scaling
        from ..data import load
        from .networks import check, describe, first_batch, make

        chosen: Any = None if isinstance(self.method, Plain) else self.method
        if (self.vary is None) != (not self.values) or (self.vary and chosen is None):
            raise ConfigError(
                "vary: expected with --values and a method; try: leanbayes bench sparse-subspace --thinning 0 --vary "
                "density --values 0.05 0.1 0.2"
            )
        if self.out is not None:
            files.check_target(self.out)
        data = load(self.data)
        model = make(describe(self.model, data, options=self.options))
        check(model, data, data.num_classes or 1)
        inputs = batches.rows(first_batch(data.train)[0], 0, checks.whole_number("batch", self.batch))
        options: dict[str, Any] = {"task": data.task, "samples": self.samples, "seconds": self.seconds}
        options |= {"threads": self.threads, "progress": not self.json}
        found: Any
        if self.vary is not None:
            found = scaling(model, inputs, chosen, self.vary, self.values, **options)
        else:
            found = benchmark(model, inputs, **options | ({} if chosen is None else {"methods": [chosen]}))
        if self.out is not None:
            found.save_svg(self.out)
        if not self.json:
            print(found)
        return found.to_dict()  # type: ignore[no-any-return]
