"""A Dirichlet distribution over class probabilities as the output of a single pass."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ..checks import number, one_of
from ..errors import DataError
from .base import full, shape_of
from .classification import Categorical, class_labels

Precision = Literal["column", "logits"]


class Dirichlet(Categorical):
    r"""A Dirichlet distribution over class probabilities: pi ~ Dir(alpha), y ~ pi; alpha = precision * softmax(f / T).

    Its mean is softmax(f / T), and its precision alpha_0 = sum_k alpha_k says how far pi may be from it. One pass gives
    the parts of the uncertainty in closed form (psi is the digamma function):

    - total: H[E pi] = H[alpha / alpha_0]
    - aleatoric: E H[pi] = psi(alpha_0 + 1) - sum_k alpha_k / alpha_0 psi(alpha_k + 1)
    - epistemic: their difference, the mutual information of y and pi

    precision: "column", one more output column g than there are classes, and alpha_0 = scale * softplus(g) (as the
    predecessor of SN3 has it; variational nested dropout, section 3.5); or "logits", as many columns as classes and
    alpha_0 = scale * sum_k exp(f_k): the shift of the logits, which the softmax does not see. Both describe every
    Dirichlet distribution. scale: a number that training leaves alone; `leanbayes.distill` starts it where the teacher
    is. alpha_0 stays within MIN and MAX. temperature: T, of the mean alone.

    Labels say nothing about the precision: the probability of a label is that of the mean. `leanbayes.distill` learns
    the precision from a teacher's samples.

    outputs (batch, classes) or (batch, classes + 1), targets (batch,) of integers.

    >>> said = torch.tensor([[2.0, 0.0, 0.0, 5.0]])  # three classes, and the precision
    >>> Dirichlet().concentration(said).sum()
    tensor(5.0067)
    >>> Dirichlet("logits").concentration(torch.zeros(1, 3))  # uniform over all probabilities
    tensor([[1., 1., 1.]])
    """

    task = "classification"
    class_dim = -1  # samples in front are welcome
    MIN, MAX = 1e-3, 1e6  # a precision beyond them says no more, and its logarithm may overflow

    def __init__(self, precision: Precision = "column", scale: float = 1.0, temperature: float = 1.0) -> None:
        super().__init__(temperature)
        self.precision = one_of("Dirichlet.precision", precision, ("column", "logits"))
        self.scale = number("Dirichlet.scale", scale, above=0)

    def logits(self, outputs: Tensor) -> Tensor:
        """The logits of the mean over T, in single precision at least."""
        if outputs.ndim < 2 or outputs.shape[-1] < 2:
            raise DataError(
                "dirichlet: expected outputs of shape (batch, classes + 1), or (batch, classes) with "
                f"Dirichlet('logits') and two classes or more, received {shape_of(outputs)}"
            )
        return super().logits(outputs[..., :-1] if self.precision == "column" else outputs)

    def total(self, outputs: Tensor) -> Tensor:
        """alpha_0 of each datum, (batch,)."""
        outputs = full(outputs)
        if self.precision == "column":
            return (self.scale * F.softplus(outputs[..., -1])).clamp(self.MIN, self.MAX)
        log_total = outputs.logsumexp(-1) + math.log(self.scale)
        return log_total.clamp(math.log(self.MIN), math.log(self.MAX)).exp()

    def concentration(self, outputs: Tensor) -> Tensor:
        """alpha, (batch, classes)."""
        return self.probs(outputs) * self.total(outputs).unsqueeze(-1)

    def spread(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """E H[pi], (batch,), and the variance of pi, (batch, classes)."""
        mean, total = self.probs(outputs), self.total(outputs).unsqueeze(-1)
        inside = torch.digamma(total + 1).squeeze(-1) - (mean * torch.digamma(mean * total + 1)).sum(-1)
        return inside.clamp_min(0), mean * (1 - mean) / (total + 1)

    def energy(self, outputs: Tensor) -> Tensor:
        """-log alpha_0: it rises with doubt; of Dirichlet("logits") it is the energy of the logits, up to the scale."""
        return -self.total(outputs).log()

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        labels = self.align(outputs, targets)
        return -F.cross_entropy(self.logits(outputs), labels, reduction="none")

    def align(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return class_labels(self.logits(outputs), targets, ignore_index=None)

    def _fields(self) -> dict[str, Any]:
        return {"precision": self.precision, "scale": self.scale}
