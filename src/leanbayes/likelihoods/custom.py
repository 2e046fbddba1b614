"""A log-likelihood of the user's own."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from ..checks import short
from ..errors import ConfigError, DataError, PredictionError
from .base import Likelihood, shape_of


class Custom(Likelihood):
    """A log-likelihood of your own: ``log_likelihood(outputs, targets)`` gives a number per datum, shape (batch,).

    `predict` needs one of the transforms: ``probs(outputs)`` or ``mean_and_noise(outputs)``.

    >>> import torch
    >>> poisson = Custom(lambda f, y: (y * f - f.exp() - torch.lgamma(y + 1)).squeeze(1))
    >>> poisson.log_prob(torch.zeros(2, 1), torch.tensor([[0.0], [1.0]]))
    tensor([-1., -1.])
    """

    def __init__(
        self,
        log_likelihood: Callable[[Tensor, Tensor], Tensor],
        *,
        probs: Callable[[Tensor], Tensor] | None = None,
        mean_and_noise: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(log_likelihood, nn.modules.loss._Loss):
            raise ConfigError(
                f"expected a log-likelihood per datum, received the loss {type(log_likelihood).__name__}; "
                'use task="classification" or task="regression", or pass lambda outputs, targets: -loss per datum'
            )
        if not callable(log_likelihood):
            raise ConfigError(f"expected a function of (outputs, targets), received {short(log_likelihood)}")
        self.log_likelihood, self._probs, self._mean_and_noise = log_likelihood, probs, mean_and_noise

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        value = self.log_likelihood(outputs, targets)
        if not isinstance(value, Tensor) or value.shape != outputs.shape[:1]:
            got = shape_of(value) if isinstance(value, Tensor) else type(value).__name__
            raise DataError(
                f"expected your log-likelihood to return a number per datum, shape ({outputs.shape[0]},), "
                f"received {got}; sum over everything but the first dimension"
            )
        return value

    def probs(self, outputs: Tensor) -> Tensor:
        if self._probs is None:
            raise PredictionError("this log-likelihood says nothing of classes; pass Custom(f, probs=...)")
        return self._probs(outputs)

    def mean_and_noise(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        if self._mean_and_noise is None:
            raise PredictionError("this log-likelihood says nothing of a mean; pass Custom(f, mean_and_noise=...)")
        return self._mean_and_noise(outputs)
