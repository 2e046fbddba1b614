"""Deep ensembles (Lakshminarayanan et al., 2017) of any method: several networks, trained apart, asked together."""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ... import checks
from ...config import check_choice, check_positive, check_whole
from ...errors import ConfigError
from ...method import Method
from ...registry import register

if TYPE_CHECKING:
    from torch import nn

    from ...posteriors.base import Posterior

MOST = 1000


@register
@dataclass(frozen=True)
class Ensemble(Method):
    """K networks, each with all parameters and statistics of its own, plain or under a method: K times the parameters.

    Args:
        members: how many networks.
        method: what each of them is, for example lb.MeanField(); plain networks if none is given.
        init: where the others start: afresh, by the layers' own initialisation, or close to the first, perturbed.
        perturbation: the size of the perturbation, relative to the root mean square of each tensor.

    The model as it was becomes member 0. A training step trains one member, in turn, and leaves the others exactly as
    they are, so that training is that of K separate networks: for each of them to see the data E times takes
    `fit(epochs=K * E)`. `predict` goes through the members one after the other; plain members need no more samples than
    there are members, and get no more.

    >>> from torch import nn
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    >>> plan = lb.bayesianize_(model, lb.Ensemble(members=5, method=lb.MeanField()))
    >>> plan.converted, plan.parameters_before, plan.parameters_after
    (['0', '1', '3'], 74, 660)
    """

    summary: ClassVar[str] = "several networks, plain or of any method; as many times the parameters"

    members: int = 5
    method: Method | None = None
    init: Literal["fresh", "perturb"] = "fresh"
    perturbation: float = 0.1

    def __post_init__(self) -> None:
        hint = "one network is no ensemble: leave it as it is, or give it a method"
        check_whole(self, "members", at_least=2, at_most=MOST, hint=hint)
        if self.method is not None and (not isinstance(self.method, Method) or type(self.method) is Method):
            raise ConfigError(
                "Ensemble.method: expected a method such as lb.MeanField(), or None, "
                f"received {checks.short(self.method)}"
            )
        if isinstance(self.method, Ensemble):
            raise ConfigError(
                f"Ensemble.method: an ensemble of ensembles is an ensemble; say "
                f"lb.Ensemble(members={self.members * self.method.members}) with the method of its members"
            )
        check_choice(self, "init", ("fresh", "perturb"))
        check_positive(self, "perturbation")

    def refuses(self, module: nn.Module) -> str | None:
        """What has nothing to be several of, and what cannot be copied or started afresh."""
        return _refusal(module, self.init)

    def selects(self, module: nn.Module, model: nn.Module) -> bool:
        """Every module with parameters or buffers; those it refuses are then named in the plan with the reason."""
        from .layer import owners

        return module in owners(module) or self.refuses(module) is None

    def parts(self, model: nn.Module) -> list[tuple[Method, Callable[[nn.Module], bool]]]:
        """On its own: the layers that its method would take, the others, and dropout layers, which need no copies."""
        inner = self.method
        if inner is None:
            return super().parts(model)
        chosen = {id(m) for m in model.modules() if inner.selects(m, model)}

        def random(module: nn.Module) -> bool:
            return self.selects(module, model) and any(id(part) in chosen for part in module.modules())

        def without_parameters(module: nn.Module) -> bool:
            return id(module) in chosen and not self.selects(module, model)

        parts: list[tuple[Method, Callable[[nn.Module], bool]]] = [
            (self, random),
            (dataclasses.replace(self, method=None), lambda module: self.selects(module, model)),
            (inner, without_parameters),
        ]
        return [(method, takes) for method, takes in parts if any(takes(m) for m in model.modules())]

    def prepare(self, modules: Mapping[str, nn.Module], memo: dict[int, Posterior]) -> None:
        """Let the method see all the layers of each member together."""
        if (inner := self.method) is None:
            return
        each = {name: self._copies(module, memo) for name, module in modules.items()}
        for number, (_, posteriors) in enumerate(self._made(memo)):
            members = _by_name({name: copies[number] for name, copies in each.items()})
            inner.prepare({name: part for name, part in members if inner.refuses(part) is None}, posteriors)

    def convert(self, module: nn.Module, memo: dict[int, Posterior]) -> nn.Module:
        """K copies of the module, the first of them with its own tensors, each under the method."""
        from .layer import EnsembleLayer, Turn, replaced

        shared: dict[Any, Any] = memo
        members = [
            replaced(one, partial(self._random, posteriors=posteriors))
            for one, (_, posteriors) in zip(self._copies(module, memo), self._made(memo), strict=True)
        ]
        return EnsembleLayer(members, shared.setdefault("turn", Turn()))

    def callbacks(self, model: nn.Module) -> list[Any]:
        """Turns, once however many layers and rules there are, and what the members' method needs."""
        from .layer import InTurn, layers

        first = layers(model)[0].__dict__.get("method") == self
        return [*([InTurn(model)] if first else []), *(self.method.callbacks(model) if self.method else [])]

    def attach(self, model: nn.Module) -> None:
        """All layers of the model take turns together."""
        from .layer import attach

        attach(model)

    detach = attach

    def _made(self, memo: dict[int, Posterior]) -> list[tuple[dict[int, Any], dict[int, Posterior]]]:
        """What has been copied, and what has been made random, for every member: tied tensors stay tied within it."""
        shared: dict[Any, Any] = memo
        made: Any = shared.setdefault(("members", self.members), [({}, {}) for _ in range(self.members)])
        return made  # type: ignore[no-any-return]

    def _copies(self, module: nn.Module, memo: dict[int, Posterior]) -> list[nn.Module]:
        """The module for each of the members, not random yet; made once."""
        from .layer import replaced

        shared: dict[Any, Any] = memo
        key = ("copies", id(module), self)
        if key not in shared:
            first = replaced(module, lambda part: None)
            _drop_hooks(first)
            others = self._made(memo)[1:]
            shared[key] = [first, *(self._started(copy.deepcopy(first, copies)) for copies, _ in others)]
        found: list[nn.Module] = shared[key]
        return found

    def _random(self, part: nn.Module, posteriors: dict[int, Posterior]) -> nn.Module | None:
        if self.method is None or self.method.refuses(part) is not None:
            return None
        return self.method.convert(part, posteriors)

    def _started(self, module: nn.Module) -> nn.Module:
        """The copy of a member with values of its own; what is frozen, or has none in a plan, stays as it is."""
        import torch

        trained = [p for p in module.parameters() if p.requires_grad]
        if any(p.is_meta for p in module.parameters()) or (not trained and any(True for _ in module.parameters())):
            return module
        if self.init == "fresh":
            for part in reversed(list(module.modules())):  # an attention sets a bias of what it holds, and comes last
                if (reset := _reset(part)) is not None:
                    reset()
            return module
        with torch.no_grad():
            for p in trained:
                size = p.square().mean().sqrt()
                p.add_(torch.randn_like(p) * size, alpha=self.perturbation)
        return module


def _by_name(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Every module inside of several, each by its whole name."""
    for name, module in modules.items():
        yield from module.named_modules(prefix=name)


def _refusal(module: nn.Module, init: str) -> str | None:
    from torch import nn
    from torch.nn.utils import parametrize

    from .layer import owners

    own = [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]
    if not own or (module._modules and not any(p is not None for p in module._parameters.values())):
        return "it has no parameters or buffers of its own"
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        return "its shape is not known yet (run one batch through the lazy module first)"
    if isinstance(module, parametrize.ParametrizationList) or any(map(_is_computed, module.modules())):
        return "its weight is computed from others (remove the parametrisation first); all members share it"
    if any(getattr(part, "is_bayes_layer", False) for part in module.modules()):
        return "it holds layers that are Bayesian already (restore_ them first); all members share it"
    if init == "fresh" and (part := next((p for p in owners(module) if _reset(p) is None), None)) is not None:
        return (
            f"{type(part).__name__} has no reset_parameters() to start a member afresh; give it one, or use "
            "Ensemble(init='perturb'); until then all members share it"
        )
    return None


def _reset(module: Any) -> Any:
    return getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)


def _is_computed(module: nn.Module) -> bool:
    """Whether a weight is computed from other tensors: parametrised, or weight or spectral norm of the old kind."""
    from torch.nn.utils import parametrize

    hooks = module._forward_pre_hooks.values()
    return parametrize.is_parametrized(module) or any(hasattr(h, "name") and hasattr(h, "apply") for h in hooks)


def _drop_hooks(module: nn.Module) -> None:
    """Hooks go over to the replacement, and must not run in the members as well."""
    for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        setattr(module, name, OrderedDict())
