"""`Staged`: the interface of models that decide for each datum how much of them to ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

Ask = Callable[..., Any]
"""ask(part, inputs, meaning, begin, samples): the `Predictive` of a part of a model, of these inputs read by a
likelihood, from sample ``begin`` up to ``samples`` (None: as many as `predict` was asked for); None where there are no
others."""


class Staged(nn.Module):
    """A model whose parts can answer by themselves: `predict` lets it choose, and `save` writes how it does."""

    def answer(self, inputs: Any, meaning: Any, ask: Ask) -> Any:
        """The `Predictive` of a batch; meaning: the likelihood that `predict` was given."""
        raise NotImplementedError

    def described(self) -> dict[str, Any]:
        """How it chooses, as JSON."""
        raise NotImplementedError

    def adopt_(self, described: Any) -> None:
        """Choose as another did that described itself; raises a ConfigError where it does not fit."""
        raise NotImplementedError
