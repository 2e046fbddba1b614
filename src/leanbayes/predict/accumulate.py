"""Running averages over samples: memory for the averages, not for the samples."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import PredictionError
from .predictive import Predictive, entropy

if TYPE_CHECKING:
    from ..likelihoods import Likelihood


class Accumulator:
    """Takes outputs sample by sample, (data, ...) each, and gives the Predictive.

    settle: a datum takes no more samples once the standard error of every one of its means is below this (in units of
        the predictive standard deviation for regression); checked every 8 samples, for each datum by itself, so
        that the answer does not depend on who its neighbours are.
    weights: what each sample counts, by its number (see `leanbayes.predict.stacking`); None for all alike.
    """

    check_every = 8

    def __init__(self, likelihood: Likelihood, keep: bool, settle: float | None, weights: Tensor | None = None) -> None:
        self.likelihood, self.settle, self.keep, self.weights = likelihood, settle, keep, weights
        self.task = likelihood.task
        self.origin = self.first = self.second = self.inner = self.counts = self.mass = self.active = torch.empty(0)
        self.energy: Tensor | None = None
        self.kept: list[Tensor] = []
        self.kept_noise: list[Tensor] = []
        self.numbers: list[int] = []
        self.seen = 0
        self.dtype = torch.float32

    def add(self, output: Tensor, number: int | None = None) -> None:
        """One more sample; its number, unless they come in order."""
        if not self.seen:
            self.task = _task(self.likelihood, output)
            self.keep = self.keep or self.is_regression
        value, inner = self._interpret(output)
        energy = self._energy(output)
        if not self.seen:
            # sums in double: they do not depend on how samples were grouped (mps has no double)
            wide = torch.float32 if value.device.type == "mps" else torch.float64
            self.dtype = torch.promote_types(value.dtype, torch.float32)
            self.origin = value.to(wide)  # sums are of differences to it: a far-away mean must not drown the spread
            self.first, self.second = torch.zeros_like(self.origin), torch.zeros_like(self.origin)
            self.inner = torch.zeros_like(inner, dtype=wide)
            self.energy = None if energy is None else torch.zeros_like(energy, dtype=wide)
            self.counts = torch.zeros(value.shape[0], dtype=torch.long, device=value.device)
            self.mass = torch.zeros(value.shape[0], dtype=wide, device=value.device)
            self.active = torch.ones(value.shape[0], dtype=torch.bool, device=value.device)
        self.seen += 1
        on = self.active
        mask = _wide(on, value)
        step = torch.where(mask, value - self.origin, 0)
        weight = 1.0 if self.weights is None else float(self.weights[self.seen - 1 if number is None else number])
        self.first += weight * step
        self.second += weight * step.square()
        self.inner += weight * torch.where(_wide(on, inner), inner, 0)
        if self.energy is not None and energy is not None:
            self.energy += weight * torch.where(_wide(on, energy), energy, 0)
        self.counts += on
        self.mass += weight * on
        if self.keep:
            self.numbers.append(self.seen if number is None else number)
            self.kept.append(torch.where(mask, value, torch.nan))
            if self.is_regression:
                self.kept_noise.append(torch.where(_wide(on, inner), inner, torch.nan).expand_as(value))
        if self.settle is not None and self.seen % self.check_every == 0:
            self._retire()

    @property
    def is_probability(self) -> bool:
        """Whether outputs mean classes."""
        return self.task in ("classification", "segmentation")

    @property
    def is_regression(self) -> bool:
        """Whether outputs mean a mean and a noise."""
        return self.task == "regression"

    @property
    def settled(self) -> bool:
        """Whether no datum wants more samples."""
        return self.seen > 0 and not bool(self.active.any())

    def _interpret(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """What is averaged, and the uncertainty inside one sample."""
        if self.is_probability:
            probabilities = self.likelihood.probs(output)
            return probabilities, entropy(probabilities)
        if self.is_regression:
            mean, noise = self.likelihood.mean_and_noise(output)
            return mean, noise.expand_as(mean)
        return output, torch.zeros(output.shape[0], dtype=output.dtype, device=output.device)

    def _energy(self, output: Tensor) -> Tensor | None:
        """-logsumexp of one sample's logits (N, ...); None where the likelihood does not say which they are."""
        dim = self.likelihood.class_dim
        if not self.is_probability or dim is None:
            return None
        logits = output.to(torch.promote_types(output.dtype, torch.float32))
        if logits.shape[dim] == 1:  # the logit s of class 1 stands for the pair (0, s)
            return -torch.nn.functional.softplus(logits).squeeze(dim)
        return -torch.logsumexp(logits, dim)

    def _moments(self) -> tuple[Tensor, Tensor]:
        shift = self._average(self.first)
        return self.origin + shift, (self._average(self.second) - shift.square()).clamp_min(0)

    def _retire(self) -> None:
        _, variance = self._moments()
        count = self.counts.to(variance.dtype).reshape(-1, *(1,) * (variance.ndim - 1))
        error = (variance / (count - 1).clamp_min(1)).sqrt()
        if self.is_regression:
            error = error / (variance + self._average(self.inner)).sqrt().clamp_min(1e-12)
        assert self.settle is not None
        self.active &= error.flatten(1).amax(1) > self.settle

    def _average(self, total: Tensor) -> Tensor:
        return total / self.mass.to(total.dtype).reshape(-1, *(1,) * (total.ndim - 1))

    def _in_order(self, kept: list[Tensor]) -> Tensor:
        return torch.stack([value for _, value in sorted(zip(self.numbers, kept, strict=True), key=lambda p: p[0])])

    def result(self, engine: str) -> Predictive:
        """The averages."""
        if not self.seen:
            raise PredictionError("no samples were drawn")
        mean, variance = self._moments()
        inner = self._average(self.inner)
        dtype = self.dtype
        if self.is_probability:
            epistemic = (entropy(mean) - inner).clamp_min(0)
        else:
            epistemic, variance = variance, variance + (inner if self.is_regression else 0)
        return Predictive(
            self.task,
            mean.to(dtype),
            variance.to(dtype),
            inner.to(dtype),
            epistemic.to(dtype),
            self.counts,
            engine,
            self._in_order(self.kept) if self.keep else None,
            self._in_order(self.kept_noise) if self.is_regression else None,
            None if self.energy is None else self._average(self.energy).to(dtype),
            None if self.weights is None else self.weights.to(dtype=dtype, device=mean.device),
        )


def _task(likelihood: Likelihood, output: Tensor) -> str:
    """What predictions mean: the likelihood's task, or for one of the user's own the transform that it has."""
    task, dims = likelihood.task, output.ndim
    if (task == "classification" and dims != 2) or (task == "segmentation" and dims < 3):
        expected = "(batch, classes)" if task == "classification" else "(batch, classes, ...)"
        raise PredictionError(f"{task}: expected outputs of shape {expected}, received {tuple(output.shape)}")
    if task != "custom":
        return task
    with contextlib.suppress(PredictionError):
        return "segmentation" if likelihood.probs(output).ndim > 2 else "classification"
    with contextlib.suppress(PredictionError):
        likelihood.mean_and_noise(output)
        return "regression"
    return "custom"


def _wide(mask: Tensor, like: Tensor) -> Tensor:
    return mask.reshape(-1, *(1,) * (like.ndim - 1))
