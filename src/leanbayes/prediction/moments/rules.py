"""The rules by which moments go through functions and modules; whatever has none is sampled.

A rule of a function is called as the function is, random tensors being `Moments`; it returns Moments (or a tuple of
them), or raises `NoRule` with the reason where it does not serve these arguments. In-place forms need no rule of their
own. A rule of a module is called with the module first.

>>> import torch
>>> from leanbayes.prediction.moments import Moments, rule
>>> @rule("deg2rad")
... def _deg2rad(x):
...     return Moments(torch.deg2rad(x.mean), torch.deg2rad(torch.deg2rad(x.variance)))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

Rule = Callable[..., Any]
FUNCTIONS: dict[str, Rule] = {}
MODULES: dict[type[nn.Module], Rule] = {}
EARLY: dict[str, tuple[type, ...]] = {}
"""Of functions whose rules take what waits (see `waiting`) as it is: its kinds."""


class NoRule(Exception):
    """Says why there is no rule for a call, so that samples are drawn from there on."""


class NotCarried(Exception):
    """Says why a whole pass cannot be made on moments."""


def rule(*names: str, early: tuple[type, ...] = ()) -> Callable[[Rule], Rule]:
    """Register what functions of torch, by their names without underscores, do to moments.

    early: kinds of operations that wait (see `waiting`) which the rule takes before they are done.
    """

    def register(function: Rule) -> Rule:
        FUNCTIONS.update(dict.fromkeys(names, function))
        EARLY.update(dict.fromkeys(names, early))
        return function

    return register


def module_rule(*kinds: type[nn.Module]) -> Callable[[Rule], Rule]:
    """Register what modules of these classes, and of subclasses with the same forward, do to moments."""

    def register(function: Rule) -> Rule:
        MODULES.update(dict.fromkeys(kinds, function))
        return function

    return register


def rule_of(module: nn.Module) -> Rule | None:
    """The rule of a module's class, or of the class whose forward it has."""
    if "forward" in module.__dict__:
        return None
    found = (kind for kind in type(module).__mro__ if kind in MODULES and kind.forward is type(module).forward)
    return next((MODULES[kind] for kind in found), None)
