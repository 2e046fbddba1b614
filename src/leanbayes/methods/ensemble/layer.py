"""Ensembles: layers that hold K members, and the random site that selects one of them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...convert.apply import swap_
from ...errors import ConversionError, PredictionError
from ...layers.contract import BayesianLayer, original, remove_hooks
from ...posteriors.base import Posterior, exchanged
from ...sampling import Site, context, handed_over


class Turn(Site):
    """The index of the member that a pass uses: one random site that all layers of an ensemble share.

    period: the number of members (the least common multiple if layers differ; a layer takes the index modulo its own).
    member: the index of the present or last pass. held: whether a callback has set it for a whole training step.

    The index is a Python int, so that a pass does not wait for the device and torch.compile has a graph per member.
    """

    has_mean = False
    no_mean = (
        "an ensemble is several networks, and the mean of their weights is none of them; take one with "
        "leanbayes.methods.ensemble.layer.member(model, number)"
    )
    is_laid_out = True
    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        self.period, self.member, self.next, self.held = 1, 0, 0, False

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        """The index of a member, uniformly distributed."""
        return torch.randint(self.period, (), generator=generator)

    def of_sample(self, seed: int, number: int, sample: int) -> Tensor:
        """The member of a sample: (seed + sample) mod K, so that K samples use each member once."""
        return torch.tensor((seed + sample) % self.period)

    def cycle(self, balanced: bool | None = None, alone: bool = True) -> int | None:
        """The number of members."""
        return self.period

    def index(self) -> int | Tensor:
        """The member of this pass; a tensor if `torch.func.vmap` runs over several."""
        if (given := handed_over(self)) is None:
            return self.member
        try:
            return int(given)
        except RuntimeError:  # under vmap
            return given

    def advance(self) -> None:
        """The next member in turn."""
        self.member, self.next = self.next, (self.next + 1) % self.period

    def begin(self, model: nn.Module, inputs: Any) -> None:
        """Called before each pass of the model: selects the next member in training, a random one otherwise."""
        given = context.draws is not None and id(self) in context.draws
        if given or context.mean_only or (self.training and self.held):
            return
        if self.training or torch.compiler.is_compiling():  # a random number would break the graph
            self.advance()
        else:
            self.member = int(self.noise())

    def extra_repr(self) -> str:
        """The number of members and the present one."""
        return f"period={self.period}, member={self.member}"


class EnsembleLayer(BayesianLayer):
    """K modules in place of one, each with its own parameters and statistics; a pass uses one of them.

    members: the modules; the first is the original one.
    turn: shared by all layers of a model, so that a pass uses one whole network.

    Attributes of the module (``weight``, ``in_features``, ...) are those of the selected member.

    >>> layer = EnsembleLayer([nn.Linear(3, 2) for _ in range(5)], Turn())
    >>> layer(torch.zeros(1, 3)).shape, layer.in_features, len(layer.resting_members)
    (torch.Size([1, 2]), 3, 4)
    """

    def __init__(self, members: list[nn.Module], turn: Turn) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.turn = turn
        turn.period = math.lcm(turn.period, len(members))
        self.training = self.members.training = members[0].training

    def forward(self, *args: Any, **named: Any) -> Any:
        """The output of the selected member; called as the module was."""
        if context.mean_only:
            raise PredictionError(
                f"mean-only inference of an ensemble is meaningless: it is {len(self.members)} networks, and the mean "
                f"of their weights is none of them; predict(..., samples={len(self.members)}) asks each once"
            )
        return self._through_all(self._use(lambda member: member(*args, **named)))

    @property
    def shell(self) -> nn.Module:  # type: ignore[override]
        """The original module, whose options all members have."""
        return original(self.members[0])

    def named_posteriors(self) -> dict[str, Posterior]:
        """The posteriors of the first member, which `restored` returns."""
        first = self.members[0]
        return first.named_posteriors() if isinstance(first, BayesianLayer) else {}

    @property
    def resting_members(self) -> list[nn.Module]:  # type: ignore[override]
        """The members that are not selected: they get no gradient, no KL and no statistics."""
        active = self.turn.member % len(self.members)
        return [member for number, member in enumerate(self.members) if number != active]

    def scale_noise_(self, factor: float) -> Callable[[], None] | None:
        """Move plain members away from the mean of their parameters; random ones have posteriors to scale."""
        if any(isinstance(part, BayesianLayer) for member in self.members for part in member.modules()):
            return None
        values = {}
        for tied in zip(*(member.parameters() for member in self.members), strict=True):
            mean = torch.stack([p.detach() for p in tied]).mean(0)
            values.update({p: mean + factor * (p.detach() - mean) for p in tied})
        return exchanged(values) if values else None

    def restored(self) -> nn.Module:
        """The first member, plain again."""
        plain = replaced(self.members[0], _restored)
        plain.training = self.training
        return plain

    def _use(self, call: Callable[[nn.Module], Any]) -> Any:
        index = self.turn.index()
        if not isinstance(index, Tensor):
            return call(self.members[index % len(self.members)])
        # under vmap, the outputs of all members are computed once for inputs that samples share
        chosen = index.remainder(len(self.members)).reshape(1)

        def choose(*each: Any) -> Any:
            if not isinstance(each[0], Tensor):
                return each[0]
            return torch.stack(each).index_select(0, chosen.to(each[0].device)).squeeze(0)

        return tree_map(choose, *(call(member) for member in self.members))

    def _through_all(self, output: Any) -> Any:
        """The output, with a zero gradient to the resting members in distributed training.

        DistributedDataParallel waits for the gradient of every parameter; the ensemble's callback removes them.
        """
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if not (distributed and self.training and torch.is_grad_enabled()):
            return output
        own = [p for member in self.resting_members for p in member.parameters() if p.requires_grad]
        nothing = sum(p.reshape(-1)[:0].sum() for p in own)  # 0 also if values are infinite
        return tree_map(
            lambda x: x + nothing if isinstance(x, Tensor) and x.is_floating_point() else x,  # type: ignore[operator]
            output,
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # only attributes of the original module, not of the Bayesian layer
            if "members" not in self.__dict__.get("_modules", {}) or not hasattr(self.shell, name):
                raise
            return self._use(lambda member: getattr(member, name))

    def extra_repr(self) -> str:
        """What it stands for."""
        return f"{len(self.members)} x {type(self.shell).__name__}"


class InTurn:
    """The callback of an ensemble: a training step trains one member and does not change the others.

    Batch b of epoch e trains member (b + e) mod K, so that over K epochs every member sees every batch position. The
    gradients of the others are removed, since momentum or weight decay would move them even if they were 0.
    """

    def __init__(self, model: nn.Module) -> None:
        self.layers = layers(model)
        self.turns = list({id(layer.turn): layer.turn for layer in self.layers}.values())

    def fit_start(self, state: Any) -> None:
        """Start with member 0."""
        self._start_at(0)

    def before_step(self, state: Any) -> None:
        """Select the next member for all passes of the step."""
        for turn in self.turns:
            turn.advance()
            turn.held = True

    def after_backward(self, state: Any) -> None:
        """Remove the gradients of the other members."""
        for layer in self.layers:
            for member in layer.resting_members:
                for parameter in member.parameters():
                    parameter.grad = None

    def after_step(self, state: Any) -> None:
        """Release the member of the step."""
        for turn in self.turns:
            turn.held = False

    def epoch_end(self, state: Any) -> None:
        """Start the next epoch with the next member."""
        self._start_at(state.epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """The index of the next member."""
        return {"next": [turn.next for turn in self.turns]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the index of the next member."""
        for turn, number in zip(self.turns, state["next"], strict=True):
            turn.next = number

    def _start_at(self, number: int) -> None:
        for turn in self.turns:
            turn.next, turn.held = number % turn.period, False


def layers(model: nn.Module) -> list[EnsembleLayer]:
    """The ensemble layers of a model, each once."""
    return [module for module in model.modules() if isinstance(module, EnsembleLayer)]


def attach(model: nn.Module) -> None:
    """Give all ensemble layers of a model one `Turn`, advanced at every pass; its hook goes with the last layer."""
    found = layers(model)
    old = remove_hooks(model, Turn)
    if not found:
        return
    turn = old[0] if old else found[0].turn
    for layer in found:
        turn.period = math.lcm(turn.period, layer.turn.period)
        layer.turn = turn
    model.register_forward_pre_hook(turn.begin)


def member(model: nn.Module, number: int) -> nn.Module:
    """One network of an ensemble by its number, as a copy.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(2, 2))
    >>> _ = lb.bayesianize_(model, lb.Ensemble(3))
    >>> member(model, 2)
    Sequential(
      (0): Linear(in_features=2, out_features=2, bias=True)
    )
    """
    found = layers(model)
    count = min((len(layer.members) for layer in found), default=0)
    if not 0 <= number < count:
        there = f"a member from 0 to {count - 1}" if found else "an ensemble (lb.bayesianize_(model, lb.Ensemble()))"
        raise ConversionError(f"expected {there}, received number {number} of a {type(model).__name__}")
    one = copy.deepcopy(model)
    parts = {id(layer): layer.members[number] for layer in layers(one)}
    for layer in layers(one):
        for part in layer.members[number].modules():  # its random parts are of the members' method
            if isinstance(part, BayesianLayer):
                part.method = layer.method.method  # type: ignore[union-attr]
    swap_(one, parts)
    attach(one)
    return one


def replaced(
    module: nn.Module, use: Callable[[nn.Module], nn.Module | None], seen: dict[int, nn.Module] | None = None
) -> nn.Module:
    """A copy of a module that shares its tensors, with submodules replaced where ``use`` returns a replacement."""
    seen = {} if seen is None else seen
    if id(module) not in seen:
        other = use(module)
        if other is None:
            other = copy.copy(module)
            other._parameters, other._buffers = dict(module._parameters), dict(module._buffers)
            other._modules = {n: None if m is None else replaced(m, use, seen) for n, m in module._modules.items()}
        seen[id(module)] = other
    return seen[id(module)]


def _restored(module: nn.Module) -> nn.Module | None:
    return module.restored() if isinstance(module, BayesianLayer) else None


def owners(module: nn.Module) -> Iterator[nn.Module]:
    """The modules inside a module, itself included, that have parameters of their own."""
    return (part for part in module.modules() if any(p is not None for p in part._parameters.values()))
