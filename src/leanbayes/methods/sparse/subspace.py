"""Sparse subspace variational inference (Li et al., 2024): Gaussians for a few weights, and a search for which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ... import checks
from ...config import check_choice, check_positive, check_whole
from ...errors import ConfigError
from ...priors import LogUniform, Normal, ScaleMixture, StudentT
from ...registry import register
from .config import SparseTraining

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ...posteriors.base import Posterior
    from ...posteriors.sparse import Sparse

REMOVALS = ("mean", "snr", "abs", "snr-abs", "exp", "snr-exp")


@register
@dataclass(frozen=True)
class SparseSubspace(SparseTraining):
    """A share of the weights is N(mu, sigma^2), the others are exactly zero; which ones is learned (algorithm 1).

    The number of active weights is the same from the first step to the last, and nothing else is stored or computed:
    parameters, gradients and optimiser state have one pair of numbers for each. Every `interval` steps the least
    important of a layer are replaced by the places where the loss would fall fastest.

    Args:
        density: the share of active weights, in (0, 1].
        allocation: the same share of every layer, or more of small ones ("erdos-renyi": Evci et al., 2020).
        interval: gradient steps between two updates (M in algorithm 1).
        replacement: the share of the active weights that an update replaces at first.
        schedule: how that share falls to zero until the last update; constant keeps it.
        until: the last update comes after this fraction of training.
        keep_returning: a weight that is removed and chosen again in one update keeps its values.
        keep_weights: start from the largest pretrained weights; otherwise from random places and fresh values.
        init_std: of fresh means; the layer's own initialisation if none is given, scaled up for the weights it lacks.
        prior: p(w) of every active weight.
        std: where sigma starts.
        removal: of the lowest |mu|, SNR(theta), E|theta|, SNR(|theta|), E exp(lam |theta|) or SNR(exp(lam |theta|)).
        lam: lambda of the last two.
        addition: by the gradient under one draw of the weights, at the means, or the mean of several steps.
        addition_steps: how many steps before an update "steps" looks at; a dense tensor a layer sums them up meanwhile.
        new_std: sigma of new weights, whose means are zero: the mean of those that stay in the layer, or a number.
        estimator: how noise reaches the outputs in training; see `leanbayes.layers.estimators`.

    Biases, and whatever a rule leaves alone, stay as they are. The parameters are new ones: make the optimiser after
    the conversion.

    >>> from torch import nn
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    >>> plan = lb.bayesianize_(model, lb.SparseSubspace(density=0.05))
    >>> plan.parameters_before, plan.parameters_after  # 370 active weights, 110 biases
    (7510, 850)
    """

    summary: ClassVar[str] = "a Gaussian for a small share of the weights, and a search for which"

    prior: Normal | LogUniform | StudentT | ScaleMixture = Normal()  # noqa: RUF009  (frozen)
    std: float = 0.01
    removal: Literal["mean", "snr", "abs", "snr-abs", "exp", "snr-exp"] = "snr-abs"
    lam: float = 1.0
    addition: Literal["sample", "mean", "steps"] = "sample"
    addition_steps: int = 5
    new_std: Literal["mean"] | float = "mean"
    estimator: Literal["local", "weight", "flipout"] = "local"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.prior, (Normal, LogUniform, StudentT, ScaleMixture)):
            raise ConfigError(
                "SparseSubspace.prior: expected a prior such as lb.Normal(std=1.0), "
                f"received {checks.short(self.prior)}"
            )
        check_positive(self, "std", "lam")
        check_choice(self, "removal", REMOVALS)
        check_choice(self, "addition", ("sample", "mean", "steps"))
        check_choice(self, "estimator", ("local", "weight", "flipout"))
        check_whole(self, "addition_steps")
        if self.addition == "steps" and self.addition_steps > self.interval:
            raise ConfigError(
                f"SparseSubspace.addition_steps: expected at most the interval of {self.interval} steps, "
                f"received {self.addition_steps}"
            )
        if self.new_std != "mean":
            check_positive(self, "new_std")

    def convert(self, module: nn.Module, memo: dict[int, Posterior]) -> nn.Module:
        """A BayesLayer whose weight is a SparseGaussian; biases stay as they are."""
        from ...layers.bayes import bayes_layer
        from ...posteriors.scale import rho_like
        from ...posteriors.sparse import SparseGaussian

        def make(name: str) -> Posterior:
            weight = module._parameters[name]
            assert weight is not None
            loc, index = self.start(module, self.count(weight, memo))
            return SparseGaussian(loc, rho_like(loc, self.std), index, weight.shape)

        layer = bayes_layer(
            module, make, lambda name: self.prior, random_bias=False, memo=memo, estimator=self.estimator
        )
        layer.__dict__["subspace"] = self
        return layer

    def keep_scores(self, q: Sparse) -> Tensor:
        """The removal criterion."""
        from ...posteriors.scale import std_from_rho
        from .criteria import removal_score

        rho: Any = q.rho
        return removal_score(self.removal, q.loc, std_from_rho(rho), self.lam)

    def newcomers(self, q: Sparse, survivors: Tensor) -> dict[str, Tensor | float]:
        """mu = 0; sigma as those that stay have it on average (section 3.2), or as told."""
        from ...posteriors.scale import rho_from_std, rho_like, std_from_rho

        rho: Any = q.rho
        if not isinstance(self.new_std, str):
            return {"loc": 0.0, "rho": rho_like(rho[:1], self.new_std)}
        std = std_from_rho(rho[survivors] if bool(survivors.any()) else rho).double().mean()
        return {"loc": 0.0, "rho": rho_from_std(std).to(q.dtype)}
