"""`Method`, the base class of the configs of methods. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Method:
    """Base of all methods; a subclass is a frozen dataclass under `leanbayes.registry.register`.

    The file of a config imports no torch: the command line reads the fields without loading it. What the method does
    is an `leanbayes.convert.implementation.Implementation`, registered against the config in a module called
    ``implementation`` beside it, which is imported when it is first needed.
    """

    version: ClassVar[int] = 1
    summary: ClassVar[str] = ""
    random: ClassVar[bool] = True
    """Whether its layers draw anything; a baseline may not."""
    follows_channels: ClassVar[bool] = False
    """Whether it has to follow the channels through the forward pass, and so refuses a model that has none to order."""

    @property
    def networks(self) -> int:
        """How many networks each of its layers holds."""
        return 1
