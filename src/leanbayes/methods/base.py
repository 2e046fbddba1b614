"""What a method is: a frozen config that knows which modules it can treat and what it puts in their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import nn

    from ..posteriors.base import Posterior


@dataclass(frozen=True)
class Method:
    """Base of all methods; a subclass is a frozen dataclass under `leanbayes.registry.register`.

    Files with methods import torch inside functions only: the command line reads the fields without loading it.
    """

    version: ClassVar[int] = 1
    summary: ClassVar[str] = ""

    def refuses(self, module: nn.Module) -> str | None:
        """Why this method cannot treat a module, or None where it can."""
        raise NotImplementedError

    def selects(self, module: nn.Module, model: nn.Module) -> bool:
        """Whether the method on its own, without rules, takes this module of the model."""
        return self.refuses(module) is None

    def convert(self, module: nn.Module, memo: dict[int, Posterior]) -> nn.Module:
        """The module's replacement; the module itself is left as it is.

        memo: posteriors by the identity of the parameter they came from, so that tied parameters share one.
        """
        raise NotImplementedError

    def callbacks(self, model: nn.Module) -> list[Any]:
        """What has to happen around training steps (see `leanbayes.train.callbacks`)."""
        return []
