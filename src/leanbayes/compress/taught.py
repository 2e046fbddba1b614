"""What a student is trained on instead of labels: how far it is from the answers of its teacher, for each datum."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from ..errors import TrainingError
from ..likelihoods import Categorical, Dirichlet, Likelihood, Regression
from .mmd import MMD

Loss = Literal["mmd", "kl", "kd"]
LOSSES = ("mmd", "kl", "kd")
SMALLEST = 1e-4
"""The least concentration that is sampled: below it gamma variables underflow, and their gradients with them."""
SMOOTHING = 1e-4
"""The part of a uniform distribution in the teacher's samples under the density of a Dirichlet, which has log pi."""


@dataclass(frozen=True)
class Objective:
    """loss: "mmd", "kl" or "kd"; see `leanbayes.distill`. mmd: the estimate. temperature: of "kd".

    mean_weight: of the cross-entropy of the means, which is added to "mmd". label_weight: of the cross-entropy of the
    labels, which stand behind the teacher's samples if it is not 0 (`batches.with_labels`).
    """

    loss: Loss = "mmd"
    mmd: MMD = field(default_factory=MMD)
    temperature: float = 1.0
    mean_weight: float = 0.0
    label_weight: float = 0.0

    def __call__(self, student: Likelihood, outputs: Tensor, teacher: Tensor) -> Tensor:
        """The distance of each datum, (batch,); teacher: as `FromTeacher` takes them."""
        teacher = teacher.to(outputs.device, torch.promote_types(outputs.dtype, torch.float32))
        if isinstance(student, Regression):
            return gaussian_cross_entropy(student, outputs, teacher)
        assert isinstance(student, Categorical)
        if self.label_weight:
            labels = self.label_weight * cross_entropy(student, outputs, teacher[:, -1:], 1.0)
            return replace(self, label_weight=0.0)(student, outputs, teacher[:, :-1]) + labels
        if self.loss == "kd":
            return cross_entropy(student, outputs, teacher, self.temperature)
        assert isinstance(student, Dirichlet)
        alpha = student.concentration(outputs)
        if self.loss == "kl":
            return dirichlet_nll(alpha, teacher)
        distance = dirichlet_mmd(alpha, teacher, self.mmd)
        mean = cross_entropy(student, outputs, teacher, 1.0) if self.mean_weight else 0.0
        return distance + self.mean_weight * mean


def dirichlet_mmd(alpha: Tensor, samples: Tensor, mmd: MMD) -> Tensor:
    """MMD^2 between the samples (batch, S, classes) and as many draws from Dir(alpha) (equation 20), (batch,).

    The supremum over the unit ball of an RKHS is the MMD; its square is what has an unbiased estimate. The gradient
    with respect to alpha (batch, classes) goes through the draws.
    """
    drawn = torch.distributions.Dirichlet(alpha.clamp_min(SMALLEST), validate_args=False).rsample((samples.shape[1],))
    return mmd(samples, drawn.movedim(0, 1))


def dirichlet_nll(alpha: Tensor, samples: Tensor) -> Tensor:
    """-E log Dir(pi | alpha) over the samples (batch, S, classes): KL(teacher || student) up to a constant, (batch,).

    Ensemble distribution distillation (Malinin et al. 2020, eq. 8), the samples mixed with a little uniform.
    """
    alpha = alpha.clamp_min(1e-6)
    logs = torch.log((1 - SMOOTHING) * samples + SMOOTHING / samples.shape[-1]).mean(1)
    return torch.lgamma(alpha).sum(-1) - torch.lgamma(alpha.sum(-1)) - ((alpha - 1) * logs).sum(-1)


def cross_entropy(student: Categorical, outputs: Tensor, samples: Tensor, temperature: float) -> Tensor:
    """-T^2 sum_k p_k log softmax(f / T)_k, p the softened mean of the samples (Hinton et al. 2015), (batch,)."""
    mean = samples.mean(1)
    if temperature != 1:
        mean = (mean.clamp_min(1e-12).log() / temperature).softmax(-1)
    log_probs = student.at(temperature).logits(outputs).log_softmax(-1)
    return -(temperature**2) * (mean * log_probs).sum(-1)


def gaussian_cross_entropy(student: Regression, outputs: Tensor, moments: Tensor) -> Tensor:
    """-E log N(y | m, s^2) over y ~ N(mu, v), moments (batch, 2, ...) being mu and v: least where m = mu, s^2 = v."""
    mean, noise = student.mean_and_noise(outputs)
    mu, v = (part.reshape(mean.shape) for part in moments.unbind(1))
    each = 0.5 * (torch.log(2 * math.pi * noise) + ((mean - mu).square() + v) / noise)
    return each.flatten(1).sum(1) if each.ndim > 1 else each


class FromTeacher(Likelihood):
    """The likelihood of a student while it is taught; its log-probability is minus the distance to the teacher.

    student: what the outputs mean, then and later; it also answers for labels, in validation.

    outputs (batch, ...), and targets with one dimension more: (batch, S, classes), what each of S networks said; of a
    regression (batch, 2, ...), mean and variance.
    """

    def __init__(self, student: Likelihood, objective: Objective) -> None:
        super().__init__()
        self.student, self.objective = student, objective
        self.task, self.class_dim = student.task, student.class_dim

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if isinstance(targets, Tensor) and targets.ndim == outputs.ndim + 1:
            return -self.objective(self.student, outputs, targets)
        return self.student.log_prob(outputs, targets)

    def align(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.student.align(outputs, targets)

    def probs(self, outputs: Tensor) -> Tensor:
        return self.student.probs(outputs)

    def mean_and_noise(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.student.mean_and_noise(outputs)

    def to_dict(self) -> dict[str, object] | None:
        return self.student.to_dict()

    # Part of a checkpoint, so that a run does not go on with another loss.
    def get_extra_state(self) -> Tensor:
        return torch.tensor(list(hashlib.sha256(repr(self.objective).encode()).digest()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        if not torch.equal(state.cpu(), self.get_extra_state()):
            raise TrainingError(
                f"resume: the checkpoint was written with another loss or other options of it than {self.objective}; "
                "pass the same, or another checkpoint"
            )
