"""The implementation of `Nested` and `NestedDropout`: which channels are ordered, and how their widths are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from ... import ordering
from ...convert.channels import ChannelGraph, channel_graph
from ...convert.conversion import Conversion
from ...convert.implementation import Implementation, Part, implementation, implements
from ...convert.record import conversions
from ...convert.trained import looks_trained
from ...errors import ConversionError
from ...layers.bayes import BayesLayer
from ...ordering.annealing import exponential
from ...ordering.placement import Placement, check_order, place
from ...ordering.unit import OrderingUnit, units
from ...training.callbacks import Callback, State, out_of_order
from .config import Nested, NestedDropout, Ordered, roles
from .importance import by_importance
from .layer import OrderedLayer, OrderedPlain, attach

N = TypeVar("N", bound=Ordered)


class _Ordered(Implementation[N], Generic[N]):
    """The base of both implementations."""

    def prepare(self, modules: Mapping[str, nn.Module], conversion: Conversion) -> None:
        """Find the ordered channels, and the layers that hold their units."""
        if conversion.model is None:
            here = type(self.config).__name__
            raise ConversionError(
                f"{here} orders the channels of a whole network, which it has to see; it cannot be the method of an "
                f"ensemble's members: train several models with lb.{here}() instead"
            )
        conversion.scratch(self.config, lambda: self.placement(conversion, modules))
        self._names(conversion).update({id(module): name for name, module in modules.items()})

    def note(self, module: nn.Module, conversion: Conversion) -> str:
        """What is ordered of a layer's outputs, or why nothing is."""
        return self._placed(conversion).notes.get(self._names(conversion)[id(module)], "outputs not ordered")

    def placement(self, conversion: Conversion, layers: Mapping[str, nn.Module]) -> Placement:
        """The ordered groups among the outputs of these layers."""
        config, model = self.config, conversion.model
        assert model is not None
        graph = conversion.graph((config.channels, config.input_shape), lambda: self._graph(model))
        if config.order:
            check_order(graph, config.order)
        placed = place(graph, layers, groups=config.groups, base=config.base_groups, order=config.order)
        if not placed.owned and config.order != ():
            reasons = "; ".join(f"{name}: {why}" for name, why in placed.notes.items()) or "no layer has channels"
            raise ConversionError(
                f"{type(config).__name__}: nothing to order in this {type(model).__name__} ({reasons}); give the "
                f"model's input_shape, say who feeds whom with channels=(...), or order=() for no order at all"
            )
        return placed

    def attach(self, model: nn.Module) -> None:
        """Mask the channels where they are consumed."""
        attach(model)

    detach = attach

    def callbacks(self, model: nn.Module) -> list[Any]:
        """The temperature, where it changes."""
        if self.config.final_temperature is None or self.config.tails != "learned":
            return []
        mine = [name for name, method in conversions(model).items() if method == self.config]
        return [_Annealing(self.config, [unit for name in mine for unit in units(model.get_submodule(name))])]

    def _placed(self, conversion: Conversion) -> Placement:
        return conversion.scratch(self.config, lambda: self.placement(conversion, {}))

    def _names(self, conversion: Conversion) -> dict[int, str]:
        return conversion.scratch((self.config, "names"), dict[int, str])

    def _units(self, module: nn.Module, conversion: Conversion) -> list[OrderingUnit]:
        """The units of the channels that a layer produces first."""
        config, found, whole = self.config, [], conversion.model
        assert whole is not None
        trained = conversion.scratch("trained", lambda: looks_trained(whole))
        for group, steps in self._placed(conversion).owned.get(self._names(conversion)[id(module)], ()):
            if trained and config.by_importance and not config.skip:  # `skip` needs channels in their own order
                steps = by_importance(whole, group, steps)
            log_beta, log_prior = self._tails(steps.nodes, module._parameters["weight"], trained)  # type: ignore[arg-type]
            unit = OrderingUnit(
                group,
                steps,
                log_beta,
                log_prior,
                learned=config.tails == "learned",
                temperature=config.temperature,
                hard=config.hard,
                per_sample=config.per_sample,
                share=config.share,
                tail_weight=config.tail_weight,
                width_penalty=config.width_penalty,
                legacy=config.legacy,
                skip=config.skip,
            )
            found.append(unit)
        return found

    def _tails(self, nodes: int, weight: Tensor, trained: bool) -> tuple[Tensor, Tensor]:
        """log beta at the start, and log beta of the prior."""
        config = self.config
        uniform = ordering.log_tails(ordering.uniform_logits(nodes))
        prior = uniform
        if config.prior_keep is not None:
            prior = ordering.BernoulliChain.constant(nodes, config.prior_keep).log_tails
        whole = config.groups - config.base_groups + 1
        if config.tails == "learned":
            full = torch.arange(1.0, nodes + 1) if trained else torch.ones(nodes)
            full = full / full.sum() * (1 - config.start_full * trained)
            full[-1] += config.start_full * trained
            start = ordering.log_tails(torch.full((nodes - 1,), 3.0)) if config.legacy else full.log()
        elif config.tails == "uniform":
            start = uniform
        elif config.tails == "geometric":
            start = ordering.coarser_tails(ordering.geometric_tails(whole, config.rate), nodes)
        else:
            start = ordering.coarser_tails(ordering.categorical_tails(list(config.probabilities)), nodes)
        dtype = torch.promote_types(weight.dtype, torch.float32)
        return start.to(weight.device, dtype), prior.to(weight.device, dtype)

    def _graph(self, model: nn.Module) -> ChannelGraph:
        """The channel graph, as given or traced."""
        config = self.config
        if config.channels:
            stated = [roles(text) for text in config.channels]
            return ChannelGraph.from_groups(model, {each["producers"][0]: each for each in stated})
        example = None
        if config.input_shape is not None:
            like = next(model.parameters(), torch.zeros(()))
            example = torch.zeros(2, *config.input_shape, dtype=like.dtype, device=like.device)
        try:
            return channel_graph(model, example)
        except ConversionError as error:
            here = type(config).__name__
            raise ConversionError(
                f"{here} has to know who feeds whom, and {error}. With an example: "
                f"lb.{here}(input_shape=(3, 32, 32)); by hand: lb.{here}(channels=('conv1 > bn1 > conv2', ...))"
            ) from error


@implements(Nested)
class _Nested(_Ordered[Nested]):
    def convert(self, module: nn.Module, conversion: Conversion) -> OrderedLayer:
        """A Bayesian layer that holds the units of the channels it produces."""
        layer = implementation(self.config.weights).convert(module, conversion)
        assert isinstance(layer, BayesLayer)
        return OrderedLayer(layer, module, self._units(module, conversion), self.config.kappa)


@implements(NestedDropout)
class _NestedDropout(_Ordered[NestedDropout]):
    def selects(self, module: nn.Module, model: nn.Module) -> bool:
        """The layers that hold the unit of an ordered group."""
        return any(takes(module) for _, takes in self.parts(Conversion(model)))

    def parts(self, conversion: Conversion) -> list[Part]:
        """On its own: the first producer of every group of channels that can be ordered."""
        assert conversion.model is not None
        modules = conversion.model.named_modules()
        layers = {name: module for name, module in modules if self.reason_unsupported(module) is None}
        owners = {id(layers[name]) for name in self.placement(conversion, layers).owned}
        return [(self.config, lambda module: id(module) in owners)]

    def convert(self, module: nn.Module, conversion: Conversion) -> OrderedPlain:
        """The same layer, with the units of the channels that it produces."""
        return OrderedPlain(module, self._units(module, conversion))


class _Annealing(Callback):
    """The callback that lowers the temperature."""

    def __init__(self, config: Ordered, units: list[OrderingUnit]) -> None:
        self.config, self.units, self.begun = config, units, False

    def after_step(self, state: State) -> None:
        """Refuse a step that before_step did not begin."""
        if not self.begun:
            raise out_of_order(type(self.config).__name__)

    def before_step(self, state: State) -> None:
        """Set the temperature of the step."""
        self.begun = True
        config = self.config
        assert config.final_temperature is not None
        now = exponential(state.step, config.temperature, config.final_temperature, config.anneal_steps)
        for unit in self.units:
            unit.temperature.fill_(now)
