"""Groups of channels given by the user for a model that cannot be traced, checked against its modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from ... import checks
from ...errors import ConversionError
from ...layers.contract import option, original
from .groups import Constraint, Group, Use

ROLES = ("producers", "consumers", "through")
_SIZES = {
    "producers": ("out_features", "out_channels", "embedding_dim"),
    "consumers": ("in_features", "in_channels"),
    "through": ("num_features", "num_channels", "num_parameters", "out_channels"),
}


def group_by_hand(model: nn.Module, name: str, roles: Mapping[str, Any]) -> Group:
    """A group from the names of its modules, which give its sizes, blocks and constraints."""
    if unknown := sorted(roles.keys() - {*ROLES, "size"}):
        raise ConversionError(f"group '{name}': unknown key {unknown[0]!r}; known: {', '.join(ROLES)}, size")
    modules = dict(model.named_modules())
    uses = {role: [_use(use) for use in roles.get(role, ())] for role in ROLES}
    if not uses["producers"]:
        raise ConversionError(f"group '{name}': expected at least one producer, received none")
    for role, use in [(role, use) for role, listed in uses.items() for use in listed]:
        if use.module not in modules:
            raise ConversionError(f"group '{name}': the model has no module {use.module!r}; see model.named_modules()")
        module = original(modules[use.module])
        mixes = role == "through" and option(module, "groups") is not None and not _is_depthwise(module)
        if mixes or not _features(module, role):
            kind = type(module).__name__
            raise ConversionError(f"group '{name}': '{use.module}', a {kind}, cannot be among its {role}")
        if role != "through" and _is_depthwise(module):
            raise ConversionError(f"group '{name}': '{use.module}' is depthwise; name it under 'through'")
    first = uses["producers"][0]
    size = roles.get("size", _features(modules[first.module], "producers"))
    if not isinstance(size, int) or size < 1:
        raise ConversionError(f"group '{name}': expected a size of 1 or more, received {checks.short(size)}")
    fitted: Any = {role: tuple(_fit(name, size, modules[u.module], role, u) for u in uses[role]) for role in ROLES}
    limits = [c for role in ROLES for u in fitted[role] for c in _constraints(name, size, modules[u.module], role, u)]
    return Group(name, size, **fitted, constraints=tuple(dict.fromkeys(limits)))


def check_disjoint(groups: Iterable[Group]) -> None:
    """Refuse groups that share a feature of a module."""
    owners: dict[tuple[str, str, int], str] = {}
    for group in groups:
        places = [(r, u.module, f) for r in ROLES for u in vars(group)[r] for f in u.features(range(group.size))]
        for role, module, feature in places:
            other = owners.setdefault((role, module, feature), group.name)
            if other != group.name:
                raise ConversionError(
                    f"groups '{other}' and '{group.name}' both have feature {feature} of '{module}' among their "
                    f"{role}; make them one group, or say which features with Use(...)"
                )


def _is_depthwise(module: nn.Module) -> bool:
    return (option(module, "groups") or 1) == (option(module, "in_channels") or 0) > 1


def _use(given: str | Use) -> Use:
    return given if isinstance(given, Use) else Use(given, block=0)


def _features(module: nn.Module, role: str) -> int:
    return int(option(original(module), *_SIZES[role]) or 0)


def _fit(name: str, size: int, module: nn.Module, role: str, use: Use) -> Use:
    """The use with its block and dimension filled in; refused if the group does not fit the module."""
    features = _features(module, role)
    whole = not use.block  # a name alone means all features, in equal blocks
    use = replace(use, block=features // size) if whole else use
    end = use.offset + size * use.block
    if use.block < 1 or use.offset < 0 or end > features or (whole and end != features):
        raise ConversionError(
            f"group '{name}': {size} channels do not fit the {features} features of '{use.module}' ({role}); "
            f"say where they lie with Use('{use.module}', offset=..., block=...)"
        )
    kernel = option(original(module), "kernel_size") or ()
    return replace(use, dim=-1 - len(kernel))


def _constraints(name: str, size: int, module: nn.Module, role: str, use: Use) -> list[Constraint]:
    shell = original(module)
    if role == "through":
        runs = shell.num_groups if isinstance(shell, nn.GroupNorm) else 1
    else:
        runs = option(shell, "groups") or 1
    if runs == 1 and not isinstance(shell, nn.GroupNorm):
        return []
    if size * use.block != _features(module, role) or size % runs:
        raise ConversionError(f"group '{name}': the {runs} groups of '{use.module}' cut across it; leave it out")
    return [Constraint("whole" if role == "through" else "equal", runs, use.module)]
