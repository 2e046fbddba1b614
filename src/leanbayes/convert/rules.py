"""What each module and operation does to channels: a rule a kind; what has no rule fixes the channels it touches.

A rule takes the flow and a call and returns what the result is: a `Layout`, an `Opaque` tensor, or None for what has no
channels (numbers, masks). Rooms with modules of their own announce them with `module_rule`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from .flow import Count, Flow, Layout, Opaque, Sizes
from .trace import Step, original


@dataclass(frozen=True)
class Call:
    """A step whose arguments have been replaced by what is known of them; module is None for an operation."""

    step: Step
    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def values(self) -> list[Any]:
        """All arguments, those in lists and slices too."""
        return list(_flat([*self.args, *self.kwargs.values()]))

    @property
    def x(self) -> Any:
        """The first argument, wherever it stands."""
        return next(iter([*self.args, *self.kwargs.values()]), None)

    def get(self, position: int, names: str, default: Any = None) -> Any:
        """An argument by its position or by one of its names."""
        if len(self.args) > position:
            return self.args[position]
        return next((self.kwargs[n] for n in names.split() if n in self.kwargs), default)

    @property
    def ndim(self) -> int | None:
        """Of the result, where an example told."""
        return None if self.step.shape is None else len(self.step.shape)


Rule = Callable[[Flow, Call], Any]
_MODULES: dict[type[nn.Module], Rule] = {}
_OPERATIONS: dict[str, Rule] = {}


def module_rule(*kinds: type[nn.Module]) -> Callable[[Rule], Rule]:
    """Register what modules of these classes, and of subclasses with the same forward, do to channels."""

    def register(rule: Rule) -> Rule:
        _MODULES.update(dict.fromkeys(kinds, rule))
        return rule

    return register


def operation_rule(names: str) -> Callable[[Rule], Rule]:
    """Register what operations of these names (as in `Step.name`) do to channels."""

    def register(rule: Rule) -> Rule:
        _OPERATIONS.update(dict.fromkeys(names.split(), rule))
        return rule

    return register


def follow(model: nn.Module, steps: Iterable[Step]) -> Flow:
    """Walk through a trace and find out where the channels go."""
    modules = dict(model.named_modules())
    flow = Flow()
    values: dict[fx.Node, Any] = {}
    for step in steps:
        module = original(modules[step.name]) if step.kind == "module" else None
        args, kwargs = _resolve(step.args, values), _resolve(step.kwargs, values)
        values[step.node] = _result(flow, Call(step, module, args, kwargs))
    flow.expose(modules)
    return flow


def not_followed(flow: Flow, call: Call) -> Opaque:
    """The rule of everything without a rule."""
    what = call.step.name.lstrip("?")
    what = what if call.module is None else f"{type(call.module).__name__} '{what}'"
    return flow.opaque(call.step, f"goes through {what}", call.values)


def _result(flow: Flow, call: Call) -> Any:
    step = call.step
    if step.kind == "input":
        return Opaque(f"comes from the model input '{step.name}'", step.shape)
    if step.kind == "attribute":
        return Opaque(f"meets the tensor '{step.name}'", step.shape, step.name)
    if step.kind == "output":
        return flow.opaque(step, "is a model output", call.values)
    if step.kind == "module":
        rule = next((_MODULES[kind] for kind in type(call.module).__mro__ if kind in _MODULES), not_followed)
    else:
        rule = _OPERATIONS.get(step.name, not_followed)
        for value in call.values:
            if isinstance(value, Opaque) and value.attribute:
                owner = value.attribute.rpartition(".")[0]
                flow.exposed[owner] = f"the parameters of '{owner}' are also used by {step.name.lstrip('?')}"
    if any(isinstance(value, Layout) for value in call.values):
        return rule(flow, call)
    if any(isinstance(value, (Sizes, Count)) for value in call.values) and rule is not getitem:
        return not_followed(flow, call)
    ...


def _resolve(argument: Any, values: dict[fx.Node, Any]) -> Any:
    """An argument with other steps' results in place of their nodes."""
    if isinstance(argument, fx.Node):
        return values[argument]
    if isinstance(argument, (tuple, list)):
        return tuple(_resolve(a, values) for a in argument)
    if isinstance(argument, dict):
        return {k: _resolve(v, values) for k, v in argument.items()}
    if isinstance(argument, slice):
        return slice(*(_resolve(a, values) for a in (argument.start, argument.stop, argument.step)))
    return argument


def _flat(arguments: Iterable[Any]) -> Iterable[Any]:
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _flat(argument)
        elif isinstance(argument, dict):
            yield from _flat(argument.values())
        elif isinstance(argument, slice):
            yield from (argument.start, argument.stop, argument.step)
        else:
            yield argument
