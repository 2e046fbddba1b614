"""What a request chooses, in its address or in its JSON document, within the limits of the server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..checks import short
from ..errors import DataError
from .config import Settings

MOST_DIGITS = 64


@dataclass(frozen=True)
class Ask:
    """What data must have in common to be predicted together. draws: tell what every sample said."""

    samples: int = 1
    seed: int = 0
    width: float | None = None
    draws: bool = False


@dataclass(frozen=True)
class Thresholds:
    """Where to abstain; see `Settings`."""

    min_confidence: float = 0.0
    max_entropy: float | None = None
    max_information: float | None = None
    max_set: int | None = None
    max_std: float | None = None


@dataclass(frozen=True)
class Option:
    """One choice of a request: what it may be, as JSON schema says it, and what it is where nothing was chosen."""

    about: str
    kind: str
    default: Any = None
    least: float | None = None
    most: float | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """In the words of JSON schema."""
        bounds = {"minimum": self.least, "maximum": self.most, "default": self.default}
        return {"type": self.kind, **{name: value for name, value in bounds.items() if value is not None}}

    def read(self, name: str, value: Any) -> Any:
        """A value of JSON, or the text of one, if it is what it may be.

        >>> Option("samples", "integer", least=1, most=64).read("samples", "16")
        16
        >>> Option("samples", "integer", least=1, most=64).read("samples", "many")
        Traceback (most recent call last):
        leanbayes.errors.DataError: samples: expected an integer from 1 to 64, received 'many'
        """
        found = _parsed(value) if isinstance(value, str) else value
        kinds = {"integer": (int,), "number": (int, float), "boolean": (bool,)}[self.kind]
        fine = type(found) in kinds
        if fine and self.kind != "boolean":
            low, high = self.least is None or found >= self.least, self.most is None or found <= self.most
            fine = low and high and abs(found) < 2**63
        if not fine:
            bounds = "" if self.least is None else f" of at least {self.least:g}"
            if self.least is not None and self.most is not None:
                bounds = f" from {self.least:g} to {self.most:g}"
            article = "an" if self.kind[0] in "aeiou" else "a"
            raise DataError(f"{name}: expected {article} {self.kind}{bounds}, received {short(value)}")
        return float(found) if self.kind == "number" else found


def options(
    settings: Settings, task: str, *, has_width: bool, is_conformal: bool, can_sample: bool
) -> dict[str, Option]:
    """The choices that requests have with a model."""
    found = {"deadline": Option("milliseconds to answer in", "number", settings.deadline, 1, settings.deadline)}
    if can_sample:
        found |= {
            "samples": Option("networks drawn", "integer", settings.samples, 1, settings.max_samples),
            "seed": Option("of the draws", "integer", settings.seed, 0, 2**63 - 1),
            "draws": Option("tell what every sample said", "boolean", False),
        }
    if has_width:
        found["width"] = Option("part of the ordered channels to keep", "number", None, settings.min_width, 1)
    if task == "regression":
        about = "abstain where the standard deviation is above"
        return found | {"max_std": Option(about, "number", settings.max_std, 0)}
    about = "answer where the most probable class has at least this probability"
    found |= {
        "min_confidence": Option(about, "number", settings.min_confidence, 0, 1),
        "max_entropy": Option("abstain where the entropy is above (nats)", "number", settings.max_entropy, 0),
        "max_information": Option(
            "abstain where the mutual information is above", "number", settings.max_information, 0
        ),
    }
    if is_conformal:
        found["max_set"] = Option("abstain where the prediction set has more classes", "integer", settings.max_set, 1)
    return found


def chosen(given: Mapping[str, Any], known: Mapping[str, Option]) -> dict[str, Any]:
    """Every option with the value that a request gives it, or its default; null is the default too."""
    if unknown := [name for name in given if name not in known]:
        fixed = "" if "samples" in known else "; the samples and the seed of an exported file are those of the file"
        raise DataError(f"expected options among {', '.join(known)}, received {short(unknown[0])}{fixed}")
    values = {name: option.default for name, option in known.items()}
    return values | {name: known[name].read(name, value) for name, value in given.items() if value is not None}


def _parsed(text: str) -> Any:
    """The value that a text of an address means; the text itself where it is none."""
    try:
        return json.loads(text[:MOST_DIGITS], parse_constant=str)
    except ValueError:
        return text
