"""The implementation of `SparseSubspace` and `Rigl`: a constant number of active weights, which mask updates move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from ...convert.conversion import Conversion, bayes_layer
from ...convert.implementation import Implementation, implements
from ...convert.trained import looks_trained
from ...errors import ConversionError
from ...layers.bayes import BayesLayer, FixedLayer
from ...layers.contract import BayesianLayer
from ...layers.operations import why_not_sparse
from ...method import Method
from ...posteriors.base import Posterior
from ...posteriors.scale import rho_from_std, rho_like, std_from_rho
from ...posteriors.sparse import Sparse, SparsePoint, largest
from ...priors import EmpiricalNormal
from ..mean_field.implementation import fresh, relative_std
from . import allocation
from .config import SMALL, Rigl, SparseSubspace, SparseTraining
from .criteria import removal_score
from .mask_updates import Alternation
from .posterior import SparseGaussian

S = TypeVar("S", bound=SparseTraining)


class _SparseTraining(Implementation[S], Generic[S]):
    """The base of both implementations."""

    def reason_unsupported(self, module: nn.Module) -> str | None:
        """For whatever is not a Linear or a convolution."""
        return why_not_sparse(module)

    def selects(self, module: nn.Module, model: nn.Module) -> bool:
        """Every Linear and convolution, except those that share their weight with another kind of module."""
        if self.reason_unsupported(module) is not None:
            return False
        holders = (m for m in model.modules() if any(p is module.weight for p in m._parameters.values()))
        return all(self.reason_unsupported(holder) is None for holder in holders)

    def prepare(self, modules: Mapping[str, nn.Module], conversion: Conversion) -> None:
        """Allot the active weights to the layers; a tied weight counts once."""
        config = self.config
        first: dict[int, tuple[str, Any]] = {}
        for name, module in modules.items():
            first.setdefault(id(module.weight), (name, module.weight))
        names, weights = [name for name, _ in first.values()], [weight for _, weight in first.values()]
        if config.allocation == "uniform":
            counts = [allocation.uniform(w.shape, config.density) for w in weights]
        else:
            counts = allocation.erdos_renyi([tuple(w.shape) for w in weights], config.density)
        if self.trained(conversion):
            ends = self._ends(conversion) if config.dense_ends else ()
            for number, w in enumerate(weights):
                kept = SMALL if config.fewest is None else config.fewest * len(w)
                counts[number] = max(counts[number], w.numel() if id(w) in ends else min(w.numel(), kept))
        allocation.check(names, [w.numel() for w in weights], counts, config.density)
        self._counts(conversion).update(zip(first, counts, strict=True))

    def note(self, module: nn.Module, conversion: Conversion) -> str:
        """Of the plan: how far training will thin out a layer that starts with all its weights."""
        if not self.trained(conversion) or not self.config.thinning:
            return ""
        weight: Any = module.weight
        left = self.count(weight, conversion) / max(weight.numel(), 1)
        return "keeps all its weights" if left == 1 else f"training thins it out to {left:.0%} of its weights"

    def trained(self, conversion: Conversion) -> bool:
        """Whether a trained network is converted and keeps its weights."""
        model = conversion.model
        if model is None or not self.config.keep_weights:
            return False
        return conversion.scratch("trained", lambda: looks_trained(model))

    def _ends(self, conversion: Conversion) -> set[int]:
        """The weights of the first and of the last layer of the model, in the order of registration."""
        assert conversion.model is not None
        layers: list[Any] = [m for m in conversion.model.modules() if self.reason_unsupported(m) is None]
        return {id(layer.weight) for layer in (*layers[:1], *layers[-1:])}

    def first_count(self, weight: Tensor, conversion: Conversion) -> int:
        """The number of active weights of a tensor at the start: all if training will thin them out."""
        dense = self.trained(conversion) and self.config.thinning > 0
        return weight.numel() if dense else self.count(weight, conversion)

    def count(self, weight: Tensor, conversion: Conversion) -> int:
        """The number of active weights of a tensor."""
        config = self.config
        if (found := self._counts(conversion).get(id(weight))) is not None:
            return found
        if config.allocation != "uniform":
            raise ConversionError(
                f"{type(config).__name__}: expected all layers at once to share {config.density} of their weights "
                "among them, received one alone (in an ensemble, say); use allocation='uniform'"
            )
        count = allocation.uniform(weight.shape, config.density)
        allocation.check([""], [weight.numel()], [count], config.density)
        return count

    def _counts(self, conversion: Conversion) -> dict[int, int]:
        return conversion.scratch(self.config, dict[int, int])

    def start(self, module: nn.Module, count: int) -> tuple[nn.Parameter, Tensor]:
        """Values and places to start from: the largest of the module's weights, or new values at random places."""
        config = self.config
        weight: Any = module.weight
        if config.keep_weights:
            return largest(weight, count)
        index = torch.randperm(weight.numel(), device=weight.device)[:count].sort().values
        if config.init_std is not None:
            values = torch.randn(count, dtype=weight.dtype, device=weight.device) * config.init_std
        else:
            # fewer weights feed an output: larger ones keep its variance (Evci et al., 2022)
            new: Any = fresh(module).weight
            values = new.detach().flatten()[index] * (weight.numel() / count) ** 0.5
        return nn.Parameter(values, weight.requires_grad), index

    def callbacks(self, model: nn.Module) -> list[Any]:
        """The callback of the mask updates, for the layers of this method."""
        layers = {n: m for n, m in model.named_modules() if isinstance(m, BayesLayer) and m.subspace == self.config}
        return [Alternation(self, layers)] if layers else []

    def keep_scores(self, q: Sparse) -> Tensor:
        """The scores of active weights, (n,); those with the lowest are removed."""
        raise NotImplementedError

    def newcomers(self, q: Sparse, survivors: Tensor) -> dict[str, Tensor | float]:
        """The first values of the parameters of new weights; survivors: a mask (n,) of the weights that stay."""
        raise NotImplementedError


@implements(SparseSubspace)
class _SparseSubspace(_SparseTraining[SparseSubspace]):
    def convert(self, module: nn.Module, conversion: Conversion) -> BayesLayer:
        """A BayesLayer whose weight is a SparseGaussian; biases stay as they are."""
        config = self.config

        def make(name: str) -> Posterior:
            weight = module.get_parameter(name)
            loc, index = self.start(module, self.first_count(weight, conversion))
            std = config.std or (relative_std(loc, EmpiricalNormal().scale) if self.trained(conversion) else 0.01)
            q = SparseGaussian(loc, rho_like(loc, std), index, weight.shape)
            q.goal = self.count(weight, conversion)
            return q

        layer = bayes_layer(
            module, conversion, make, lambda name: config.prior, random_bias=False, estimator=config.estimator
        )
        layer.subspace = config
        return layer

    def keep_scores(self, q: Sparse) -> Tensor:
        """The removal criterion."""
        rho: Any = q.rho
        return removal_score(self.config.removal, q.loc, std_from_rho(rho), self.config.lam)

    def newcomers(self, q: Sparse, survivors: Tensor) -> dict[str, Tensor | float]:
        """mu = 0; sigma the mean of those that stay (section 3.2), or ``new_std``."""
        rho: Any = q.rho
        if not isinstance(self.config.new_std, str):
            return {"loc": 0.0, "rho": rho_like(rho[:1], self.config.new_std)}
        std = std_from_rho(rho[survivors] if bool(survivors.any()) else rho).double().mean()
        return {"loc": 0.0, "rho": rho_from_std(std).to(q.dtype)}


@implements(Rigl)
class _Rigl(_SparseTraining[Rigl]):
    def convert(self, module: nn.Module, conversion: Conversion) -> FixedLayer:
        """A FixedLayer whose weight is a SparsePoint."""
        weight = module.get_parameter("weight")

        def make() -> SparsePoint:
            q = SparsePoint(*self.start(module, self.first_count(weight, conversion)), weight.shape)
            q.goal = self.count(weight, conversion)
            return q

        point = conversion.posterior(weight, make)
        layer = FixedLayer(module, {"weight": point}, {})
        layer.subspace = self.config
        return layer

    def keep_scores(self, q: Sparse) -> Tensor:
        """|w|."""
        return q.loc.detach().abs()

    def newcomers(self, q: Sparse, survivors: Tensor) -> dict[str, Tensor | float]:
        """Zero."""
        return {"loc": 0.0}

    def rebuilds(self, layer: BayesianLayer) -> Method | None:
        """A Rigl with the same number of weights, which do not move."""
        q = layer.posterior("weight")
        if not isinstance(q, SparsePoint):
            return None
        return Rigl(density=q.density, replacement=0.0, thinning=0.0, fewest=0, dense_ends=False)
