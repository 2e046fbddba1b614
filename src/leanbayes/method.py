"""What a method is: a frozen config that knows which modules it can treat and what it puts in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import nn

    from .posteriors.base import Posterior


@dataclass(frozen=True)
class Method:
    """Base of all methods; a subclass is a frozen dataclass under `leanbayes.registry.register`.

    Files with methods import torch inside functions only: the command line reads the fields without loading it.
    """

    version: ClassVar[int] = 1
    summary: ClassVar[str] = ""
    random: ClassVar[bool] = True
    """Whether its layers draw anything; a baseline may not."""
    follows_channels: ClassVar[bool] = False
    """Whether it has to follow the channels through the forward pass, and so refuses a model that has none to order."""

    def refuses(self, module: nn.Module) -> str | None:
        """Why this method cannot treat a module, or None where it can."""
        raise NotImplementedError

    def selects(self, module: nn.Module, model: nn.Module) -> bool:
        """Whether the method on its own, without rules, takes this module of the model."""
        return self.refuses(module) is None

    def parts(self, model: nn.Module) -> list[tuple[Method, Callable[[nn.Module], bool]]]:
        """The method on its own as rules: what which modules of the model are given; the first that takes one wins."""
        return [(self, lambda module: self.selects(module, model))]

    def prepare(self, modules: Mapping[str, nn.Module], memo: dict[int, Posterior]) -> None:
        """What a method has to know of all its modules together, by name, before the first `convert`; kept in memo."""

    def note(self, module: nn.Module, memo: dict[int, Posterior]) -> str:
        """What the plan remarks on a module, beside the rule that chose it; empty unless there is something to say."""
        return ""

    def convert(self, module: nn.Module, memo: dict[int, Posterior]) -> nn.Module:
        """The module's replacement; the module itself is left as it is.

        memo: posteriors by the identity of the parameter they came from, so that tied parameters share one.
        """
        raise NotImplementedError

    def attach(self, model: nn.Module) -> None:
        """What a method has to do once all its layers stand in the model."""

    def detach(self, model: nn.Module) -> None:
        """And once they have been taken out again."""

    def callbacks(self, model: nn.Module) -> list[Any]:
        """What has to happen around training steps (see `leanbayes.training.callbacks`)."""
        return []
