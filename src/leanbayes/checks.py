"""Checks of arguments, for every public function; each returns the value, or raises an error of one form.

"samples: expected a whole number of at least 1, received 0". Numbers of numpy are numbers; True and False are not. No
torch here: configs are checked without an import of torch.
"""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import ConfigError, LeanBayesError

if TYPE_CHECKING:
    from torch import nn

Error = type[LeanBayesError]
MOST_SAMPLES = 2**20
NAMES = "number names by np.unique(y, return_inverse=True)[1]"


def whole_number(
    name: str,
    value: Any,
    *,
    at_least: int | None = 1,
    at_most: int | None = None,
    error: Error = ConfigError,
    hint: str = "",
) -> int:
    """An int within bounds.

    >>> whole_number("samples", 0)
    Traceback (most recent call last):
    leanbayes.errors.ConfigError: samples: expected a whole number of at least 1, received 0
    """
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or not _within(value, at_least, at_most):
        refuse(name, f"a whole number{_bounds(at_least, at_most)}", value, error, hint)
    return int(value)


def samples(value: Any, *, error: Error = ConfigError) -> int:
    """The number of samples, limited so that a typing error does not fill the memory."""
    return whole_number("samples", whole_number("samples", value, error=error), at_most=MOST_SAMPLES, error=error)


def label(name: str, value: Any, *, error: Error = ConfigError) -> int:
    """A whole number that fits a tensor of labels."""
    return whole_number(name, value, at_least=-(2**63), at_most=2**63 - 1, error=error)


def number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    error: Error = ConfigError,
    hint: str = "",
) -> float:
    """A finite float within bounds.

    >>> number("lr", float("nan"), above=0)
    Traceback (most recent call last):
    leanbayes.errors.ConfigError: lr: expected a finite number above 0, received nan
    """
    try:
        found = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        found = math.nan
    inside = (above is None or found > above) and (below is None or found < below)
    if not math.isfinite(found) or not inside or not _within(found, at_least, at_most):
        limits = (("above", above), ("of at least", at_least), ("below", below), ("of at most", at_most))
        bounds = " and ".join(f"{word} {limit:g}" for word, limit in limits if limit is not None)
        refuse(name, f"a finite number {bounds}".rstrip(), value, error, hint)
    return found


def probability(name: str, value: Any, *, error: Error = ConfigError, hint: str = "") -> float:
    """A number from 0 to 1."""
    return number(name, value, at_least=0, at_most=1, error=error, hint=hint)


def flag(name: str, value: Any, *, error: Error = ConfigError) -> bool:
    """True or False; other types are refused.

    >>> flag("progress", "no")
    Traceback (most recent call last):
    leanbayes.errors.ConfigError: progress: expected True or False, received 'no'
    """
    if not isinstance(value, bool):
        refuse(name, "True or False", value, error)
    return value


def one_of(name: str, value: Any, choices: Iterable[Any], *, error: Error = ConfigError) -> Any:
    """One of a few names.

    >>> one_of("at", "mean", ("samples", "means"))
    Traceback (most recent call last):
    leanbayes.errors.ConfigError: at: expected one of 'samples', 'means', received 'mean'
    """
    known = list(choices)
    if not any(type(value) is type(choice) and value == choice for choice in known):
        refuse(name, f"one of {', '.join(map(repr, known))}", value, error)
    return value


def seed(value: Any, name: str = "seed", *, error: Error = ConfigError) -> int:
    """A whole number that seeds a generator of torch: of 64 bits, with or without a sign.

    >>> seed(1.5)
    Traceback (most recent call last):
    leanbayes.errors.ConfigError: seed: expected a whole number of 64 bits, received 1.5
    """
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_whole or not _within(value, -(2**63), 2**64 - 1):
        refuse(name, "a whole number of 64 bits", value, error)
    return int(value)


def iterable_of(
    name: str, value: Any, what: str, check: Callable[[str, Any], Any], *, error: Error = ConfigError, hint: str = ""
) -> list[Any]:
    """The elements of an iterable, not text or a mapping, each as ``check(name, element)`` returns it.

    >>> iterable_of("levels", 0.5, "levels", probability, hint="try (0.5, 0.9)")
    Traceback (most recent call last):
    leanbayes.errors.ConfigError: levels: expected several levels, received 0.5; try (0.5, 0.9)
    """
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        refuse(name, f"several {what}", value, error, hint)
    try:
        elements = list(value)
    except Exception:  # a tensor without dimensions, or an iterable of the user's that fails
        refuse(name, f"several {what}", value, error, hint)
    return [check(f"{name}[{i}]", element) for i, element in enumerate(elements)]


def instance(name: str, value: Any, kind: Any, what: str, *, error: Error = ConfigError, hint: str = "") -> Any:
    """An object of a class; ``what`` names it in the message."""
    if not isinstance(value, kind):
        refuse(name, what, value, error, hint)
    return value


def module(name: str, value: Any, *, error: Error = ConfigError) -> nn.Module:
    """An nn.Module.

    >>> module("model", 3)
    Traceback (most recent call last):
    leanbayes.errors.ConfigError: model: expected an nn.Module, received 3
    """
    from torch import nn

    return instance(name, value, nn.Module, "an nn.Module", error=error)


def path(name: str, value: Any, *, error: Error = ConfigError) -> Path:
    """A path, as text or os.PathLike.

    >>> path("log", 3)
    Traceback (most recent call last):
    leanbayes.errors.ConfigError: log: expected a path, received 3
    """
    if not isinstance(value, (str, os.PathLike)):
        refuse(name, "a path", value, error)
    try:
        text = os.fspath(value)
    except TypeError:
        refuse(name, "a path", value, error)
    if not isinstance(text, str) or not text or "\0" in text:
        refuse(name, "a path", value, error)
    return Path(text)


def option(name: str) -> str:
    """The name of a field on the command line."""
    return "--" + name.replace("_", "-")


def refuse(name: str, wanted: str, value: Any, error: Error = ConfigError, hint: str = "") -> NoReturn:
    """Raise an error with what was expected, what was received, and a hint."""
    raise error(f"{name}: expected {wanted}, received {short(value)}{f'; {hint}' if hint else ''}") from None


def holds_numbers(data: Any) -> bool:
    """Whether the first leaf of nested lists and tuples is a plain number."""
    while isinstance(data, (list, tuple)) and data:
        data = data[0]
    return isinstance(data, (bool, int, float))


def short(value: Any) -> str:
    """A value in a message: its repr, shortened, or its type if the repr has several lines or fails."""
    kind = type(value)
    try:
        is_array = hasattr(kind, "shape") and not isinstance(value, numbers.Number)
        text = f"a {kind.__name__} of shape {tuple(value.shape)}" if is_array else repr(value)
    except Exception:  # an object of the user's, or an integer of more digits than Python writes
        text = f"a {kind.__name__}"
    if "\n" in text:
        return f"a {kind.__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def _within(value: Any, at_least: float | None, at_most: float | None) -> bool:
    return (at_least is None or value >= at_least) and (at_most is None or value <= at_most)


def _bounds(at_least: float | None, at_most: float | None) -> str:
    if at_most is None:
        return "" if at_least is None else f" of at least {at_least}"
    return f" of at most {at_most}" if at_least is None else f" from {at_least} to {at_most}"
