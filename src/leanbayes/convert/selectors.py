"""Rules that give methods to modules by module, name, type or callable, and their precedence.

A rule for a module itself comes before a name glob, a type, then a callable; within a kind the first that matches
applies. A module or name rule for a container holds for everything inside it. The method None leaves a module alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from torch import nn

from .. import checks
from ..errors import ConversionError
from ..method import Method
from .conversion import Conversion
from .implementation import implementation

Selector: TypeAlias = "type[nn.Module] | str | nn.Module | Callable[[str, nn.Module], bool]"
Rules: TypeAlias = "Method | Mapping[Selector, Method | None]"


@dataclass(frozen=True, eq=False)
class Rule:
    """A rule, with its rank (lower wins) and its text for the plan."""

    selector: Any
    method: Method | None
    rank: int
    text: str

    def matches(self, name: str, aliases: list[str], module: nn.Module) -> bool:
        """Whether the rule matches this module of the model."""
        if self.rank == 0:
            return any(m is module for m in self.selector.modules())
        if self.rank == 1:
            return any(fnmatchcase(part, self.selector) for alias in aliases for part in ancestry(alias))
        if self.rank == 2:
            return isinstance(module, self.selector)
        try:
            return bool(self.selector(name, module))
        except ConversionError:
            raise
        except Exception as error:
            raise ConversionError(
                f"rule {self.text}: expected a function (name, module) -> bool, but on {name or 'the model'} it raised "
                f"{type(error).__name__}: {error}"
            ) from error


def parse(rules: Any, conversion: Conversion) -> list[Rule]:
    """The rules in order of precedence; invalid ones are refused."""
    if isinstance(rules, Method):
        return [
            Rule(lambda name, module, takes=takes: takes(module), method, 3, f"{type(rules).__name__}()")
            for method, takes in implementation(rules).parts(conversion)
        ]
    model = conversion.model
    assert model is not None
    if isinstance(rules, type) and issubclass(rules, Method):
        raise ConversionError(f"expected a method, received the class {rules.__name__}; write {rules.__name__}()")
    if not isinstance(rules, Mapping):
        raise ConversionError(
            f"expected a method or a mapping of selectors to methods, received {type(rules).__name__}; "
            "for example {nn.Linear: lb.MeanField()}"
        )
    if not rules:
        raise ConversionError("expected at least one rule, received an empty mapping")
    return sorted((_rule(s, m, model) for s, m in rules.items()), key=lambda rule: rule.rank)


def _rule(selector: Any, method: Any, model: nn.Module) -> Rule:
    if isinstance(method, type) and issubclass(method, Method):
        raise ConversionError(f"rule {selector!r}: expected a method, received its class; write {method.__name__}()")
    if method is not None and not isinstance(method, Method):
        raise ConversionError(f"rule {selector!r}: expected a method or None, received {checks.short(method)}")
    if isinstance(selector, nn.Module):
        name = next((n for n, m in model.named_modules() if m is selector), None)
        if name is None:
            raise ConversionError(f"a rule names a {type(selector).__name__} that is not part of the model")
        return Rule(selector, method, 0, f"module {name}")
    if isinstance(selector, str):
        return Rule(selector, method, 1, f"name {selector!r}")
    if isinstance(selector, type):
        if not issubclass(selector, nn.Module):
            raise ConversionError(f"expected a module type in a rule, received {selector.__name__}")
        return Rule(selector, method, 2, f"type {selector.__name__}")
    if callable(selector):
        return Rule(selector, method, 3, f"callable {getattr(selector, '__name__', repr(selector))}")
    raise ConversionError(
        f"expected a module, a name glob, a module type or a callable (name, module) -> bool as selector, "
        f"received {checks.short(selector)}"
    )


def ancestry(name: str) -> Iterator[str]:
    """A dotted name and the names of its parents."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def no_match(rule: Rule, model: nn.Module) -> ConversionError:
    """The error of a rule that matches no module, with the nearest names."""
    names = [n for n, _ in model.named_modules() if n]
    near = difflib.get_close_matches(rule.selector, names, n=3) if isinstance(rule.selector, str) else []
    kinds = sorted({type(m).__name__ for m in model.modules() if m._parameters})
    hint = f"the model has layers of type {', '.join(kinds) or 'none'}"
    if isinstance(rule.selector, str):
        more = ", ..." if len(names) > 8 else ""
        hint = f"did you mean {', '.join(near)}?" if near else f"its modules are called {', '.join(names[:8])}{more}"
    return ConversionError(f"rule {rule.text} matches no module; {hint}")
