"""The evidence lower bound, the one place where the KL is scaled."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import batches, checks
from ..errors import ConfigError, DataError, LeanBayesWarning
from ..kl import kl_sum, unscaled_sum
from ..likelihoods import Likelihood, likelihood
from .data import count
from .schedules import Schedule, evaluate, schedule

DWARFS = 100.0
"""The first step warns if the KL counts more than this many times the loss of the data."""


class Terms(NamedTuple):
    """The terms of the loss = nll + kl_weight * kl / num_data + latent_weight * latent_kl + unscaled.

    unscaled and latent_kl are 0.0 if the model has no such term.
    """

    loss: Tensor
    nll: Tensor
    kl: Tensor
    kl_weight: float
    unscaled: Tensor | float = 0.0
    latent_kl: Tensor | float = 0.0
    latent_weight: float = 1.0

    def detached(self) -> Terms:
        """The same terms, detached from the graph."""
        tensors: dict[str, Any] = {k: v.detach() for k, v in self._asdict().items() if isinstance(v, Tensor)}
        return self._replace(**tensors)

    def numbers(self) -> Tensor:
        """loss, nll, kl, unscaled and latent_kl as one tensor, detached."""
        terms = (self.loss, self.nll, self.kl, self.unscaled, self.latent_kl)
        return torch.stack([torch.as_tensor(term).to(self.loss) for term in terms]).detach()


def averaged(parts: Sequence[Terms], shares: Sequence[float]) -> Terms:
    """The terms of several batches as one, from the terms of each batch and its share of the data.

    >>> one, two = (Terms(torch.tensor(x), torch.tensor(x), torch.tensor(5.0), 1.0) for x in (1.0, 2.0))
    >>> averaged([one, two], [0.75, 0.25]).nll
    tensor(1.2500)
    """
    if len(parts) == 1:
        return parts[0]
    weights = {"kl_weight", "latent_weight"}  # the same for all
    mean = {
        name: sum(share * part._asdict()[name] for share, part in zip(shares, parts, strict=True))
        for name in set(Terms._fields) - weights
    }
    return parts[-1]._replace(**mean)


class ELBO(nn.Module):
    r"""The negative evidence lower bound per datum.

    loss = nll + kl_weight * kl / num_data, with nll = -mean over the batch of log p(y | output), and kl the plain sum
    of KL(q(w) || p(w)) over all weights of the model (0 for a plain model). num_data times the loss is an unbiased
    estimate of -ELBO over the whole data set, whatever the batch size. What a model draws anew for every batch, the
    widths of a nested network, adds terms of its own, which are not divided (`leanbayes.kl.unscaled_sum`). Latent
    variables of each datum (`leanbayes.batches.LatentOutput`) add latent_weight times the mean of their KL over the
    batch, which is not divided either. Where several annotators have marked an image, a training call draws one of
    them for each image, from torch's generator; other calls average over them.

    task: "classification", "regression", "segmentation", a Likelihood, or a function of (outputs, targets) that returns
    a log-likelihood per datum. num_data: the size of the training set, or the loader or data set to take it from.
    kl_weight, latent_weight: a number, or a schedule of the step. The step is the number of training calls so far
    (model.training and gradients enabled); other calls leave it alone. It is part of the state_dict, and so are learned
    noise levels.

    >>> model = nn.Linear(3, 2)
    >>> elbo = ELBO("classification", num_data=100)
    >>> terms = elbo(model, model(torch.zeros(8, 3)), torch.zeros(8, dtype=torch.long))
    >>> terms.loss.backward()
    >>> bool(terms.loss == terms.nll), terms.kl_weight
    (True, 1.0)
    """

    def __init__(
        self, task: Any, num_data: Any, kl_weight: float | Schedule = 1.0, latent_weight: float | Schedule = 1.0
    ) -> None:
        super().__init__()
        self.likelihood: Likelihood = likelihood(task)
        self.num_data = _count(num_data)
        self.kl_weight = schedule(kl_weight)
        self.latent_weight = schedule(latent_weight, "latent_weight")
        self.step = 0
        self.compared = False

    def forward(self, model: nn.Module, outputs: Any, targets: Any) -> Terms:
        tensor = batches.output_tensor(outputs)
        weight = evaluate(self.kl_weight, self.step)
        latent_weight = evaluate(self.latent_weight, self.step, "latent_weight")
        latent_kl: Tensor | float = 0.0
        with torch.autocast(tensor.device.type, enabled=False):
            targets, training = batches.targets_of(outputs, targets), model.training and torch.is_grad_enabled()
            log_prob = self.likelihood.log_prob(tensor, self.likelihood.drawn(tensor, targets) if training else targets)
            if not log_prob.numel():
                raise DataError("expected a batch with at least one datum, received an empty one")
            nll = -log_prob.mean()
            kl = kl_sum(model).to(nll)
            loss = nll + kl * (weight / self.num_data)
            if (unscaled := unscaled_sum(model)) is not None:
                loss = loss + unscaled.to(loss)
            if isinstance(outputs, batches.LatentOutput):
                latent_kl = outputs.kl.mean().to(loss)
                loss = loss + latent_weight * latent_kl
        if training:
            if self.step == 0 and not self.compared:
                self.compared = True
                self._compare(tensor, nll, kl, weight)
            self.step += 1
        return Terms(loss, nll, kl, weight, 0.0 if unscaled is None else unscaled, latent_kl, latent_weight)

    def _compare(self, outputs: Tensor, nll: Tensor, kl: Tensor, weight: float) -> None:
        """Warn at the first step of outputs that the likelihood doubts, and if the KL counts far more than the data."""
        if (doubt := self.likelihood.doubt(outputs)) is not None:
            warnings.warn(doubt, LeanBayesWarning, stacklevel=3)
        share, loss = float(kl.detach()) * weight / self.num_data, float(nll.detach())
        if math.isfinite(share) and share > DWARFS * max(abs(loss), 0.1):
            warnings.warn(
                f"the KL counts {share:.3g} nats per datum at the first step, the data {loss:.3g}: training will serve "
                f"the prior before the data; lower kl_weight (to {weight * abs(loss) / share:.1g}, say, or None in "
                "fit), let it rise with lb.warmup, or take a prior such as lb.EmpiricalNormal()",
                LeanBayesWarning,
                stacklevel=3,
            )

    # The step is host state: as a buffer on a GPU, reading it would wait for the device at every step.
    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.step)

    def set_extra_state(self, state: Tensor) -> None:
        self.step = int(state)

    def extra_repr(self) -> str:
        return f"num_data={self.num_data}, kl_weight={self.kl_weight}, latent_weight={self.latent_weight}"


def _count(num_data: Any) -> int:
    if isinstance(num_data, int) and not isinstance(num_data, bool):
        if num_data >= 1:
            return num_data
    elif num_data is not None and not isinstance(num_data, (bool, float, str)):
        return count(num_data)
    raise ConfigError(
        f"num_data: expected the number of training data (1 or more) or a loader, received {checks.short(num_data)}; "
        "pass num_data=len(dataset): the KL is divided by it"
    )
