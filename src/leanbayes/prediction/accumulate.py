"""Running averages over samples, without keeping the samples."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import PredictionError
from .predictive import Predictive, entropy

if TYPE_CHECKING:
    from ..likelihoods import Likelihood


class Accumulator:
    """Takes outputs in groups of samples, (samples, data, ...), and makes a Predictive of their averages.

    settle: a datum takes no more samples once the standard errors of its means are below this (in units of the
        predictive standard deviation for regression); checked every 8 samples for each datum by itself, so that the
        result does not depend on the batch. Groups must end where it is checked.
    weights: the weight of each sample by its number (see `fit_weights` in the module `stacking`); None for equal ones.
    wide: the dtype of the sums; None for double, if the device has it.
    """

    check_every = 8
    at_once = 2**20  # the most output values that are converted together
    apart = 2**10  # values of a datum from which samples are added one by one: a copy of all in double is slower

    def __init__(
        self,
        likelihood: Likelihood,
        keep: bool,
        settle: float | None,
        weights: Tensor | None = None,
        wide: torch.dtype | None = None,
    ) -> None:
        self.likelihood, self.settle, self.keep, self.weights = likelihood, settle, keep, weights
        self.task = likelihood.task
        self.origin = self.first = self.second = self.inner = self.counts = self.mass = self.active = torch.empty(0)
        self.energy: Tensor | None = None
        self.within: Tensor | None = None  # the mean variance of probabilities within a sample
        self.kept: list[Tensor] = []
        self.kept_noise: list[Tensor] = []
        self.numbers: list[int] = []
        self.seen = 0
        self.dtype, self.wide = torch.float32, wide

    def add(self, outputs: Tensor, numbers: list[int]) -> None:
        """Add samples, (samples, data, ...), with their numbers."""
        if not self.seen:
            _task(self.likelihood, outputs[0])  # refuses outputs of a wrong shape
        size = max(1, self.at_once // max(outputs[0].numel(), 1))
        for first in range(0, len(numbers), size):
            self.add_rows(outputs[first : first + size].flatten(0, 1), numbers[first : first + size])
        if self.settle is not None and self.seen % self.check_every == 0:
            self._retire()

    def add_rows(self, rows: Tensor, numbers: list[int]) -> None:
        """Add samples in the rows of a tensor, (samples * data, ...)."""
        if not self.seen:
            self.task = _task(self.likelihood, rows)
            self.keep = self.keep or self.is_regression
        shape = (len(numbers), -1)
        value, inner = (part.unflatten(0, shape) for part in self._interpret(rows))
        found = self.likelihood.energy(rows) if self.is_probability else None
        energy = None if found is None else found.unflatten(0, shape)
        spread = self.likelihood.spread(rows) if self.is_probability else None
        if spread is not None:
            inner = spread[0].unflatten(0, shape)
        if not self.seen:
            self._begin(value[0], inner[0], None if energy is None else energy[0])
        self.seen += len(numbers)
        weight = None if self.weights is None else self.weights[numbers].to(self.origin)

        def add_to(total: Tensor, part: Tensor) -> None:
            part = self._of_active(part, 0)
            if weight is not None:
                total += torch.tensordot(weight, part.to(total), dims=1)
            elif total.shape[1:].numel() < self.apart:
                total += part.sum(0, dtype=total.dtype)
            else:
                for one in part:
                    total += one

        # relative to the first sample, so that a mean far from 0 does not cost precision
        step = value.to(self.dtype) - self.origin.to(self.dtype)
        add_to(self.first, step)
        add_to(self.second, step.square_())
        add_to(self.inner, inner)
        if self.energy is not None and energy is not None:
            add_to(self.energy, energy)
        if spread is not None:
            self.within = torch.zeros_like(self.origin) if self.within is None else self.within
            add_to(self.within, spread[1].unflatten(0, shape))
        self.counts += len(numbers) * self.active
        self.mass += (len(numbers) if weight is None else weight.sum()) * self.active
        if self.keep:
            self.numbers += numbers
            self.kept.append(self._of_active(value, torch.nan))
            if self.is_regression:
                self.kept_noise.append(self._of_active(inner, torch.nan))

    def _of_active(self, part: Tensor, other: float) -> Tensor:
        """(samples, data, ...), with another value for data that take no more samples."""
        if self.settle is None:
            return part
        return torch.where(self.active.reshape(-1, *(1,) * (part.ndim - 2)), part, other)

    def _begin(self, value: Tensor, inner: Tensor, energy: Tensor | None) -> None:
        """Set empty sums in the shapes of the first sample.

        They are double (except on mps), so that grouping does not matter, and of differences to the first sample.
        """
        wide = self.wide or (torch.float32 if value.device.type == "mps" else torch.float64)
        self.dtype = torch.promote_types(value.dtype, torch.float32)
        self.origin = value.to(wide)
        self.first, self.second = torch.zeros_like(self.origin), torch.zeros_like(self.origin)
        self.inner = torch.zeros_like(inner, dtype=wide)
        self.energy = None if energy is None else torch.zeros_like(energy, dtype=wide)
        self.counts = torch.zeros(value.shape[0], dtype=torch.long, device=value.device)
        self.mass = torch.zeros(value.shape[0], dtype=wide, device=value.device)
        self.active = torch.ones(value.shape[0], dtype=torch.bool, device=value.device)

    @property
    def is_probability(self) -> bool:
        """Whether outputs are those of a classification or segmentation."""
        return self.task in ("classification", "segmentation")

    @property
    def is_regression(self) -> bool:
        """Whether outputs are those of a regression."""
        return self.task == "regression"

    @property
    def settled(self) -> bool:
        """Whether no datum takes more samples."""
        return self.seen > 0 and not bool(self.active.any())

    def _interpret(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """The values to average, and the uncertainty within one sample."""
        if self.is_probability:
            probabilities = self.likelihood.probs(output)
            return probabilities, entropy(probabilities)
        if self.is_regression:
            mean, noise = self.likelihood.mean_and_noise(output)
            return mean, noise.expand_as(mean)
        return output, torch.zeros(output.shape[0], dtype=output.dtype, device=output.device)

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
        if len(kept) == 1 and self.numbers == sorted(self.numbers):
            return kept[0]
        order = torch.tensor(self.numbers).argsort()
        return torch.cat(kept)[order.to(kept[0].device)]

    def result(self, engine: str) -> Predictive:
        """The averages as a Predictive."""
        if not self.seen:
            raise PredictionError("no samples were drawn")
        mean, variance = self._moments()
        inner = self._average(self.inner)
        dtype = self.dtype
        if self.is_probability:
            epistemic = (entropy(mean) - inner).clamp_min(0)
            if self.within is not None:
                variance = variance + self._average(self.within)
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
    """The task of a prediction: that of the likelihood, or for others the one whose transform they have."""
    task, dims = likelihood.task, output.ndim
    if (task == "classification" and dims != 2) or (task == "segmentation" and dims < 3):
        expected = "(batch, classes)" if task == "classification" else "(batch, classes, ...)"
        raise PredictionError(f"{task}: expected outputs of shape {expected}, received {tuple(output.shape)}")
    if task in ("classification", "segmentation", "regression"):
        return task
    with contextlib.suppress(PredictionError):
        return "segmentation" if likelihood.probs(output).ndim > 2 else "classification"
    with contextlib.suppress(PredictionError):
        likelihood.mean_and_noise(output)
        return "regression"
    return "custom"


def check_weights(weights: Any, samples: int, settle: float | None = None) -> Tensor:
    """Weights for ``samples`` samples, refused unless they are 0 or more and sum to 1."""
    if not isinstance(weights, Tensor) or weights.shape != (samples,):
        received = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise PredictionError(f"weights: expected a tensor of one number for each of {samples} samples, got {received}")
    weights = weights.detach().double().cpu()
    if not bool((weights >= 0).all()) or not abs(float(weights.sum()) - 1) < 1e-4:
        raise PredictionError(
            f"weights: expected numbers of 0 or more that sum to 1, received a sum of {float(weights.sum()):.6g} and a "
            f"least of {float(weights.min()):.6g}; fit_weights finds some"
        )
    if settle is not None:
        raise PredictionError("weights: expected no settle with them, since they belong to all samples together")
    return weights
