"""Groups of channels: their places in modules, and the constraints on dropping them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ...errors import ConversionError


@dataclass(frozen=True)
class Use:
    """The place of a group's channels in a module: channel c is ``block`` features from ``offset + c * block`` on.

    dim: the dimension (negative) of the module's input, for producers of its output, that holds these features.

    >>> Use("fc", offset=10, block=2).features([0, 3])
    [10, 11, 16, 17]
    """

    module: str
    offset: int = 0
    block: int = 1
    dim: int = -1

    def features(self, channels: Iterable[int]) -> list[int]:
        """The features of the module that belong to these channels of the group."""
        return [self.offset + c * self.block + i for c in channels for i in range(self.block)]


@dataclass(frozen=True)
class Constraint:
    """A constraint on the channels kept, which a module sees as ``runs`` runs of equal length.

    "equal": every run keeps the same number (the inputs and the outputs of a grouped convolution).
    "whole": a run is kept or dropped as a whole (the groups of a GroupNorm).
    """

    kind: Literal["equal", "whole"]
    runs: int
    module: str

    def allows(self, size: int, keep: Sequence[int]) -> bool:
        """Whether a group of this size may keep these channels."""
        length = size // self.runs
        counts = [0] * self.runs
        for channel in keep:
            counts[channel // length] += 1
        return len(set(counts)) == 1 if self.kind == "equal" else set(counts) <= {0, length}


@dataclass(frozen=True)
class Group:
    """Channels that are kept or dropped together in all these places.

    name: its first producer, with the range of its outputs where it is a part of them.
    through: modules in between with a state per channel: norm layers, PReLU, depthwise convolutions (whose features are
    counted at their output).
    reasons: why no channel may be dropped; empty where they may.
    """

    name: str
    size: int
    producers: tuple[Use, ...] = ()
    consumers: tuple[Use, ...] = ()
    through: tuple[Use, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def fixed(self) -> bool:
        """Whether no channel may be dropped."""
        return bool(self.reasons)

    def check(self, keep: Sequence[int]) -> None:
        """Raise unless these channels (sorted, each once) may be kept and the rest dropped."""
        if sorted(set(keep)) != list(keep) or not keep or keep[0] < 0 or keep[-1] >= self.size:
            raise ConversionError(
                f"group '{self.name}': expected sorted channels of 0..{self.size - 1}, received {list(keep)}"
            )
        if len(keep) < self.size and self.reasons:
            raise ConversionError(f"group '{self.name}' cannot lose channels: {'; '.join(self.reasons)}")
        for constraint in self.constraints:
            if not constraint.allows(self.size, keep):
                rule = "keep as many channels of each" if constraint.kind == "equal" else "keep or drop each as a whole"
                raise ConversionError(
                    f"group '{self.name}': '{constraint.module}' sees {constraint.runs} runs of "
                    f"{self.size // constraint.runs} channels; {rule}"
                )
