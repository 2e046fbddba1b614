"""`plan`: what a conversion does to each module of a model, and why."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .. import checks
from ..config import to_dict
from ..errors import ConversionError
from ..layers.contract import BayesianLayer
from ..layers.operations import refusal
from ..method import Method
from .conversion import Conversion
from .implementation import implementation
from .selectors import Rule, Rules, ancestry, no_match, parse
from .table import plan_table

NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm, nn.RMSNorm)
Chosen = dict[str, tuple[Rule | None, str]]
"""The rule that converts each module by name, or None and the reason why none does."""

_NO_RULE = "no rule matches it"


@dataclass(frozen=True)
class Entry:
    """One module of a plan.

    name, aliases: where it stands in the model; a tied module stands in several places and is converted once.
    method: what it is given, or None where it is left alone.
    why: the rule that chose the method, or the reason it is left alone.
    before, after: numbers of parameters; a tensor that two entries share counts in the first.
    """

    name: str
    aliases: tuple[str, ...]
    kind: str
    method: Method | None
    why: str
    before: int
    after: int


@dataclass(frozen=True)
class Plan:
    """The result of `plan` and `bayesianize_`; printing gives a table."""

    entries: tuple[Entry, ...]
    parameters_before: int
    parameters_after: int

    @property
    def converted(self) -> list[str]:
        """The names of the modules that are converted."""
        return [e.name for e in self.entries if e.method is not None]

    @property
    def left_alone(self) -> dict[str, str]:
        """The names of the other modules with parameters, each with the reason."""
        return {e.name: e.why for e in self.entries if e.method is None}

    @property
    def growth(self) -> float:
        """The number of parameters after, divided by that before."""
        return self.parameters_after / max(self.parameters_before, 1)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON."""
        return {
            "parameters_before": self.parameters_before,
            "parameters_after": self.parameters_after,
            "modules": [
                {
                    "name": e.name,
                    "aliases": list(e.aliases),
                    "type": e.kind,
                    "method": None if e.method is None else to_dict(e.method),
                    "why": e.why,
                    "parameters_before": e.before,
                    "parameters_after": e.after,
                }
                for e in self.entries
            ],
        }

    def __str__(self) -> str:
        return plan_table(self)


def plan(model: nn.Module, rules: Rules, *, strict: bool = False) -> Plan:
    """Match every module of a model against the rules and check that the conversion works, without changing the model.

    rules: a method for all modules it supports, or a mapping from selectors (module, name glob, type, callable of name
        and module) to methods or None, which leaves a module alone; precedence: `leanbayes.convert.selectors`.
    strict: refuse if a layer with parameters, norm layers aside, would be left alone without a rule that says so.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    >>> plan(model, {nn.Linear: lb.MeanField(), "2": None}).converted
    ['0']
    """
    return _planned(model, rules, strict, _MetaCopies())[0]


def converted(model: nn.Module, rules: Rules, *, strict: bool = False) -> tuple[Plan, dict[str, BayesianLayer]]:
    """The plan, and the replacement of every converted module by name; the model is not changed."""
    return _planned(model, rules, strict, _Model())


def _planned(model: nn.Module, rules: Rules, strict: bool, source: _Model) -> tuple[Plan, dict[str, BayesianLayer]]:
    checks.module("model", model, error=ConversionError)
    checks.flag("strict", strict, error=ConversionError)
    conversion = Conversion(model)
    ordered = parse(rules, conversion)
    aliases = _aliases(model)
    hits: dict[Rule, list[str]] = {rule: [] for rule in ordered}
    refusals: dict[Rule, str] = {}
    chosen: Chosen = {}
    whole: set[str] = set()  # modules that are replaced with all their children, or were before
    for name, module in model.named_modules():
        if any(outer in whole for outer in ancestry(name)):
            continue
        matching = [rule for rule in ordered if rule.matches(name, aliases[name], module)]
        for rule in matching:
            hits[rule].append(name)
        chosen[name] = _choose(name, module, matching[0] if matching else None, refusals)
        if not matching and isinstance(rules, Method) and chosen[name][1] == _NO_RULE:
            unsupported = implementation(rules).reason_unsupported(module)
            chosen[name] = None, unsupported or f"not converted by {type(rules).__name__} unless a rule names it"
        if name and (isinstance(module, BayesianLayer) or chosen[name][0] is not None):
            whole.add(name)
    _check_rules(ordered, hits, refusals, chosen, model)
    if strict:
        _check_strict(model, chosen)
    return _convert(conversion, aliases, chosen, source)


def _choose(name: str, module: nn.Module, rule: Rule | None, refusals: dict[Rule, str]) -> tuple[Rule | None, str]:
    """The rule that converts a module, or None and the reason that none does."""
    if isinstance(module, BayesianLayer):
        return None, "already Bayesian (restore_ it first to convert it again)"
    if rule is None:
        return None, _default_reason(module)
    if rule.method is None:
        return None, f"excluded by {rule.text}"
    reason = implementation(rule.method).reason_unsupported(module)
    if reason is not None:
        # a name or module rule concerns the children of a container, a type rule the container itself
        if module._parameters or not module._modules or rule.rank == 2:
            refusals.setdefault(rule, f"{name or 'the model'} ({type(module).__name__}): {reason}")
        return None, "norm layer, passes through" if _is_norm(module) else reason
    if name == "" and rule.rank == 3 and module._modules:  # its children can be converted
        return None, "the model itself cannot be replaced in place (wrap it: nn.Sequential(model))"
    if name == "":
        raise ConversionError(
            f"the model itself is a {type(module).__name__}, which cannot be replaced in place; "
            "wrap it: nn.Sequential(model)"
        )
    return rule, rule.text


def _is_norm(module: nn.Module) -> bool:
    """Whether it is a norm layer of torch, or by its name (LlamaRMSNorm) and with parameters per channel only."""
    own = [p for p in module._parameters.values() if p is not None]
    named = "Norm" in type(module).__name__ and not module._modules and all(p.ndim == 1 for p in own)
    return isinstance(module, NORMS) or named


def _default_reason(module: nn.Module) -> str:
    if _is_norm(module):
        return "norm layer, passes through"
    return refusal(module) or _NO_RULE


def _check_rules(
    ordered: list[Rule], hits: dict[Rule, list[str]], refusals: dict[Rule, str], chosen: Chosen, model: nn.Module
) -> None:
    converted = {name for name, (rule, _) in chosen.items() if rule is not None}
    for rule in ordered:
        if not hits[rule] and len(ordered) > 1:
            raise no_match(rule, model)
        # a rule may match only modules that other rules take, but not only modules that it cannot convert
        if rule.method is not None and rule in refusals and not any(name in converted for name in hits[rule]):
            raise ConversionError(f"rule {rule.text} converts nothing: {refusals[rule]}")
    if not converted:
        modules = dict(model.named_modules())
        reasons = {why for name, (_, why) in chosen.items() if modules[name]._parameters or why.startswith("already")}
        detail = "; ".join(sorted(reasons)) or "it has no layers with parameters"
        if len(ordered) == 1 and not hits[ordered[0]] and ordered[0].rank < 3:
            raise no_match(ordered[0], model)
        raise ConversionError(f"nothing in this {type(model).__name__} would be converted: {detail}")


def _check_strict(model: nn.Module, chosen: Chosen) -> None:
    modules = dict(model.named_modules())
    for name, (rule, why) in chosen.items():
        module = modules[name]
        has_own = any(p is not None for p in module._parameters.values())
        if rule is None and has_own and not _is_norm(module) and not why.startswith(("excluded", "already")):
            # the name of a container would exclude all that it holds
            selector = type(module).__name__ if module._modules else f'"{name}"'
            raise ConversionError(
                f"strict: {name or 'the model'} ({type(module).__name__}) would be left alone: {why}; "
                f"exclude it with a rule {{{selector}: None}} or drop strict=True"
            )


def _convert(
    conversion: Conversion, aliases: dict[str, list[str]], chosen: Chosen, source: _Model
) -> tuple[Plan, dict[str, BayesianLayer]]:
    """Convert the chosen modules, count parameters, and check that tied modules get the same method."""
    model = conversion.model
    assert model is not None
    modules = dict(model.named_modules())
    methods = {name: rule.method for name, (rule, _) in chosen.items() if rule is not None and rule.method is not None}
    given = {name: source.module(modules[name]) for name in methods}
    for each in dict.fromkeys(methods.values()):
        mine = {name: module for name, module in given.items() if methods[name] == each}
        implementation(each).prepare(mine, conversion)
    seen_before: set[int] = set()
    seen_after: set[int] = set()
    taken: dict[int, tuple[str, Method]] = {}
    replacements: dict[str, BayesianLayer] = {}
    entries = []
    for name, (_, why) in chosen.items():
        module, method = modules[name], methods.get(name)
        own = [p for p in module._parameters.values() if p is not None]
        if method is not None or isinstance(module, BayesianLayer):
            own = list(module.parameters())  # with its children, as of an attention
        elif not own:
            continue
        after = [source.parameter(p) for p in own]
        if method is not None:
            doing = implementation(method)
            replacement = replacements[name] = doing.convert(given[name], conversion)
            why = "; ".join(filter(None, (why, doing.note(given[name], conversion))))
            after = list(replacement.parameters())
            for parameter_name, original in module._parameters.items():
                stays = replacement._parameters.get(parameter_name) is given[name]._parameters[parameter_name]
                if original is not None and not stays:
                    taken[id(original)] = (name, method)
        entries.append(
            Entry(
                name=name,
                aliases=tuple(a for a in aliases[name] if a != name),
                kind=type(module).__name__,
                method=method,
                why=why,
                before=_new_parameters(own, seen_before),
                after=_new_parameters(after, seen_after),
            )
        )
    _check_ties(modules, methods, taken)
    total = _new_parameters(list(model.parameters()), set())
    counted = sum(e.before for e in entries)
    return Plan(tuple(entries), total, total - counted + sum(e.after for e in entries)), replacements


def _check_ties(
    modules: dict[str, nn.Module], methods: dict[str, Method], taken: dict[int, tuple[str, Method]]
) -> None:
    for name, module in modules.items():
        for parameter_name, parameter in module._parameters.items():
            if parameter is None or id(parameter) not in taken:
                continue
            owner, method = taken[id(parameter)]
            if methods.get(name) != method:
                other = f"given {methods[name]}" if name in methods else "left alone"
                raise ConversionError(
                    f"{name}.{parameter_name} is tied to {owner}, which would be given {method}, "
                    f"while {name} would be {other}; "
                    "give both the same rule, or exclude both"
                )


class _Model:
    """The modules and parameters that are converted: here those of the model itself."""

    def module(self, module: nn.Module) -> nn.Module:
        return module

    def parameter(self, p: nn.Parameter) -> nn.Parameter:
        return p


class _MetaCopies(_Model):
    """Copies whose parameters are on the meta device, so that a plan takes no memory; tied ones stay tied."""

    def __init__(self) -> None:
        self.made: dict[int, nn.Parameter] = {}

    def module(self, module: nn.Module) -> nn.Module:
        other = copy.copy(module)
        other._parameters = {n: None if p is None else self.parameter(p) for n, p in module._parameters.items()}
        return other

    def parameter(self, p: nn.Parameter) -> nn.Parameter:
        if isinstance(p, nn.UninitializedParameter):
            return p
        if id(p) not in self.made:
            self.made[id(p)] = nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=p.requires_grad)
        return self.made[id(p)]


def _new_parameters(parameters: list[nn.Parameter], seen: set[int]) -> int:
    total = 0
    for p in parameters:
        if id(p) not in seen:
            seen.add(id(p))
            total += 0 if isinstance(p, nn.UninitializedParameter) else p.numel()
    return total


def _aliases(model: nn.Module) -> dict[str, list[str]]:
    """Every name of each module, keyed by its first name."""
    first: dict[int, str] = {}
    names: dict[str, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(first.setdefault(id(module), name), []).append(name)
    return names
