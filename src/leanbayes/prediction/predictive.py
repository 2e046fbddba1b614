"""`Predictive`: the predictive distribution of a batch."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from ..checks import number
from ..conformal import scores as conformal_scores
from ..conformal.config import Conformal, Score
from ..errors import DataError, LeanBayesWarning, PredictionError
from . import mixture


@dataclass(frozen=True)
class Predictive:
    """Averages over S networks drawn from the posterior, N data.

    task: "classification", "segmentation", "regression" or "custom".
    mean: class probabilities (N, C, ...), the expected target (N, ...), or the mean output of a custom task.
    variance: of the probabilities over samples; for regression the total, epistemic + aleatoric.
    aleatoric: expected entropy in nats (N, ...); for regression the expected noise variance.
    epistemic: mutual information of label and weights (N, ...); for regression the variance of the means.
    counts: samples used for each datum (N,).
    engine: how they were computed: "vmap", "loop", "mean" (mean_only), "deterministic" (nothing random), "moments" (one
        pass; the counts are of draws of its outputs) or "moments, then samples".
    energies: -logsumexp of the logits, averaged over samples (N, ...); None where there are no logits.
    weights: of the samples in all averages (S,); None where they count alike.
    conformal: what `leanbayes.conformalize_` found for such predictions. classes: what the classes are called.
    stages, macs: of a `Cascade`, which stage answered each datum, from 0 (N,), and the multiply-accumulates spent on it
    at all stages that were asked (N,); None otherwise.
    """

    task: str
    mean: Tensor
    variance: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    counts: Tensor
    engine: str
    drawn: Tensor | None = None
    noise: Tensor | None = None
    energies: Tensor | None = None
    weights: Tensor | None = None
    conformal: Conformal | None = None
    classes: tuple[str, ...] = ()
    stages: Tensor | None = None
    macs: Tensor | None = None

    @property
    def probs(self) -> Tensor:
        """Class probabilities (N, C, ...)."""
        self._only("probs", "classification", "segmentation")
        return self.mean

    @property
    def labels(self) -> Tensor:
        """The most probable class (N, ...)."""
        self._only("labels", "classification", "segmentation")
        return self.mean.argmax(1)

    @property
    def entropy(self) -> Tensor:
        """Of the predictive: total uncertainty in nats; for regression that of the Gaussian with the same moments."""
        if self.task == "regression":
            return 0.5 * torch.log(2 * torch.pi * torch.e * self.variance)
        self._only("entropy", "classification", "segmentation")
        return entropy(self.mean)

    @property
    def mutual_information(self) -> Tensor:
        """H[mean] - mean of H: the part of the entropy that knowing the weights would remove (N, ...)."""
        self._only("mutual_information", "classification", "segmentation")
        return self.epistemic

    @property
    def energy(self) -> Tensor:
        """-E_s[logsumexp of the logits of sample s] (N, ...), higher for more uncertain data (Liu et al. 2020, eq. 4).

        Of the raw logits, without the temperature of a likelihood.
        """
        self._only("energies", "classification", "segmentation")
        if self.energies is None:
            raise PredictionError(
                "energies exist where the outputs are logits; this likelihood only says what the probabilities are "
                '(task="classification" reads the outputs as logits)'
            )
        return self.energies

    @property
    def samples(self) -> Tensor:
        """The outputs of each network (S, N, ...): probabilities, or means of the target."""
        if self.drawn is None:
            raise PredictionError("samples were not kept; call predict(..., keep_samples=True)")
        return self.drawn

    def masks(self, threshold: float | None = None) -> Tensor:
        """The segmentation of each network (S, N, ...): the most probable class in every pixel.

        For two classes bool masks of class 1, where its probability is above ``threshold`` (0.5 by default); for more
        classes their labels. Needs ``predict(..., keep_samples=True)``; `labels` is the segmentation of the mean.
        """
        self._only("masks", "segmentation")
        drawn, classes = self.samples, self.mean.shape[1]
        if len(self) and int(self.counts.min()) < len(drawn):
            raise PredictionError("masks: expected as many samples of every datum; predict without settle=")
        if classes == 2:
            threshold = (
                0.5 if threshold is None else number("threshold", threshold, above=0, below=1, error=PredictionError)
            )
            return drawn[:, :, 1] > threshold
        if threshold is not None:
            raise PredictionError(f"threshold: expected two classes, received a prediction of {classes}; leave it out")
        return drawn.argmax(2)

    def log_prob(self, targets: Tensor) -> Tensor:
        """Log predictive density (or probability) of each target (N,): log of the average over samples."""
        if self.task != "regression":
            self._only("log probabilities", "classification", "segmentation", "regression")
            chosen = self.mean.gather(1, self._classes(targets)).clamp_min(torch.finfo(self.mean.dtype).tiny).log()
            return chosen.flatten(1).sum(1)
        parts = self._mixture()
        return mixture.log_density(parts, self._aligned(targets, parts[0][0]))

    def sample_log_prob(self, targets: Tensor) -> Tensor:
        """Log density (or probability) of each target under every network by itself (S, N)."""
        self._only("log probabilities", "classification", "segmentation", "regression")
        drawn = self.samples
        if self.task == "regression":
            assert self.noise is not None
            y = self._aligned(targets, drawn[0])
            each = -0.5 * ((y - drawn).square() / self.noise + torch.log(2 * math.pi * self.noise))
        else:
            index = self._classes(targets)
            each = drawn.gather(2, index.expand(len(drawn), *index.shape))
            each = each.clamp_min(torch.finfo(drawn.dtype).tiny).log()
        return each.reshape(*each.shape[:2], -1).sum(2)

    def cdf(self, targets: Tensor) -> Tensor:
        """P(Y <= y) of each target under its predictive (N, ...): uniform on [0, 1] if the model is calibrated."""
        parts = self._mixture()
        return mixture.cdf(parts, self._aligned(targets, parts[0][0]))

    def crps(self, targets: Tensor) -> Tensor:
        """The continuous ranked probability score of each target (N, ...), in its units; lower is better."""
        parts = self._mixture()
        return mixture.crps(parts, self._aligned(targets, parts[0][0]))

    def quantile(self, q: float) -> Tensor:
        """The q-quantile of the predictive, a mixture of S Gaussians (N, ...)."""
        q = number("q", q, above=0, below=1, error=PredictionError)
        return mixture.quantile(self._mixture(), q)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """The central interval with probability ``level``."""
        level = number("level", level, above=0, below=1, error=PredictionError)
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    @property
    def class_names(self) -> list[str]:
        """The name of the most probable class of each datum (N), or its number if the model has no names."""
        self._only("names of classes", "classification")
        names = self.classes or tuple(map(str, range(self.mean.shape[1])))
        return [names[label] for label in self.labels.tolist()]

    @property
    def prediction_sets(self) -> Tensor:
        """The classes in each prediction set, booleans (N, C), with the coverage asked of `lb.conformalize_`.

        ``[row.nonzero().flatten().tolist() for row in sets]`` lists them.
        """
        return conformal_scores.class_sets(self.probs, self._conformal("classification"))

    @property
    def prediction_intervals(self) -> tuple[Tensor, Tensor]:
        """Both ends of the prediction intervals (N, ...), with the coverage asked of `lb.conformalize_`.

        `interval` depends on the assumptions of the model; these are corrected on held-out data.
        """
        found = self._conformal("regression")
        return conformal_scores.interval(self.mean, self.spread(found.score, found.coverage), found)

    def spread(self, score: Score, coverage: float) -> Tensor | tuple[Tensor, Tensor]:
        """The scale of a conformal score of a regression: the standard deviation, or an interval (cqr)."""
        return self.interval(coverage) if score == "cqr" else self.variance.sqrt()

    def _conformal(self, task: str) -> Conformal:
        self._only("prediction sets" if task == "classification" else "prediction intervals", task)
        if self.conformal is None:
            raise PredictionError(
                "the model has no thresholds for such predictions; call lb.conformalize_(model, held_out), "
                "and again after training it or changing its temperature or its task"
            )
        outputs = self.mean.shape[1] if task == "classification" else self.mean[0].numel()
        wanted = {1, outputs} if task == "classification" else {outputs}
        if self.conformal.task != task or len(self.conformal.thresholds) not in wanted:
            raise PredictionError(
                f"expected thresholds for {len(self.conformal.thresholds)} "
                f"{'classes' if self.conformal.task == 'classification' else 'outputs'}, received a prediction of "
                f"{outputs}; call lb.conformalize_ again"
            )
        if (samples := int(self.counts.max())) != self.conformal.samples:
            warnings.warn(
                f"lb.conformalize_ averaged {self.conformal.samples} samples and this prediction {samples}, so that "
                "its coverage is not guaranteed; predict with as many, or call lb.conformalize_ again",
                LeanBayesWarning,
                stacklevel=3,
            )
        return self.conformal

    def _classes(self, targets: Tensor) -> Tensor:
        """Targets as class indices (N, 1, ...); others are refused."""
        index = self._aligned(targets, self.mean[:, 0]).long().unsqueeze(1)
        if not bool(((index >= 0) & (index < self.mean.shape[1])).all()):
            raise DataError(
                f"expected labels from 0 to {self.mean.shape[1] - 1}, received {int(index.min())} to "
                f"{int(index.max())}; leave out what is not labelled"
            )
        return index

    def _aligned(self, targets: Tensor, like: Tensor) -> Tensor:
        """Targets in the shape of ``like``; (N,) and (N, 1) are the same, other shapes are refused."""
        if not isinstance(targets, Tensor):
            raise DataError(f"expected a tensor of targets, received {type(targets).__name__}")
        if targets.shape != like.shape and {targets.shape, like.shape} != {like.shape[:1], (*like.shape[:1], 1)}:
            raise DataError(f"expected targets of shape {tuple(like.shape)}, received {tuple(targets.shape)}")
        return targets.to(like).reshape(like.shape)

    def _mixture(self) -> tuple[Tensor, Tensor, Tensor]:
        """Means and variances of the components (S, N, ...), log weights (S, N)."""
        self._only("densities, quantiles and intervals", "regression")
        assert self.drawn is not None
        assert self.noise is not None
        if self.weights is not None:
            return self.drawn, self.noise, self.weights.log().unsqueeze(1).expand(self.drawn.shape[:2])
        used = torch.arange(self.drawn.shape[0], device=self.drawn.device).unsqueeze(1) < self.counts
        log_weights = torch.where(used, -torch.log(self.counts.to(self.drawn.dtype)), -torch.inf)
        return self.drawn.nan_to_num(), self.noise.nan_to_num(nan=1.0), log_weights

    def _only(self, what: str, *tasks: str) -> None:
        if self.task not in tasks:
            raise PredictionError(f"{what} exist for {' and '.join(tasks)}; this prediction is of a {self.task} task")

    def __len__(self) -> int:
        return self.mean.shape[0]

    def __repr__(self) -> str:
        drawn = int(self.counts.max()) if len(self) else 0
        return f"Predictive({self.task}, {len(self)} data, {drawn} samples, by {self.engine})"


def entropy(probabilities: Tensor, dim: int = 1) -> Tensor:
    """-sum p log p in nats, with 0 log 0 = 0.

    >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    tensor([0.6931, 0.0000])
    """
    # torch.special.entr takes four times as long on a CPU
    logs = probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log_()
    return logs.mul_(probabilities).sum(dim).neg_().add_(0.0)  # no negative zero


def join(parts: list[Predictive]) -> Predictive:
    """One prediction from those of consecutive batches."""
    first = parts[0]

    def cat(name: str, dim: int = 0) -> Tensor:
        return torch.cat([vars(p)[name] for p in parts], dim)

    longest = max(p.drawn.shape[0] for p in parts) if first.drawn is not None else 0  # type: ignore[union-attr]

    def stack(name: str) -> Tensor | None:
        if vars(first)[name] is None:
            return None
        return torch.cat([_padded(vars(p)[name], longest) for p in parts], 1)

    return Predictive(
        first.task, cat("mean"), cat("variance"), cat("aleatoric"), cat("epistemic"), cat("counts"), first.engine,
        stack("drawn"), stack("noise"), cat("energies") if first.energies is not None else None, first.weights,
        stages=None if first.stages is None else cat("stages"), macs=None if first.macs is None else cat("macs"),
    )  # fmt: skip


def _padded(samples: Tensor, length: int) -> Tensor:
    """Samples (S, N, ...) filled up with NaN to a length."""
    missing = length - samples.shape[0]
    if not missing:
        return samples
    return torch.cat([samples, samples.new_full((missing, *samples.shape[1:]), torch.nan)])
