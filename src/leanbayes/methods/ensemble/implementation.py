"""The implementation of `Ensemble`."""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from ...convert.conversion import Conversion
from ...convert.implementation import Implementation, Part, implementation, implements
from ...convert.trained import looks_trained
from ...layers.contract import BayesianLayer, option
from .config import Ensemble
from .layer import EnsembleLayer, InTurn, Turn, attach, layers, owners, replaced


@implements(Ensemble)
class _Ensemble(Implementation[Ensemble]):
    @property
    def inner(self) -> Implementation[Any] | None:
        """The implementation of the members' method."""
        return None if self.config.method is None else implementation(self.config.method)

    def reason_unsupported(self, module: nn.Module) -> str | None:
        """For modules without parameters and buffers, and those that cannot be copied or initialised again."""
        return _refusal(module, self.config.init)

    def selects(self, module: nn.Module, model: nn.Module) -> bool:
        """Every module with parameters or buffers; the plan says why it leaves some of them."""
        return module in owners(module) or self.reason_unsupported(module) is None

    def parts(self, conversion: Conversion) -> list[Part]:
        """The layers that the members' method takes, all others, and dropout layers, which need no copies."""
        inner, model = self.inner, conversion.model
        if inner is None or model is None:
            return super().parts(conversion)
        chosen = {id(m) for m in model.modules() if inner.selects(m, model)}

        def random(module: nn.Module) -> bool:
            return self.selects(module, model) and any(id(part) in chosen for part in module.modules())

        def without_parameters(module: nn.Module) -> bool:
            return id(module) in chosen and not self.selects(module, model)

        parts: list[Part] = [
            (self.config, random),
            (dataclasses.replace(self.config, method=None), lambda module: self.selects(module, model)),
            (inner.config, without_parameters),
        ]
        return [(method, takes) for method, takes in parts if any(takes(m) for m in model.modules())]

    def prepare(self, modules: Mapping[str, nn.Module], conversion: Conversion) -> None:
        """Prepare the method with all layers of each member."""
        if (inner := self.inner) is None:
            return
        each = {name: self._copies(module, conversion) for name, module in modules.items()}
        for number, (_, own) in enumerate(self._made(conversion)):
            members = _by_name({name: copies[number] for name, copies in each.items()})
            inner.prepare({name: part for name, part in members if inner.reason_unsupported(part) is None}, own)

    def convert(self, module: nn.Module, conversion: Conversion) -> EnsembleLayer:
        """K copies of the module, the first of them with its own tensors, each under the method."""
        members = [
            replaced(one, partial(self._random, conversion=own))
            for one, (_, own) in zip(self._copies(module, conversion), self._made(conversion), strict=True)
        ]
        return EnsembleLayer(members, conversion.scratch("turn", Turn))

    def callbacks(self, model: nn.Module) -> list[Any]:
        """The callback of turns, once for the model, and the callbacks of the members' method."""
        first = layers(model)[0].method == self.config
        return [*([InTurn(model)] if first else []), *(self.inner.callbacks(model) if self.inner else [])]

    def attach(self, model: nn.Module) -> None:
        """Share one turn among all layers of the model."""
        attach(model)

    detach = attach

    def _made(self, conversion: Conversion) -> list[tuple[dict[int, Any], Conversion]]:
        """For each member, the copies made so far and its conversion, so that tied tensors stay tied."""
        count = self.config.members
        return conversion.scratch(("members", count), lambda: [({}, Conversion()) for _ in range(count)])

    def _copies(self, module: nn.Module, conversion: Conversion) -> list[nn.Module]:
        """A plain copy of the module for each member, made once."""

        def make() -> list[nn.Module]:
            first = replaced(module, lambda part: None)
            _drop_hooks(first)
            others, init = self._made(conversion)[1:], self._init(conversion)
            return [first, *(self._started(copy.deepcopy(first, copies), init) for copies, _ in others)]

        return conversion.scratch(("copies", id(module), self.config), make)

    def _random(self, part: nn.Module, conversion: Conversion) -> nn.Module | None:
        if self.inner is None or self.inner.reason_unsupported(part) is not None:
            return None
        return self.inner.convert(part, conversion)

    def _init(self, conversion: Conversion) -> str:
        """How members start; "auto" depends on whether the network has been trained."""
        model = conversion.model
        if self.config.init != "auto" or model is None:
            return self.config.init

        def chosen() -> str:
            fixed = any(module in owners(module) and _reset(module) is None for module in model.modules())
            return "perturb" if fixed or looks_trained(model) else "fresh"

        return conversion.scratch("init", chosen)

    def _started(self, module: nn.Module, init: str) -> nn.Module:
        """A copy of a module with values of its own; frozen parameters and those of a plan are not changed."""
        trained = [p for p in module.parameters() if p.requires_grad]
        if any(p.is_meta for p in module.parameters()) or (not trained and any(True for _ in module.parameters())):
            return module
        if init == "fresh":
            for part in reversed(list(module.modules())):  # attention, which resets a child's bias, comes last
                if (reset := _reset(part)) is not None:
                    reset()
            return module
        with torch.no_grad():
            for p in trained:
                size = p.square().mean().sqrt()
                p.add_(torch.randn_like(p) * size, alpha=self.config.perturbation)
        return module


def _by_name(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Every module inside of several, by its whole name."""
    for name, module in modules.items():
        yield from module.named_modules(prefix=name)


def _refusal(module: nn.Module, init: str) -> str | None:
    own = [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]
    if not own or (module._modules and not any(p is not None for p in module._parameters.values())):
        return "it has no parameters or buffers of its own"
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        return "its shape is not known yet (run one batch through the lazy module first)"
    if isinstance(module, parametrize.ParametrizationList) or any(map(_is_computed, module.modules())):
        return "its weight is computed from others (remove the parametrisation first); all members share it"
    if any(isinstance(part, BayesianLayer) for part in module.modules()):
        return "it holds layers that are Bayesian already (restore_ them first); all members share it"
    if init == "fresh" and (part := next((p for p in owners(module) if _reset(p) is None), None)) is not None:
        return (
            f"{type(part).__name__} has no reset_parameters() to start a member afresh; give it one, or use "
            "Ensemble(init='perturb'); until then all members share it"
        )
    return None


def _reset(module: Any) -> Any:
    return option(module, "reset_parameters", "_reset_parameters")


def _is_computed(module: nn.Module) -> bool:
    """Whether a weight is computed from other tensors: parametrised, or weight or spectral norm of the old kind."""
    hooks = module._forward_pre_hooks.values()
    return parametrize.is_parametrized(module) or any(option(h, "name") and option(h, "apply") for h in hooks)


def _drop_hooks(module: nn.Module) -> None:
    """Remove the hooks of a member, which the ensemble layer has."""
    for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        setattr(module, name, OrderedDict())
