"""`leanbayes plan`: what a conversion would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tyro.conf import CascadeSubcommandArgs as Anywhere  # before the name of the method or after it

from ..errors import ConfigError
from ..methods import MeanField
from .choices import MethodChoice, rules


@dataclass(frozen=True)
class Plan:
    """Show what a method would do to a network, layer by layer; nothing is changed.

    Args:
        method: how the layers become Bayesian.
        model: a network of the library (for --data), or your own as package.module:factory.
        options: of a network of the library, for example width=16.
        data: the data set that gives the shapes of inputs and outputs.
        only: a name glob or module type (Linear, Conv2d) that the method is limited to.
        strict: fail if a layer with parameters would be left alone.
        json: print JSON instead of a table.
    """

    method: MethodChoice = MeanField()  # noqa: RUF009  (frozen)
    model: Anywhere[str] = "auto"
    options: Anywhere[str] = ""
    data: Anywhere[str] = "digits"
    only: Anywhere[str | None] = None
    strict: Anywhere[bool] = False
    json: Anywhere[bool] = False

    def run(self) -> dict[str, Any]:
        """Print the table, or return it."""
        from ..convert.plan import plan
        from ..data import load
        from .networks import describe, make

        chosen = rules(self.method, self.only)
        if chosen is None:
            raise ConfigError("expected a method to plan, received plain; try: leanbayes plan mean-field")
        # a network of the user's own has its shapes already
        description = (
            {"name": self.model} if ":" in self.model else describe(self.model, load(self.data), options=self.options)
        )
        done = plan(make(description), chosen, strict=self.strict)
        if not self.json:
            print(done)
        return done.to_dict()
