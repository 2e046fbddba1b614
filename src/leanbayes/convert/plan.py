"""What a conversion would do: every module matched, checked and counted, and nothing touched."""

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
from .selectors import Rule, Rules, no_match, parse
from .table import plan_table

NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.LocalResponseNorm,
    nn.RMSNorm,
)

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
    """What `bayesianize_` would do (or has done). Print it for a table."""

    entries: tuple[Entry, ...]
    parameters_before: int
    parameters_after: int

    @property
    def converted(self) -> list[str]:
        """Names of the modules that become random."""
        return [e.name for e in self.entries if e.method is not None]

    @property
    def left_alone(self) -> dict[str, str]:
        """Names of the parametrised modules that do not, with the reason."""
        return {e.name: e.why for e in self.entries if e.method is None}

    @property
    def growth(self) -> float:
        """Parameters after, as a multiple of before."""
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
    """Match every module of a model against the rules and check that the conversion can be done; touch nothing.

    rules: a method for all it can treat, or a mapping from selectors (module, name glob, type, callable of name and
        module) to methods; None leaves alone. `leanbayes.convert.selectors` states the precedence.
    strict: refuse if any layer with parameters, norm layers aside, would be left alone without a rule that says so.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    >>> plan(model, {nn.Linear: lb.MeanField(), "2": None}).converted
    ['0']
    """
    return planned(model, rules, strict=strict)[0]


def planned(model: nn.Module, rules: Rules, *, strict: bool = False) -> tuple[Plan, Conversion]:
    """As `plan`, with what it has found out about the model on the way, for `bayesianize_` to go on with."""
    checks.module("model", model, error=ConversionError)
    checks.flag("strict", strict, error=ConversionError)
    conversion = Conversion(model)
    ordered = parse(rules, conversion)
    aliases = _aliases(model)
    hits: dict[Rule, list[str]] = {rule: [] for rule in ordered}
    refusals: dict[Rule, str] = {}
    chosen: dict[str, tuple[Rule | None, str]] = {}
    for name, module in model.named_modules():
        if _inside_converted(name, model) or _inside_chosen(name, chosen):
            continue
        matching = [rule for rule in ordered if rule.matches(name, aliases[name], module)]
        for rule in matching:
            hits[rule].append(name)
        chosen[name] = _choose(name, module, matching[0] if matching else None, refusals)
        if not matching and isinstance(rules, Method) and chosen[name][1] == _NO_RULE:
            chosen[name] = None, implementation(rules).reason_unsupported(module) or _NO_RULE
    converted = {name: rule for name, (rule, _) in chosen.items() if rule is not None}
    _check_rules(ordered, hits, refusals, converted, chosen, model)
    if strict:
        _check_strict(model, chosen)
    return _count(conversion, aliases, chosen), conversion


def _choose(name: str, module: nn.Module, rule: Rule | None, refusals: dict[Rule, str]) -> tuple[Rule | None, str]:
    """The rule that converts a module, or None with the reason that it stays."""
    if isinstance(module, BayesianLayer):
        return None, "already Bayesian (restore_ it first to convert it again)"
    if rule is None:
        return None, _default_reason(module)
    if rule.method is None:
        return None, f"excluded by {rule.text}"
    reason = implementation(rule.method).reason_unsupported(module)
    if reason is not None:
        # a name or module rule speaks of what a container holds, a type rule of the container itself
        if module._parameters or not module._modules or rule.rank == 2:
            refusals.setdefault(rule, f"{name or 'the model'} ({type(module).__name__}): {reason}")
        return None, "norm layer, passes through" if _is_norm(module) else reason
    if name == "":
        raise ConversionError(
            f"the model itself is a {type(module).__name__}, which cannot be replaced in place; "
            "wrap it: nn.Sequential(model)"
        )
    return rule, rule.text


def _is_norm(module: nn.Module) -> bool:
    """Whether it is a norm layer of torch's, or one by its name (LlamaRMSNorm) with a scale and a shift by channel."""
    own = [p for p in module._parameters.values() if p is not None]
    named = "Norm" in type(module).__name__ and not module._modules and all(p.ndim == 1 for p in own)
    return isinstance(module, NORMS) or named


def _default_reason(module: nn.Module) -> str:
    if _is_norm(module):
        return "norm layer, passes through"
    return refusal(module) or _NO_RULE


def _check_rules(
    ordered: list[Rule],
    hits: dict[Rule, list[str]],
    refusals: dict[Rule, str],
    converted: dict[str, Rule],
    chosen: dict[str, tuple[Rule | None, str]],
    model: nn.Module,
) -> None:
    for rule in ordered:
        if not hits[rule] and len(ordered) > 1:
            raise no_match(rule, model)
        # standing behind another rule is no mistake; treating nothing of what it matches is
        if rule.method is not None and rule in refusals and not any(name in converted for name in hits[rule]):
            raise ConversionError(f"rule {rule.text} converts nothing: {refusals[rule]}")
    if not converted:
        modules = dict(model.named_modules())
        reasons = {why for name, (_, why) in chosen.items() if modules[name]._parameters or why.startswith("already")}
        detail = "; ".join(sorted(reasons)) or "it has no layers with parameters"
        if len(ordered) == 1 and not hits[ordered[0]] and ordered[0].rank < 3:
            raise no_match(ordered[0], model)
        raise ConversionError(f"nothing in this {type(model).__name__} would be converted: {detail}")


def _check_strict(model: nn.Module, chosen: dict[str, tuple[Rule | None, str]]) -> None:
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


def _count(conversion: Conversion, aliases: dict[str, list[str]], chosen: dict[str, tuple[Rule | None, str]]) -> Plan:
    """Convert weightless copies to learn what each method takes and adds, and check that ties stay whole."""
    model = conversion.model
    assert model is not None
    modules = dict(model.named_modules())
    ghosts: dict[int, nn.Parameter] = {}
    seen_before: set[int] = set()
    seen_after: set[int] = set()
    taken: dict[int, tuple[str, Method]] = {}
    replacements = []  # kept alive: parameters are told apart by their identity
    entries = []
    methods = {name: rule.method for name, (rule, _) in chosen.items() if rule is not None and rule.method is not None}
    taken_ghosts = {name: _ghost(modules[name], ghosts) for name in methods}
    prepare({name: (method, taken_ghosts[name]) for name, method in methods.items()}, conversion)
    for name, (rule, why) in chosen.items():
        module = modules[name]
        own = [p for p in module._parameters.values() if p is not None]
        if rule is None and not own and not isinstance(module, BayesianLayer):
            continue
        if rule is not None or isinstance(module, BayesianLayer):
            own = list(module.parameters())  # an attention, say, is taken with all that it holds
        after = [_shadow(p, ghosts) for p in own]
        if rule is not None:
            assert rule.method is not None
            ghost, doing = taken_ghosts[name], implementation(rule.method)
            replacement = doing.convert(ghost, conversion)
            why = "; ".join(filter(None, (why, doing.note(ghost, conversion))))
            replacements.append(replacement)
            after = list(replacement.parameters())
            for parameter_name, original in module._parameters.items():
                stays = replacement._parameters.get(parameter_name) is ghost._parameters[parameter_name]
                if original is not None and not stays:
                    taken[id(original)] = (name, rule.method)
        entries.append(
            Entry(
                name=name,
                aliases=tuple(a for a in aliases[name] if a != name),
                kind=type(module).__name__,
                method=None if rule is None else rule.method,
                why=why,
                before=_new_parameters(own, seen_before),
                after=_new_parameters(after, seen_after),
            )
        )
    _check_ties(modules, chosen, taken)
    total = _new_parameters(list(model.parameters()), set())
    counted = sum(e.before for e in entries)
    return Plan(tuple(entries), total, total - counted + sum(e.after for e in entries))


def prepare(given: dict[str, tuple[Method, nn.Module]], conversion: Conversion) -> None:
    """Let every method see all the modules it is given before the first of them is converted."""
    for method in dict.fromkeys(method for method, _ in given.values()):
        modules = {name: module for name, (other, module) in given.items() if other == method}
        implementation(method).prepare(modules, conversion)


def _check_ties(
    modules: dict[str, nn.Module], chosen: dict[str, tuple[Rule | None, str]], taken: dict[int, tuple[str, Method]]
) -> None:
    for name, module in modules.items():
        for parameter_name, parameter in module._parameters.items():
            if parameter is None or id(parameter) not in taken:
                continue
            owner, method = taken[id(parameter)]
            rule = chosen.get(name, (None, ""))[0]
            if rule is None or rule.method != method:
                other = "left alone" if rule is None else f"given {rule.method}"
                raise ConversionError(
                    f"{name}.{parameter_name} is tied to {owner}, which would be given {method}, "
                    f"while {name} would be {other}; "
                    "give both the same rule, or exclude both"
                )


def _ghost(module: nn.Module, ghosts: dict[int, nn.Parameter]) -> nn.Module:
    """A copy of one module whose parameters have shapes but no values; tied parameters stay tied."""
    ghost = copy.copy(module)
    ghost._parameters = {n: None if p is None else _shadow(p, ghosts) for n, p in module._parameters.items()}
    return ghost


def _shadow(p: nn.Parameter, ghosts: dict[int, nn.Parameter]) -> nn.Parameter:
    """The parameter without its values, one for each."""
    if isinstance(p, nn.UninitializedParameter):
        return p
    if id(p) not in ghosts:
        ghosts[id(p)] = nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=p.requires_grad)
    return ghosts[id(p)]


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


def _inside_converted(name: str, model: nn.Module) -> bool:
    """Whether a module is a part of an already converted layer (a posterior, say)."""
    parent = name.rpartition(".")[0]
    while parent:
        if isinstance(model.get_submodule(parent), BayesianLayer):
            return True
        parent = parent.rpartition(".")[0]
    return False


def _inside_chosen(name: str, chosen: dict[str, tuple[Rule | None, str]]) -> bool:
    """Whether a module is a part of one that is replaced as a whole."""
    parent = name.rpartition(".")[0]
    while parent:
        if parent in chosen and chosen[parent][0] is not None:
            return True
        parent = parent.rpartition(".")[0]
    return False
