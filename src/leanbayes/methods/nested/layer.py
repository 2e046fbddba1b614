"""Layers with ordered output channels, and the hooks that mask these at their consumers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ...convert.channels import Use
from ...kl import Term, kl
from ...layers.bayes import BayesLayer
from ...layers.contract import hook_owner, remove_hooks
from ...layers.shell import StandIn
from ...ordering.unit import Draw, OrderingUnit, units
from ...posteriors.base import Posterior
from .config import Nested
from .narrow import Narrow, Narrowing, can_narrow


class OrderedLayer(BayesLayer, Narrowing):
    """A Bayesian layer whose KL is weighted by the probability that its outputs are kept (equation 18).

    orders: the units of the channels that it produces first; none if its outputs are not ordered.
    outputs: all units that order its outputs, with their places; set by `attach`.
    """

    def __init__(self, layer: BayesLayer, module: nn.Module, orders: list[OrderingUnit], kappa: float = 1.0) -> None:
        super().__init__(
            module,
            dict(layer.posteriors.items()),  # type: ignore[arg-type]
            layer.priors,
            estimator=layer.estimator,
            approximation=layer.approximation,
        )
        self.orders = nn.ModuleList(orders)
        self.kappa = kappa
        self.outputs: list[tuple[OrderingUnit, Use]] = []
        self.train(module.training)

    def compute(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, *extra: Any, **named: Any) -> Tensor:
        """The operation on the part of the parameters that this pass uses."""
        if self.narrow is not None and weight is not None:
            weight, bias = self.narrow.part(weight, bias)
        return super().compute(x, weight, bias, *extra, **named)

    def at_fixed_width(self) -> BayesLayer:
        """The same posteriors without an order, as the method of the weights alone makes them."""
        plain = copy.copy(self.shell)
        plain._parameters = {name: self._parameters.get(name) for name in self.shell._parameters}
        posteriors: dict[str, Posterior] = dict(self.posteriors.items())  # type: ignore[arg-type]
        made = BayesLayer(plain, posteriors, self.priors, estimator=self.estimator, approximation=self.approximation)
        made.method = self.method.weights if isinstance(self.method, Nested) else self.method
        return made

    def _term(self, name: str, q: Posterior) -> Callable[[], Tensor]:
        """kappa times Phi_2 of (18): sum_f S_f sum_{weights of output f} KL, S_f the keep probability of feature f."""
        turned = isinstance(self.shell, _ConvNd) and self.shell.transposed
        if self.has_padding(name) or (self.outputs and name == "weight" and (turned or self.takes_indices)):
            return partial(self._by_itself, name, q)  # outputs are not the first dimension
        rows = q.shape[0] if self.outputs else 1
        return Term(q, self.priors[name], self.approximation, rows, self._weighed)

    def _weighed(self, costs: Tensor) -> Tensor:
        """The sum of costs by output, each times the probability that it is kept."""
        for unit, use in self.outputs:
            costs = costs * unit.spread(unit.keep(), use, len(costs)).to(costs)
        return self.kappa * costs.sum()

    def _by_itself(self, name: str, q: Posterior) -> Tensor:
        terms = self.except_padding(name, kl(q, self.priors[name], approximation=self.approximation))
        wide = torch.promote_types(terms.dtype, torch.float32)
        return self._weighed(self._by_output(terms, wide) if self.outputs else terms.sum(dtype=wide))

    def _by_output(self, terms: Tensor, dtype: torch.dtype) -> Tensor:
        """Elementwise terms of the weight, summed by output feature."""
        if self.takes_indices:
            return terms.sum(0, dtype=dtype)
        groups: int = self.shell.groups  # type: ignore[assignment]
        return terms.reshape(groups, len(terms) // groups, terms.shape[1], -1).sum((1, 3), dtype=dtype).flatten()


class OrderedPlain(StandIn, Narrowing):
    """A plain layer that holds the units of the channels it produces; its operation is unchanged."""

    def __init__(self, module: nn.Module, orders: list[OrderingUnit]) -> None:
        super().__init__(module)
        self.orders = nn.ModuleList(orders)
        self.train(module.training)

    def at_fixed_width(self) -> nn.Module:
        """The plain layer."""
        return self.restored()

    def forward(self, input: Tensor, *extra: Any, **named: Any) -> Tensor:
        """The module's operation; called as the module was."""
        weight, bias = self.weight, self._parameters.get("bias")
        if self.narrow is not None:
            weight, bias = self.narrow.part(weight, bias)
        return self.operation.apply(self.shell, input, weight, bias, *extra, **named)


class InputMask:
    """A hook before a module that consumes ordered channels: multiplies its input by their mask."""

    def __init__(self, unit: OrderingUnit, use: Use) -> None:
        self.unit, self.use = unit, use

    def __call__(self, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if args:
            return (self._masked(args[0]), *args[1:]), named
        first = next(iter(named))
        return args, {**named, first: self._masked(named[first])}

    def _masked(self, x: Tensor) -> Tensor:
        if self.unit.narrows and self.unit.known_nodes() is not None:
            return x  # dropped channels are not computed
        mask = self.unit.mask(x, self.use)
        return x if mask is None else x * mask


class OutputMask(InputMask):
    """A hook after a producer, as in the authors' code; a norm layer after it changes the zeros."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:  # type: ignore[override]
        return self._masked(output)


class Begin:
    """A hook before the whole model: every pass draws new widths."""

    def __init__(self, draws: list[Draw]) -> None:
        self.draws = draws

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        for draw in self.draws:
            draw.current = None


def attach(model: nn.Module) -> None:
    """Mask the ordered channels of a model where they are consumed; without ordering units, remove the masks.

    Units that share draw from one site.
    """
    _drop_hooks(model)
    found = units(model)
    together = [unit for unit in found if unit.share]
    for unit in together:
        unit.draw = together[0].draw
    for unit in found:
        unit.draw.units = []
    for unit in found:
        unit.draw.units.append(unit)
        unit.draw.nodes = max(other.nodes for other in unit.draw.units)
        _mask(model, unit)
    if found:
        model.register_forward_pre_hook(Begin(list({id(unit.draw): unit.draw for unit in found}.values())))


def _mask(model: nn.Module, unit: OrderingUnit) -> None:
    group = unit.group
    for use in dict.fromkeys(group.producers if unit.legacy else group.consumers):
        module = model.get_submodule(use.module)
        if unit.legacy:
            module.register_forward_hook(OutputMask(unit, use))
        else:
            module.register_forward_pre_hook(InputMask(unit, use), with_kwargs=True)
    for use in dict.fromkeys((*group.producers, *group.through)):
        layer = model.get_submodule(use.module)
        if isinstance(layer, OrderedLayer):
            layer.outputs.append((unit, use))
    unit.narrows = unit.skip and can_narrow(model, unit)
    if unit.narrows:
        for use in dict.fromkeys((*group.producers, *group.through)):
            _narrow(model, use).outputs = (unit, use)
        for use in dict.fromkeys(group.consumers):
            _narrow(model, use).inputs = (unit, use)


def _narrow(model: nn.Module, use: Use) -> Narrow:
    """The `Narrow` of a module: on an ordered layer, or as a pair of hooks around another."""
    module = model.get_submodule(use.module)
    if isinstance(module, Narrowing):
        module.narrow = module.narrow or Narrow()
        return module.narrow
    hooks = (hook_owner(hook) for hook in module._forward_pre_hooks.values())
    found = next((owner for owner in hooks if isinstance(owner, Narrow)), None)
    if found is None:
        found = Narrow()
        module.register_forward_pre_hook(found.before)
        module.register_forward_hook(found.after, always_call=True)
    return found


def _drop_hooks(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, OrderedLayer):
            module.outputs = []
        if isinstance(module, Narrowing):
            module.narrow = None
    remove_hooks(model, InputMask, Begin, Narrow)
