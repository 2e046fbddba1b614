"""Classes: one for a datum (Classification) or one in every pixel (Segmentation), at a temperature."""

from __future__ import annotations

from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from ..checks import label, number, one_of
from ..errors import DataError
from .base import Likelihood, check_tensor, full, shape_of


class Categorical(Likelihood):
    """The base of `Classification` and `Segmentation`: p(y | f) = softmax(f / T)_y.

    The temperature T is a plain number that training leaves alone: 1, until `leanbayes.calibrate_` has fitted it to
    held-out data (Guo et al. 2017, eq. 9). It is written only where it is not 1, so that files without one stay as
    they were.
    """

    class_dim: int

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = number(f"{type(self).__name__}.temperature", temperature, above=0)

    def at(self, temperature: float) -> Self:
        """The same likelihood at another temperature.

        >>> Segmentation(255).at(1.5)
        Segmentation(ignore_index=255, reduction='sum', temperature=1.5)
        """
        return type(self)(**self._fields(), temperature=temperature)

    def logits(self, outputs: Tensor) -> Tensor:
        """The outputs over T, in at least single precision, with two columns if the network has one."""
        logits = _two_columns(full(outputs), self.class_dim)
        return logits if self.temperature == 1 else logits / self.temperature

    def probs(self, outputs: Tensor) -> Tensor:
        """The softmax of `logits`."""
        return self.logits(outputs).softmax(self.class_dim)

    def log_probs(self, outputs: Tensor) -> Tensor:
        return self.logits(outputs).log_softmax(self.class_dim)

    def doubt(self, outputs: Tensor) -> str | None:
        if outputs.shape[self.class_dim] == 1:
            last = "Sigmoid" if type(outputs.grad_fn).__name__.startswith("SigmoidBackward") else None
        else:
            rest = (outputs.detach().sum(self.class_dim) - 1).abs()
            last = "Softmax" if bool((outputs >= 0).all() & (rest < 1e-3).all()) else None
        return last and (
            f"the outputs of the network are probabilities, {self.task} expects logits: leave out the {last} at the "
            "end, or every answer will be far too unsure"
        )

    def to_dict(self) -> dict[str, Any]:
        scaled = {} if self.temperature == 1 else {"temperature": self.temperature}
        return {"kind": type(self).__name__, "version": 1, **self._fields(), **scaled}

    def _fields(self) -> dict[str, Any]:
        """The settings beside the temperature."""
        return {}


class Classification(Categorical):
    r"""Categorical over the columns of the logits; a single column is the logit of class 1 (Bernoulli).

    log p(y | f) = f_y / T - logsumexp(f / T), outputs (batch, classes), targets (batch,) of integers. temperature: T.

    >>> logits = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    >>> Classification().log_prob(logits, torch.tensor([1, 0]))
    tensor([-0.6931, -0.1269])
    >>> Classification().probs(torch.tensor([[0.0]]))  # one column: both classes all the same
    tensor([[0.5000, 0.5000]])
    >>> Classification(temperature=2.0).probs(torch.tensor([[4.0, 0.0]]))  # the same answer, less sure of it
    tensor([[0.8808, 0.1192]])
    """

    task = "classification"
    class_dim = -1  # samples in front are welcome

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        labels = self.align(outputs, targets)
        return -F.cross_entropy(self.logits(outputs), labels, reduction="none")

    def align(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.ndim != 2 or outputs.shape[1] == 0:
            raise DataError(
                f"classification: expected outputs of shape (batch, classes), received {shape_of(outputs)}"
                + ('; for a label per pixel use task="segmentation"' if outputs.ndim > 2 else "")
            )
        return class_labels(outputs, targets, ignore_index=None)


class Segmentation(Categorical):
    r"""An independent categorical in every pixel; dimension 1 of the logits holds the classes.

    log p(y | f) = sum over pixels of log softmax(f / T)_y: the sum, since that is what one datum (an image) says, and
    what the KL is weighed against. reduction="mean" divides it by the number of labelled pixels: a tempered likelihood,
    common in practice because pixels are not independent, but no longer the ELBO of the data.

    outputs (batch, classes, ...), targets (batch, ...) of integers; pixels labelled ignore_index do not count. A single
    channel is the logit of class 1. temperature: T, the same in every pixel.

    Where several annotators have marked each image, targets (batch, annotators, ...), this is the average of their
    log-likelihoods; `drawn` chooses one of them for each image, as a training step does.

    >>> logits = torch.zeros(1, 2, 2, 2)
    >>> labels = torch.tensor([[[0, 1], [1, -100]]])
    >>> Segmentation().log_prob(logits, labels)  # three labelled pixels, -log 2 each
    tensor([-2.0794])
    >>> Segmentation().log_prob(logits, torch.ones(1, 4, 2, 2, dtype=torch.bool))  # four annotators, as one
    tensor([-2.7726])
    """

    task = "segmentation"
    class_dim = 1

    ignore_index: int

    def __init__(
        self, ignore_index: int = -100, reduction: Literal["sum", "mean"] = "sum", temperature: float = 1.0
    ) -> None:
        super().__init__(temperature)
        self.ignore_index = label("Segmentation.ignore_index", ignore_index)
        self.reduction = one_of("Segmentation.reduction", reduction, ("sum", "mean"))

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        labels = self.align(outputs, targets)
        labels = labels if labels.ndim == outputs.ndim else labels.unsqueeze(1)
        counted = labels != self.ignore_index
        pixels = self.logits(outputs).log_softmax(1).gather(1, labels.where(counted, 0)).where(counted, 0)
        total = pixels.flatten(2).sum(2)
        if self.reduction == "mean":
            total = total / counted.flatten(2).sum(2).clamp(min=1)
        return total.mean(1)

    def align(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Labels as int64, (batch, ...), or (batch, annotators, ...) for several annotators."""
        if outputs.ndim < 3 or outputs.shape[1] == 0:
            raise DataError(f"segmentation: expected outputs (batch, classes, ...), received {shape_of(outputs)}")
        return class_labels(outputs, targets, self.ignore_index, annotators=True)

    def drawn(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The labels of one annotator of each image, (batch, ...), drawn from torch's generator."""
        return one_annotator(self.align(outputs, targets), outputs.ndim)

    def _fields(self) -> dict[str, Any]:
        return {"ignore_index": self.ignore_index, "reduction": self.reduction}


def one_annotator(labels: Tensor, ndim: int) -> Tensor:
    """Labels (batch, annotators, ...) of ``ndim`` dimensions reduced to those of one annotator an image, at random.

    >>> one_annotator(torch.zeros(2, 4, 8, 8), 4).shape, one_annotator(torch.zeros(2, 8, 8), 4).shape
    (torch.Size([2, 8, 8]), torch.Size([2, 8, 8]))
    """
    if labels.ndim != ndim:
        return labels
    chosen = torch.randint(labels.shape[1], (len(labels),), device=labels.device)
    return labels[torch.arange(len(labels), device=labels.device), chosen]


def class_labels(outputs: Tensor, targets: Tensor, ignore_index: int | None, annotators: bool = False) -> Tensor:
    """Class labels of shape outputs.shape without dimension 1, as int64, every one within range.

    annotators: whether targets may have those of several annotators in dimension 1.
    """
    check_tensor(targets, "labels")
    classes, shape = max(outputs.shape[1], 2), outputs.shape[:1] + outputs.shape[2:]
    if targets.is_floating_point() or targets.is_complex():
        one_hot = targets.shape == outputs.shape and outputs.shape[1] > 1
        raise DataError(
            f"labels: expected integers, received {targets.dtype} of shape {shape_of(targets)}; "
            + ("pass targets.argmax(1)" if one_hot else 'pass targets.long(), or task="regression"')
        )
    if targets.ndim == len(shape) + 1 and targets.shape[1] == 1:
        targets = targets.squeeze(1)
    several = annotators and targets.ndim == outputs.ndim and targets.shape[:1] + targets.shape[2:] == shape
    one_hot = targets.shape == outputs.shape and not (several and bool((targets.sum(1) != 1).any()))
    if targets.shape != shape and (not several or one_hot or targets.shape[1] == 0):
        also = f", or (batch, annotators, {', '.join(map(str, shape[1:]))})" if annotators else ""
        raise DataError(
            f"labels: expected shape {tuple(shape)}{also} for outputs {shape_of(outputs)}, received {shape_of(targets)}"
            + ("; these look one-hot, pass targets.argmax(1)" if one_hot else "")
        )
    targets = targets.long()
    bad = (targets < 0) | (targets >= classes)
    if ignore_index is not None:
        bad &= targets != ignore_index
    if bool(bad.any()):
        where = bad.nonzero()[0].tolist()
        raise DataError(
            f"labels: expected 0 to {classes - 1} for {outputs.shape[1]} output(s), "
            f"received {int(targets[tuple(where)])} at {where} of the batch"
        )
    return targets


def _two_columns(logits: Tensor, dim: int) -> Tensor:
    """A single logit s of class 1 as the pair (0, s), whose softmax is (1 - sigmoid(s), sigmoid(s))."""
    return torch.cat([torch.zeros_like(logits), logits], dim) if logits.shape[dim] == 1 else logits
