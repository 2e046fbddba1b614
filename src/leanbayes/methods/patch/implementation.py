"""The implementation of `Patch`, `DropConnect` and `Point`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...convert.conversion import Conversion
from ...convert.implementation import Implementation, implements
from ...layers.contract import BayesianLayer
from ...layers.operations import WEIGHT_LAYERS, refusal as weight_refusal
from ...priors import Normal
from ..mean_field.implementation import fresh
from .assignment import Assignment, BalancedAssignment
from .config import DropConnect, Patch, Point
from .layer import Patched, attach, is_norm, refusal
from .mixing import ScoreFunction
from .mixture import Mixture, drop_connect


@implements(Patch)
class _Patch(Implementation[Patch]):
    def reason_unsupported(self, module: nn.Module) -> str | None:
        """None for norm layers with a weight, and for layers with a weight operation."""
        return refusal(module)

    def selects(self, module: nn.Module, model: nn.Module) -> bool:
        """Norm layers and the output layer, with layers that share its weight (such as an Embedding)."""
        weights = weight_layers(model)
        return is_norm(module) or module in with_ties(weights[-1:], weights)

    def convert(self, module: nn.Module, conversion: Conversion) -> Patched:
        """A layer whose weight and bias are mixtures."""
        config, posteriors = self.config, dict[str, Mixture]()
        together = self._together(conversion)
        for name, w in module._parameters.items():
            if w is None:
                continue
            if (tied := conversion.posteriors.get(id(w))) is not None:
                # other parameters of a layer with one component take that of the tied parameter
                together = None if together is None else tied.assignment  # type: ignore[assignment]
            site = together or self._site(tuple(w.shape))
            posteriors[name] = conversion.posterior(
                w,
                lambda w=w, site=site, name=name: Mixture.from_tensor(w, site, self._others(module, name)),  # type: ignore[misc]
            )
        statistics = config.statistics if module._buffers.get("running_mean") is not None else "shared"
        priors = priors_of(config, module)
        return Patched(module, posteriors, priors, approximation=config.divergence, statistics=statistics)

    def attach(self, model: nn.Module) -> None:
        """Draw an assignment that all layers share once per pass."""
        attach(model)

    detach = attach

    def callbacks(self, model: nn.Module) -> list[Any]:
        """The callback of learned probabilities."""
        if self.config.mixing == "given":
            return []
        layers = [m for m in model.modules() if isinstance(m, Patched) and m.method == self.config]
        sites = {id(site): site for layer in layers for site in layer.assignments()}
        return [ScoreFunction(list(sites.values()))]

    def _together(self, conversion: Conversion) -> Assignment | None:
        """The single assignment of a layer, or of all layers; None if every element has its own index."""
        if self.config.cross:
            return None
        if not self.config.shared:
            return self._site(())
        return conversion.scratch((self.config, "assignment"), lambda: self._site((), held=True))

    def _site(self, shape: tuple[int, ...], held: bool = False) -> Assignment:
        kind = BalancedAssignment if self.config.balanced else Assignment
        return kind(shape, self.config.p, held=held, learned=self.config.mixing == "learned")

    def _others(self, module: nn.Module, name: str) -> Tensor:
        """The first values of the other components of a parameter, (K - 1, *shape)."""
        config = self.config
        w: Any = module._parameters[name]
        w = w.detach()
        row = module.padding_idx if isinstance(module, nn.Embedding) else None  # whose padding row is a constant
        if w.is_meta or (config.init == "fresh" and not is_norm(module)):
            each = [w if w.is_meta else fresh(module)._parameters[name] for _ in range(config.components - 1)]
            others = torch.stack(each).detach()  # type: ignore[arg-type]
            if row is not None:
                others[:, row] = w[row]
            return others
        size = _size(w) or _size(module._parameters["weight"])
        if not size:  # all zeros
            size = 1.0 if is_norm(module) else _size(fresh(module)._parameters["weight"])
        noise = torch.randn((config.components - 1, *w.shape), dtype=w.dtype, device=w.device)
        if config.components > 2:  # keep the mean at w and the spread that of independent noise
            p = torch.tensor(config.p[1:], dtype=torch.float64)
            p = (p / p.sum()).to(w).reshape(-1, *(1,) * w.ndim)
            noise = (noise - (p * noise).sum(0)) / (1 - p.square().sum()).sqrt()
        if row is not None:
            noise[:, row] = 0
        return w + config.perturbation * size * noise


@implements(DropConnect)
class _DropConnect(Implementation[DropConnect]):
    def selects(self, module: nn.Module, model: nn.Module) -> bool:
        """Every weight layer except the first, if there are several that do not share its weight."""
        weights = weight_layers(model)
        return module in with_ties(weights[1:] or weights, weights)

    def convert(self, module: nn.Module, conversion: Conversion) -> Patched:
        """A layer whose weight is a mixture of itself and zero."""
        config = self.config
        w = module._parameters["weight"]
        assert w is not None
        q = conversion.posterior(w, lambda: drop_connect(w, config.rate, balanced=config.balanced))
        return Patched(module, {"weight": q}, {} if config.prior is None else {"weight": config.prior})


@implements(Point)
class _Point(Implementation[Point]):
    def reason_unsupported(self, module: nn.Module) -> str | None:
        """For whatever `Patch` cannot convert."""
        return refusal(module)

    def convert(self, module: nn.Module, conversion: Conversion) -> Patched:
        """The same operation with the same parameters."""
        return Patched(module, {}, priors_of(self.config, module))


def weight_layers(model: nn.Module) -> list[nn.Module]:
    """Linear layers, convolutions and embeddings, Bayesian or not, in the order of registration."""
    return [m for m in model.modules() if weight_refusal(m) is None or _is_bayesian_weight_layer(m)]


def _is_bayesian_weight_layer(module: nn.Module) -> bool:
    return isinstance(module, BayesianLayer) and isinstance(module.shell, WEIGHT_LAYERS)


def with_ties(chosen: list[nn.Module], weights: list[nn.Module]) -> list[nn.Module]:
    """The chosen layers, and those that share a weight with one of them."""
    shared = {id(w) for layer in chosen if (w := layer._parameters.get("weight")) is not None}
    return [layer for layer in weights if id(layer._parameters.get("weight")) in shared]


def priors_of(config: Any, module: nn.Module) -> dict[str, Normal]:
    """The prior of each parameter by name, from ``prior`` and ``bias_prior`` of a config."""
    if config.prior is None:
        return {}
    own = [name for name, parameter in module._parameters.items() if parameter is not None]
    return {name: config.bias_prior or config.prior if name == "bias" else config.prior for name in own}


def _size(w: Tensor | None) -> float:
    """The root mean square, in double precision since half loses small squares."""
    return 0.0 if w is None else float(w.detach().double().square().mean().sqrt())
