"""Ensemble model patching (Chang et al., 2019): several values for the few parameters that matter most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ... import checks
from ...config import check_choice, check_flag, check_positive, check_whole
from ...errors import ConfigError, ConversionError
from ...method import Method
from ...priors import Normal
from ...registry import register
from .weight_layers import check_priors, priors_of, weight_layers, with_ties

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ...posteriors.base import Posterior
    from .mixture import Assignment

MOST = 1000


@register
@dataclass(frozen=True)
class Patch(Method):
    """K components for the parameters of norm layers, of the output, or of whatever layers it is given.

    Args:
        components: how many values each patched parameter has.
        cross: every element takes a component by itself (ECMP, equation 5); otherwise a layer's weight and bias take
            one together (EMP, equation 4).
        shared: one component for all layers: an explicit ensemble of these parameters.
        probabilities: of the components; none for all as likely.
        mixing: "given" keeps these probabilities; "learned" begins with them and trains them, one set for every tensor
            (every layer where cross is False), by the score function; see `leanbayes.methods.patch.mixing`.
        prior: of the weights, Normal(0, tau^-1/2); None leaves them to the optimiser's weight decay.
        bias_prior: of the biases (rho in the paper); as the weights' if none is given.
        divergence: "equation 6" leaves the constants out; "bound" has them; "monte carlo" is unbiased.
        init: where the other components start: close to the pretrained values, perturbed, or afresh, by the layer's own
            initialisation (norm layers, which it starts at constants, are perturbed in either case).
        perturbation: the size of the perturbation, relative to the root mean square of the tensor: how strong the noise
            is at the start, and the one number to tune. Less stays close to a pretrained network, and overconfident
            where that is; the default is for a network that will be trained for some epochs.
        statistics: of a BatchNorm: shared by all components, or one set for each (EMP and ensembles only).
        balanced: `predict` lays the assignments out so that every component is used equally often.

    Component 0 is the model as it was. With three or more components the perturbations of the others, each weighed by
    its probability, sum to zero, so that the mean of the mixture is the pretrained tensor; a component less likely than
    the others starts further away than they do. On its own it takes norm layers and the output layer: the
    last weight layer in the order of registration.

    >>> from torch import nn
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    >>> plan = lb.bayesianize_(model, Patch(components=5))
    >>> plan.converted, plan.parameters_before, plan.parameters_after
    (['1', '3'], 74, 210)
    """

    summary: ClassVar[str] = "several values for norm layers and the output, mixed; a few percent more parameters"

    components: int = 5
    cross: bool = True
    shared: bool = False
    probabilities: tuple[float, ...] = ()
    mixing: Literal["given", "learned"] = "given"
    prior: Normal | None = Normal()  # noqa: RUF009  (frozen)
    bias_prior: Normal | None = None
    divergence: Literal["equation 6", "bound", "monte carlo"] = "equation 6"
    init: Literal["perturb", "fresh"] = "perturb"
    perturbation: float = 0.3
    statistics: Literal["shared", "component"] = "shared"
    balanced: bool = True

    def __post_init__(self) -> None:
        hint = "one component is the layer as it is: leave it alone"
        check_whole(self, "components", at_least=2, at_most=MOST, hint=hint)
        check_flag(self, "cross", "shared", "balanced")
        check_choice(self, "divergence", ("equation 6", "bound", "monte carlo"))
        check_choice(self, "mixing", ("given", "learned"))
        check_choice(self, "init", ("perturb", "fresh"))
        check_choice(self, "statistics", ("shared", "component"))
        check_positive(self, "perturbation")
        check_priors(self)
        if self.cross and self.shared:
            raise ConfigError("Patch: expected cross or shared, received both; shared=True needs cross=False")
        if self.cross and self.statistics == "component":
            raise ConfigError(
                "Patch.statistics: expected 'shared' where every element has a component of its own (cross=True), "
                "received 'component'; use cross=False"
            )
        self._check_probabilities()

    def _check_probabilities(self) -> None:
        if not isinstance(self.probabilities, tuple):
            raise ConfigError(
                f"Patch.probabilities: expected a tuple of numbers, received {checks.short(self.probabilities)}"
            )
        if not self.probabilities:
            return
        if len(self.probabilities) != self.components:
            raise ConfigError(
                f"Patch.probabilities: expected one for each of {self.components} components, received "
                f"{len(self.probabilities)}"
            )
        from .assignment import check_probabilities

        check_probabilities("Patch.probabilities", self.probabilities)

    @property
    def p(self) -> tuple[float, ...]:
        """The probability of every component."""
        return self.probabilities or (1 / self.components,) * self.components

    def refuses(self, module: nn.Module) -> str | None:
        """Whatever is no norm layer with a weight and has no operation with one."""
        from .layer import refusal

        return refusal(module)

    def selects(self, module: nn.Module, model: nn.Module) -> bool:
        """Norm layers and the output, with whatever shares the output's weight (an Embedding, say)."""
        weights = weight_layers(model)
        return norm_layer("", module) or module in with_ties(weights[-1:], weights)

    def convert(self, module: nn.Module, memo: dict[int, Posterior]) -> nn.Module:
        """A layer whose weight and bias are mixtures."""
        from .layer import Patched
        from .mixture import Mixture

        known: dict[Any, Any] = memo
        priors, posteriors = priors_of(self, module), {}
        together = self._together(known)
        for name, w in module._parameters.items():
            if w is None:
                continue
            if id(w) in memo:  # tied: where a layer takes one component, what else it has goes with it
                together = None if together is None else known[id(w)].assignment
            else:
                site = together or self._site(tuple(w.shape))
                memo[id(w)] = Mixture.from_tensor(w, site, self._others(module, name))
            posteriors[name] = known[id(w)]
        statistics = self.statistics if module._buffers.get("running_mean") is not None else "shared"
        return Patched(module, posteriors, priors, approximation=self.divergence, statistics=statistics)

    def attach(self, model: nn.Module) -> None:
        """An assignment that all layers share is drawn once a pass."""
        from .layer import attach

        attach(model)

    detach = attach

    def callbacks(self, model: nn.Module) -> list[Any]:
        """The gradient of learned probabilities."""
        if self.mixing == "given":
            return []
        from .layer import Patched
        from .mixing import ScoreFunction

        layers = [m for m in model.modules() if isinstance(m, Patched) and m.__dict__.get("method") == self]
        sites = {id(site): site for layer in layers for site in layer.assignments()}
        return [ScoreFunction(list(sites.values()))]

    def _together(self, known: dict[Any, Any]) -> Assignment | None:
        """The one index of a layer, or of all layers; None where every element has its own."""
        if self.cross:
            return None
        if not self.shared:
            return self._site(())
        return known.setdefault(("assignment", self), self._site((), held=True))  # type: ignore[no-any-return]

    def _site(self, shape: tuple[int, ...], held: bool = False) -> Assignment:
        from .mixture import Assignment, BalancedAssignment

        kind = BalancedAssignment if self.balanced else Assignment
        return kind(shape, self.p, held=held, learned=self.mixing == "learned")

    def _others(self, module: nn.Module, name: str) -> Tensor:
        """Where the other components of a parameter start, (K - 1, *shape)."""
        import torch

        from ..mean_field.config import fresh
        from .layer import is_norm

        w: Any = module._parameters[name]
        w, row = w.detach(), getattr(module, "padding_idx", None)  # the padding row of an Embedding is a constant
        if w.is_meta or (self.init == "fresh" and not is_norm(module)):
            each = [w if w.is_meta else fresh(module)._parameters[name] for _ in range(self.components - 1)]
            others = torch.stack(each).detach()  # type: ignore[arg-type]
            if row is not None:
                others[:, row] = w[row]
            return others
        size = (
            _size(w)
            or _size(module._parameters["weight"])
            or (  # all zeros: what a layer of its kind starts at
                1.0 if is_norm(module) else _size(fresh(module)._parameters["weight"])
            )
        )
        noise = torch.randn((self.components - 1, *w.shape), dtype=w.dtype, device=w.device)
        if self.components > 2:  # the mean stays where it was, and the spread what it would have been
            p = torch.tensor(self.p[1:], dtype=torch.float64)
            p = (p / p.sum()).to(w).reshape(-1, *(1,) * w.ndim)
            noise = (noise - (p * noise).sum(0)) / (1 - p.square().sum()).sqrt()
        if row is not None:
            noise[:, row] = 0
        return w + self.perturbation * size * noise


def norm_layer(name: str, module: nn.Module) -> bool:
    """A selector: norm layers."""
    from .layer import is_norm

    return is_norm(module)


def norms(patch: Patch | None = None) -> dict[Any, Method | None]:
    """The rule set of norm layers alone: BatchNorm, LayerNorm and GroupNorm, whatever the network.

    >>> import leanbayes as lb
    >>> from leanbayes.models import resnet18
    >>> lb.plan(resnet18(), norms(Patch(components=5))).growth - 1  # table 4: 0.328 %
    0.0032849...
    """
    if patch is not None and not isinstance(patch, Patch):
        raise ConfigError(f"norms: expected lb.Patch(...) or nothing, received {type(patch).__name__}")
    return {norm_layer: patch or Patch()}


def norms_and_output(model: nn.Module, patch: Patch | None = None) -> dict[Any, Method | None]:
    """The rule set of norm layers and the output, the last weight layer in the order of registration.

    >>> import leanbayes as lb
    >>> from leanbayes.models import resnet18
    >>> lb.plan(model := resnet18(), norms_and_output(model)).parameters_after  # table 3
    13779912
    """
    layers = _outer(model)
    return {**norms(patch), **dict.fromkeys([layers[-1], *with_ties(layers[-1:], layers)], patch or Patch())}


def norms_input_output(model: nn.Module, patch: Patch | None = None) -> dict[Any, Method | None]:
    """The rule set of norm layers, the input and the output: the first and the last weight layer."""
    layers = _outer(model)
    first = [layers[0], *with_ties(layers[:1], layers)]
    return {**norms_and_output(model, patch), **dict.fromkeys(first, patch or Patch())}


def _outer(model: nn.Module) -> list[nn.Module]:
    if not hasattr(model, "named_modules"):
        raise ConversionError(
            f"expected the model first, then lb.Patch(...), received {type(model).__name__}; for example "
            "norms_and_output(model, lb.Patch(5))"
        )
    if not (found := weight_layers(model)):
        raise ConversionError(
            f"expected a model with a Linear, convolution or Embedding as its output, received a "
            f"{type(model).__name__} without any that can be patched; write the rules by hand"
        )
    return found


def _size(w: Tensor | None) -> float:
    """The root mean square; half precision would lose the squares of small numbers."""
    return 0.0 if w is None else float(w.detach().double().square().mean().sqrt())
