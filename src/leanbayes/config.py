"""Frozen dataclasses and their JSON round trip through an allow-list.

No torch here: the command line builds its options from configs without paying for an import of torch.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from importlib import import_module
from typing import Any, TypeVar

from . import checks
from .errors import ConfigError

T = TypeVar("T")
_KINDS: dict[str, type] = {}


def configurable(cls: type[T]) -> type[T]:
    """Put a frozen dataclass on the allow-list of what `from_dict` may build.

    A class attribute ``version`` (default 1) rises when the meaning of its fields changes; ``before`` then has, by
    version, the values that stand for fields which it did not write.
    """
    if not dataclasses.is_dataclass(cls) or not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise TypeError(f"{cls.__name__} must be a frozen dataclass")
    known = _KINDS.get(cls.__name__, cls)  # the same class again is a module that was reloaded
    if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise TypeError(f"two configs are called {cls.__name__}")
    _KINDS[cls.__name__] = cls
    return cls


def to_dict(config: Any) -> dict[str, Any]:
    """The JSON form of a config.

    >>> from leanbayes.priors import Normal
    >>> to_dict(Normal(std=0.5))
    {'kind': 'Normal', 'version': 1, 'mean': 0.0, 'std': 0.5}
    """
    name = type(config).__name__
    known: Any = _KINDS.get(name)
    if type(config) is not known:
        raise ConfigError(f"expected a registered config, received {name}; decorate its class with @configurable")
    fields = {f.name: _encode(vars(config)[f.name]) for f in dataclasses.fields(known)}
    return {"kind": name, "version": _version(known), **fields}


def from_dict(data: Any) -> Any:
    """The config that `to_dict` wrote; anything unknown, ill-typed or from the future is refused."""
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        raise ConfigError(f"expected a mapping with a 'kind', received {checks.short(data)}")
    _import_configs()
    cls: Any = _KINDS.get(data["kind"])
    if cls is None:
        raise ConfigError(f"unknown config kind {data['kind']!r}; known: {', '.join(sorted(_KINDS))}")
    version, known = data.get("version", 1), _version(cls)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ConfigError(f"{data['kind']}: expected a version of 1 or more, received {checks.short(version)}")
    if version > known:
        raise ConfigError(f"{data['kind']}: written by a newer leanbayes (version {version}, this one reads {known})")
    hints = typing.get_type_hints(cls)
    fields = {f.name for f in dataclasses.fields(cls)}
    given = {k: v for k, v in data.items() if k not in ("kind", "version")}
    for old in range(known - 1, version - 1, -1):
        given = {**getattr(cls, "before", {}).get(old, {}), **given}
    if unknown := sorted(given.keys() - fields, key=repr):
        raise ConfigError(f"{data['kind']}: unknown field {unknown[0]!r}; known: {', '.join(sorted(fields))}")
    values = {k: _decode(v, hints[k], f"{data['kind']}.{k}") for k, v in given.items()}
    try:
        return cls(**values)
    except TypeError as error:
        raise ConfigError(f"{data['kind']}: {error}") from error


_HOMES = (
    "priors",
    "conformal.config",
    "data.preparation",
    "evaluation.configs",
    "evaluation.pixels",
    "latents.config",
    "training.schedules",
)  # of configs that are no methods


def _import_configs() -> None:
    """Import the modules that register configs."""
    import_module(f"{__package__}.registry").methods()
    for home in _HOMES:
        import_module(f"{__package__}.{home}")


def _version(cls: Any) -> int:
    return getattr(cls, "version", 1)


def _encode(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, (tuple, list)):
        return [_encode(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _encode(v) for k, v in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ConfigError(f"expected a plain value, received {checks.short(value)}")


def _decode(value: Any, hint: Any, where: str) -> Any:
    if isinstance(value, dict) and "kind" in value:
        value = from_dict(value)
    elif isinstance(value, dict) and set(value) == {"float"}:
        if value["float"] not in ("inf", "-inf", "nan"):
            raise ConfigError(f"{where}: expected inf, -inf or nan, received {checks.short(value['float'])}")
        value = float(value["float"])
    if not _fits(value, hint):
        raise ConfigError(f"{where}: expected {_name(hint)}, received {checks.short(value)}")
    if tuple in (typing.get_origin(hint), *(typing.get_origin(a) for a in typing.get_args(hint))):
        value = tuple(value) if isinstance(value, list) else value  # JSON has lists, and the field may be optional
    return _float(value, where) if hint is float else value


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, a) for a in arguments)
    if origin is typing.Literal:
        return any(value == a and type(value) is type(a) for a in arguments)
    if origin is tuple:
        if not isinstance(value, (tuple, list)):
            return False
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return all(_fits(v, arguments[0]) for v in value)
        return len(value) == len(arguments) and all(_fits(v, a) for v, a in zip(value, arguments, strict=True))
    if origin is dict:
        return isinstance(value, dict) and all(
            _fits(k, arguments[0]) and _fits(v, arguments[1]) for k, v in value.items()
        )
    if hint is type(None):
        return value is None
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin or hint)


def _float(value: float, where: str) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise ConfigError(f"{where}: expected a number within a float, received {checks.short(value)}") from error


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def _check(config: Any, field: str, check: typing.Callable[..., Any], *args: Any, **limits: Any) -> None:
    """Check a field; a number of numpy becomes one of Python's, which JSON can hold."""
    value = vars(config)[field]
    found = check(f"{type(config).__name__}.{field}", value, *args, **limits)
    if type(value) not in (bool, int, float, str):
        object.__setattr__(config, field, found)


def check_finite(config: Any, *fields: str) -> None:
    """Each field is a finite number."""
    for field in fields:
        _check(config, field, checks.number)


def check_positive(config: Any, *fields: str) -> None:
    """Each field is a finite number above zero."""
    for field in fields:
        _check(config, field, checks.number, above=0)


def check_whole(
    config: Any,
    field: str,
    *,
    at_least: int | None = 1,
    at_most: int | None = None,
    optional: bool = False,
    hint: str = "",
) -> None:
    """The field is a whole number within bounds, or None if ``optional``."""
    if not (optional and vars(config)[field] is None):
        _check(config, field, checks.whole_number, at_least=at_least, at_most=at_most, hint=hint)


def check_between(config: Any, field: str, low: float, high: float, *, open_high: bool = False) -> None:
    """The field is a finite number in [low, high], or in [low, high)."""
    limits = {"below": high} if open_high else {"at_most": high}
    _check(config, field, checks.number, at_least=low, **limits)


def check_choice(config: Any, field: str, choices: typing.Iterable[Any]) -> None:
    """The field is one of the choices."""
    checks.one_of(f"{type(config).__name__}.{field}", vars(config)[field], choices)


def check_flag(config: Any, *fields: str) -> None:
    """Each field is True or False."""
    for field in fields:
        checks.flag(f"{type(config).__name__}.{field}", vars(config)[field])
