"""`BayesLayer`: a layer whose parameters are posteriors, for any operation and any posterior."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..errors import ConversionError, PredictionError
from ..kl import Term, kl
from ..posteriors.sparse import SparsePoint
from ..sampling import context, draw, value
from ..turns import check_forward
from . import sparse
from .estimators import ESTIMATORS
from .operations import why_not_sparse
from .shell import StandIn

if TYPE_CHECKING:
    from ..method import Method
    from ..posteriors.base import Posterior
    from ..priors import Prior

SPARSE_BELOW = 0.5
"""The share of weights left below which a value and its place take less than the whole tensor."""


class BayesLayer(StandIn):
    """A Linear, convolution, transposed convolution or Embedding whose weight (and bias) is a distribution.

    posteriors: q of each random parameter by name; a parameter that is not named stays an ordinary one.
    priors: p of each random parameter by name.
    approximation: which KL formula where a pair has several (see `leanbayes.kl.kl`).

    Reading ``layer.weight`` gives a draw (the mean under ``mean_only``), so code that uses it directly keeps working.

    >>> import torch
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 3))
    >>> _ = lb.bayesianize_(model, lb.MeanField())
    >>> model[0](torch.zeros(2, 4)).shape, model[0].in_features
    (torch.Size([2, 3]), 4)
    """

    subspace: Method | None = None
    """The sparse training that moves the active places of its weight, where one does."""
    weight_read: Callable[[BayesLayer, Any], None] | None = None
    """Called with every value that ``layer.weight`` gives, as forward hooks are with outputs: some modules of torch's
    (MultiheadAttention its out_proj's) read a weight instead of calling the layer."""

    def __init__(
        self,
        module: nn.Module,
        posteriors: dict[str, Posterior],
        priors: dict[str, Prior],
        *,
        estimator: str = "local",
        approximation: str | None = None,
    ) -> None:
        super().__init__(module, taken=tuple(posteriors))
        self.posteriors = nn.ModuleDict(posteriors)
        self.priors = priors
        self.estimator = estimator
        self.approximation = approximation
        self.train(module.training)

    def forward(self, input: Tensor, *extra: Any, **named: Any) -> Tensor:
        """The module's operation under one draw of the noise, or at the means; called as the module was."""
        check_forward(self)
        estimator = context.estimator or self.estimator
        q = self.posterior("weight")
        if q is not None and q.is_sparse and (done := sparse.forward(self, input, estimator)) is not None:
            return done
        if context.mean_only:
            return self.compute(input, self.mean("weight"), self.mean("bias"), *extra, **named)
        if not all(q.gaussian for q in self.posteriors.values()):
            estimator = "weight"  # the others need independent Gaussian elements
        return ESTIMATORS[estimator](self, input, *extra, **named)

    def compute(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, *extra: Any, **named: Any) -> Tensor:
        """The operation itself, with these values of its parameters."""
        return self.operation.apply(self.shell, x, weight, bias, *extra, **named)

    @property
    def takes_indices(self) -> bool:
        """Whether inputs select rows of the weight instead of being multiplied with it."""
        return self.operation.spatial < 0

    def mean(self, name: str) -> Tensor | None:
        """The mean of a parameter; the parameter itself if it is not random."""
        q = self.posterior(name)
        if q is None:
            return self._parameters.get(name)
        if context.mean_only and not q.has_mean:
            raise PredictionError(
                "mean-only inference is meaningless for weights whose mean is zero by construction: all that was "
                "learned is in the variances; predict with samples instead"
            )
        return q.mean

    def variance(self, name: str) -> Tensor | None:
        """The variance of a parameter, in at least float32; None if it is not random."""
        q = self.posterior(name)
        if q is None:
            return None
        # a half-precision square of a small sigma would underflow
        return self.except_padding(name, q.std.float().square() if q.dtype.itemsize < 4 else q.variance)

    def deviation(self, name: str) -> Tensor | None:
        """A draw minus its mean, std * eps; None if the parameter is not random."""
        q = self.posterior(name)
        return None if q is None else self.except_padding(name, q.deviation(draw(q)))  # type: ignore[attr-defined, operator]

    def draw(self, name: str) -> Tensor | None:
        """One draw of a parameter; the parameter itself if it is not random."""
        q = self.posterior(name)
        if q is None:
            return self._parameters.get(name)
        drawn = value(q)
        return self.except_padding(name, drawn, otherwise=q.mean) if self.has_padding(name) else drawn

    def kl_terms(self) -> Iterator[tuple[Posterior, Callable[[], Tensor]]]:
        """Every posterior with its weighed KL, for `leanbayes.kl.kl_sum`."""
        for name in self.posteriors:
            q = self.posterior(name)
            assert q is not None
            yield q, self._term(name, q)

    @property
    def has_kl(self) -> bool:
        """Whether there is a term: layers of points have none."""
        return next(self.kl_terms(), None) is not None

    def _term(self, name: str, q: Posterior) -> Callable[[], Tensor]:
        if self.has_padding(name):
            return partial(self._except_padding, name, q)
        return Term(q, self.priors[name], self.approximation)

    def _except_padding(self, name: str, q: Posterior) -> Tensor:
        return self.total(name, kl(q, self.priors[name], approximation=self.approximation))

    def value(self, name: str) -> nn.Parameter | None:
        """The mean as a parameter; refused if there is none."""
        q = self.posterior(name)
        if q is None:
            return self._parameters.get(name)
        if not q.has_mean:
            raise ConversionError(f"its {name} has no mean to restore: it is zero by construction")
        mean = q.mean
        return mean if isinstance(mean, nn.Parameter) else nn.Parameter(mean.detach().clone(), q.like.requires_grad)

    def deployed(self, made: dict[int, Posterior]) -> nn.Module:
        """The plain module; if few weights are left, a `FixedLayer` with their means."""
        plain, q = self.restored(), self.posterior("weight")
        if q is None or why_not_sparse(plain) is not None:
            return plain
        if id(q) not in made:
            if not 0 < int(q.alive().sum()) < SPARSE_BELOW * q.shape.numel():
                return plain
            made[id(q)] = SparsePoint.of_means(q)
        return FixedLayer(plain, {"weight": made[id(q)]}, {})

    @property
    def drops_inputs(self) -> bool:
        """Whether pruning has left some output without a weight, as `prune_(channels=True)` does on both sides."""
        q = self.posterior("weight")
        return q is not None and q.keep is not None and not bool(q.keep.flatten(1).any(1).all())

    def inputs_read(self, outputs: list[int]) -> list[bool] | None:
        """The inputs of weights that are active; all of them for a grouped or transposed convolution."""
        q, shell = self.posterior("weight"), self.shell
        if q is None or not isinstance(shell, (nn.Linear, _ConvNd)):
            return None
        if isinstance(shell, _ConvNd) and (shell.groups > 1 or shell.transposed):
            return None
        return q.alive()[outputs].movedim(1, 0).flatten(1).any(1).tolist()  # type: ignore[no-any-return]

    def read(self, name: str) -> Tensor | None:
        """The mean of a parameter, or a draw."""
        value = self.mean(name) if context.mean_only else self.draw(name)
        if name == "weight" and self.weight_read is not None:
            self.weight_read(self, value)
        return value

    def extra_repr(self) -> str:
        """The class that it replaces, and its estimator."""
        return f"{super().extra_repr()}, estimator={self.estimator}"


class FixedLayer(BayesLayer):
    """A BayesLayer whose posteriors are points: every draw is the value, and there is no KL.

    >>> import torch
    >>> from torch import nn
    >>> from leanbayes.posteriors.sparse import SparsePoint
    >>> plain = nn.Linear(2, 1, bias=False)
    >>> layer = FixedLayer(plain, {"weight": SparsePoint.from_tensor(plain.weight, count=1)}, {})
    >>> int((layer.weight != 0).sum())
    1
    """

    def draw(self, name: str) -> Tensor | None:
        """The value."""
        return self.mean(name)

    def kl_terms(self) -> Iterator[tuple[Posterior, Callable[[], Tensor]]]:
        """None, since nothing is random."""
        return iter(())
