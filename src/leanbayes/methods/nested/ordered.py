"""What nested methods share: which channels are ordered, and how their widths are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ... import checks
from ...config import check_between, check_choice, check_flag, check_positive, check_whole
from ...errors import ConfigError, ConversionError
from ...method import Method

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ...convert.channels import ChannelGraph
    from ...ordering.placement import Placement
    from ...ordering.unit import OrderingUnit
    from ...posteriors.base import Posterior

MOST = 10_000
TAILS = ("learned", "uniform", "geometric", "categorical")


@dataclass(frozen=True)
class Ordered(Method):
    """Base of `Nested` and `NestedDropout`; see there for what the fields mean."""

    follows_channels: ClassVar[bool] = True

    groups: int = 32
    base_groups: int = 2
    tails: Literal["learned", "uniform", "geometric", "categorical"] = "learned"
    rate: float = 0.1
    probabilities: tuple[float, ...] = ()
    prior_keep: float | None = None
    tail_weight: float = 0.02
    width_penalty: float = 0.0
    temperature: float = 2.0
    final_temperature: float | None = None
    anneal_steps: int = 1000
    hard: bool = True
    share: bool = True
    per_sample: bool = False
    skip: bool = False
    order: tuple[str, ...] | None = None
    input_shape: tuple[int, ...] | None = None
    channels: tuple[str, ...] = ()
    legacy: bool = False

    def __post_init__(self) -> None:
        here = type(self).__name__
        check_whole(self, "groups", at_least=2, at_most=MOST)
        check_whole(self, "base_groups", at_most=MOST)
        check_whole(self, "anneal_steps")
        if self.base_groups >= self.groups:
            raise ConfigError(
                f"{here}.base_groups: expected fewer than the {self.groups} groups, so that some can be dropped, "
                f"received {self.base_groups}"
            )
        check_choice(self, "tails", TAILS)
        check_positive(self, "rate", "temperature")
        check_between(self, "rate", 0.0, 1.0, open_high=True)
        for field in ("tail_weight", "width_penalty"):
            check_between(self, field, 0.0, 1e6)
        if self.final_temperature is not None:
            check_positive(self, "final_temperature")
        if self.prior_keep is not None:
            check_positive(self, "prior_keep")
            check_between(self, "prior_keep", 0.0, 1.0, open_high=True)
        check_flag(self, "hard", "share", "per_sample", "skip", "legacy")
        self._check_probabilities()
        self._check_names()

    def _check_probabilities(self) -> None:
        here, given, nodes = type(self).__name__, self.probabilities, self.groups - self.base_groups + 1
        numbers = isinstance(given, tuple) and all(type(p) in (int, float) for p in given)
        if not numbers:
            raise ConfigError(f"{here}.probabilities: expected a tuple of numbers, received {checks.short(given)}")
        if (self.tails == "categorical") != bool(given):
            raise ConfigError(
                f"{here}.probabilities: expected {nodes} of them with tails='categorical', and none otherwise, "
                f"received {len(given)} with tails={self.tails!r}"
            )
        if given and (len(given) != nodes or not all(p >= 0 for p in given) or not 0 < sum(given) < float("inf")):
            raise ConfigError(
                f"{here}.probabilities: expected {nodes} numbers of 0 or more, one for each width from "
                f"{self.base_groups} to {self.groups} groups, received {given}"
            )

    def _check_names(self) -> None:
        here = type(self).__name__
        for field in ("order", "channels"):
            value = getattr(self, field)
            if value is not None and not (isinstance(value, tuple) and all(isinstance(v, str) for v in value)):
                raise ConfigError(
                    f"{here}.{field}: expected a tuple of names such as ('conv*',), received {checks.short(value)}"
                )
        shape = self.input_shape
        if shape is not None and not (isinstance(shape, tuple) and all(type(n) is int and n > 0 for n in shape)):
            raise ConfigError(
                f"{here}.input_shape: expected the shape of one datum such as (3, 32, 32), "
                f"received {checks.short(shape)}"
            )
        for text in self.channels:
            _roles(text)

    def refuses(self, module: nn.Module) -> str | None:
        """Whatever has no operation with a weight."""
        from ...layers.operations import refusal

        return refusal(module)

    def prepare(self, modules: Mapping[str, nn.Module], memo: dict[int, Posterior]) -> None:
        """Find out which channels are ordered, and who holds their units."""
        shared: dict[Any, Any] = memo
        if (model := shared.get("model")) is None:
            here = type(self).__name__
            raise ConversionError(
                f"{here} orders the channels of a whole network, which it has to see; it cannot be the method of an "
                f"ensemble's members: train several models with lb.{here}() instead"
            )
        shared[self] = self.placement(model, modules)
        shared.update({("ordered", id(module)): name for name, module in modules.items()})

    def note(self, module: nn.Module, memo: dict[int, Posterior]) -> str:
        """Of the plan: what is ordered, or why not."""
        shared: dict[Any, Any] = memo
        placed: Placement = shared[self]
        return placed.notes.get(shared["ordered", id(module)], "outputs not ordered")

    def placement(self, model: nn.Module, layers: Mapping[str, nn.Module]) -> Placement:
        """The ordered groups among the outputs of these layers."""
        from ...ordering.placement import check_order, place

        graph = self._graph(model)
        if self.order:
            check_order(graph, self.order)
        placed = place(graph, layers, groups=self.groups, base=self.base_groups, order=self.order)
        if not placed.owned and self.order != ():
            reasons = "; ".join(f"{name}: {why}" for name, why in placed.notes.items()) or "no layer has channels"
            raise ConversionError(
                f"{type(self).__name__}: nothing to order in this {type(model).__name__} ({reasons}); give the model's "
                f"input_shape, say who feeds whom with channels=(...), or order=() for no order at all"
            )
        return placed

    def attach(self, model: nn.Module) -> None:
        """Mask the channels where they are consumed."""
        from .layer import attach

        attach(model)

    detach = attach

    def callbacks(self, model: nn.Module) -> list[Any]:
        """The temperature, where it changes."""
        if self.final_temperature is None or self.tails != "learned":
            return []
        from ...convert.record import conversions
        from ...ordering.unit import units

        mine = [name for name, method in conversions(model).items() if method == self]
        return [_Annealing(self, [unit for name in mine for unit in units(model.get_submodule(name))])]

    def _units(self, module: nn.Module, memo: dict[int, Posterior]) -> list[OrderingUnit]:
        """The units of the channels that a layer is the first to produce."""
        from ...ordering.unit import OrderingUnit

        shared: dict[Any, Any] = memo
        placed: Placement = shared[self]
        found = []
        for group, steps in placed.owned.get(shared["ordered", id(module)], ()):
            log_beta, log_prior = self._tails(steps.nodes, module._parameters["weight"])  # type: ignore[arg-type]
            unit = OrderingUnit(
                group,
                steps,
                log_beta,
                log_prior,
                learned=self.tails == "learned",
                temperature=self.temperature,
                hard=self.hard,
                per_sample=self.per_sample,
                share=self.share,
                tail_weight=self.tail_weight,
                width_penalty=self.width_penalty,
                legacy=self.legacy,
                skip=self.skip,
            )
            found.append(unit)
        return found

    def _tails(self, nodes: int, weight: Tensor) -> tuple[Tensor, Tensor]:
        """log beta, at the start or for good, and that of the prior."""
        import torch

        from ... import ordering

        uniform = ordering.log_tails(ordering.uniform_logits(nodes))
        prior = (
            uniform if self.prior_keep is None else ordering.BernoulliChain.constant(nodes, self.prior_keep).log_tails
        )
        whole = self.groups - self.base_groups + 1
        if self.tails == "learned":
            start = ordering.log_tails(torch.full((nodes - 1,), 3.0)) if self.legacy else uniform
        elif self.tails == "uniform":
            start = uniform
        elif self.tails == "geometric":
            start = ordering.coarser_tails(ordering.geometric_tails(whole, self.rate), nodes)
        else:
            start = ordering.coarser_tails(ordering.categorical_tails(list(self.probabilities)), nodes)
        dtype = torch.promote_types(weight.dtype, torch.float32)
        return start.to(weight.device, dtype), prior.to(weight.device, dtype)

    def _graph(self, model: nn.Module) -> ChannelGraph:
        """Who feeds whom: as given, or traced."""
        import torch

        from ...convert.channels import ChannelGraph, channel_graph

        if self.channels:
            stated = [_roles(text) for text in self.channels]
            return ChannelGraph.from_groups(model, {roles["producers"][0]: roles for roles in stated})
        example = None
        if self.input_shape is not None:
            like = next(model.parameters(), torch.zeros(()))
            example = torch.zeros(2, *self.input_shape, dtype=like.dtype, device=like.device)
        try:
            return channel_graph(model, example)
        except ConversionError as error:
            here = type(self).__name__
            raise ConversionError(
                f"{here} has to know who feeds whom, and {error}. With an example: "
                f"lb.{here}(input_shape=(3, 32, 32)); by hand: lb.{here}(channels=('conv1 > bn1 > conv2', ...))"
            ) from error


class _Annealing:
    """The callback of a temperature that falls."""

    def __init__(self, method: Ordered, units: list[OrderingUnit]) -> None:
        self.method, self.units, self.begun = method, units, False

    def after_step(self, state: Any) -> None:
        """Nothing, if it had begun."""
        if not self.begun:
            from ...training.callbacks import out_of_order

            raise out_of_order(type(self.method).__name__)

    def before_step(self, state: Any) -> None:
        """The temperature of the step."""
        self.begun = True
        from ...ordering.annealing import exponential

        method = self.method
        assert method.final_temperature is not None
        now = exponential(state.step, method.temperature, method.final_temperature, method.anneal_steps)
        for unit in self.units:
            unit.temperature.fill_(now)


def _roles(text: str) -> dict[str, list[str]]:
    """Producers, through and consumers of one group of channels, from "a, b > norm > c" or "a > c".

    >>> _roles("conv1 > bn1 > conv2, conv3")
    {'producers': ['conv1'], 'through': ['bn1'], 'consumers': ['conv2', 'conv3']}
    """
    parts = [[name.strip() for name in part.split(",") if name.strip()] for part in text.split(">")]
    if len(parts) not in (2, 3) or not parts[0] or not parts[-1]:
        raise ConfigError(
            f"channels: expected 'producers > consumers' or 'producers > norm layers > consumers', names separated by "
            f"commas, received {checks.short(text)}"
        )
    return {"producers": parts[0], "through": parts[1] if len(parts) == 3 else [], "consumers": parts[-1]}
