"""p(y | output): what a network's output says about the target. `ELBO`, `fit` and `predict` share it.

Every log-likelihood is per datum: summed over whatever one datum has (output dimensions, pixels), never averaged, so
that it is commensurate with the KL. Targets are checked and aligned, and nothing broadcasts by accident.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .errors import ConfigError, DataError, PredictionError

Noise = Literal["fixed", "learned", "heteroscedastic"]


class Likelihood(nn.Module):
    """p(y | output) of one datum; subclasses say what the output of the network means."""

    task: str = "custom"
    class_dim: int | None = None  # where the classes are, if there are any

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """log p(y | output) of each datum: shape (batch,)."""
        raise NotImplementedError

    def align(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The targets, checked against the outputs and in the shape `log_prob` compares them in."""
        return targets

    def probs(self, outputs: Tensor) -> Tensor:
        """Class probabilities."""
        raise PredictionError(f"probs: expected a task with classes, received {self.task}; see mean_and_noise")

    def mean_and_noise(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and noise variance of the target, both in the target's shape."""
        raise PredictionError(f"mean_and_noise: expected a regression, received {self.task}; see probs")

    def to_dict(self) -> dict[str, Any] | None:
        """The JSON form that `from_dict` reads; None where there is none (a function of the user's own)."""
        return None

    def extra_repr(self) -> str:
        return ", ".join(f"{k}={v!r}" for k, v in (self.to_dict() or {}).items() if k not in ("kind", "version"))


class Classification(Likelihood):
    r"""Categorical over the columns of the logits; a single column is the logit of class 1 (Bernoulli).

    log p(y | f) = f_y - logsumexp(f), outputs (batch, classes), targets (batch,) of integers.

    >>> logits = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    >>> Classification().log_prob(logits, torch.tensor([1, 0]))
    tensor([-0.6931, -0.1269])
    >>> Classification().probs(torch.tensor([[0.0]]))  # one column: both classes all the same
    tensor([[0.5000, 0.5000]])
    """

    task = "classification"
    class_dim = -1

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        labels = self.align(outputs, targets)
        return -F.cross_entropy(_two_columns(_full(outputs), 1), labels, reduction="none")

    def align(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.ndim != 2 or outputs.shape[1] == 0:
            raise DataError(
                f"classification: expected outputs of shape (batch, classes), received {_shape(outputs)}"
                + ('; for a label per pixel use task="segmentation"' if outputs.ndim > 2 else "")
            )
        return _labels(outputs, targets, ignore_index=None)

    def probs(self, outputs: Tensor) -> Tensor:
        """Shape (..., classes), over the last dimension; (..., 2) where the network has one column."""
        return _two_columns(_full(outputs), -1).softmax(-1)

    def to_dict(self) -> dict[str, Any] | None:
        return {"kind": "Classification", "version": 1}


class Segmentation(Likelihood):
    r"""An independent categorical in every pixel; dimension 1 of the logits holds the classes.

    log p(y | f) = sum over pixels of log softmax(f)_y: the sum, since that is what one datum (an image) says, and what
    the KL is weighed against. reduction="mean" divides it by the number of labelled pixels: a tempered likelihood,
    common in practice because pixels are not independent, but no longer the ELBO of the data.

    outputs (batch, classes, ...), targets (batch, ...) of integers; pixels labelled ignore_index do not count. A single
    channel is the logit of class 1.

    >>> logits = torch.zeros(1, 2, 2, 2)
    >>> labels = torch.tensor([[[0, 1], [1, -100]]])
    >>> Segmentation().log_prob(logits, labels)  # three labelled pixels, -log 2 each
    tensor([-2.0794])
    """

    task = "segmentation"
    class_dim = 1

    def __init__(self, ignore_index: int = -100, reduction: Literal["sum", "mean"] = "sum") -> None:
        super().__init__()
        if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
            raise ConfigError(f"Segmentation.ignore_index: expected an integer, received {ignore_index!r}")
        if reduction not in ("sum", "mean"):
            raise ConfigError(f"Segmentation.reduction: expected 'sum' or 'mean', received {reduction!r}")
        self.ignore_index, self.reduction = ignore_index, reduction

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        labels = self.align(outputs, targets)
        logits = _two_columns(_full(outputs), 1)
        pixels = -F.cross_entropy(logits, labels, reduction="none", ignore_index=self.ignore_index)
        total = pixels.flatten(1).sum(1)
        if self.reduction == "sum":
            return total
        return total / (labels != self.ignore_index).flatten(1).sum(1).clamp(min=1)

    def align(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.ndim < 3 or outputs.shape[1] == 0:
            raise DataError(f"segmentation: expected outputs (batch, classes, ...), received {_shape(outputs)}")
        return _labels(outputs, targets, self.ignore_index)

    def probs(self, outputs: Tensor) -> Tensor:
        """Shape (batch, classes, ...); two channels where the network has one."""
        return _two_columns(_full(outputs), 1).softmax(1)

    def to_dict(self) -> dict[str, Any] | None:
        fields = {"ignore_index": self.ignore_index, "reduction": self.reduction}
        return {"kind": "Segmentation", "version": 1, **fields}


class Regression(Likelihood):
    r"""Gaussian noise around the output: y ~ N(mean, std^2), independently in every output dimension.

    noise="fixed": std is the number given. "learned": std = softplus(raw), one number for all data, a parameter of the
    likelihood that starts at `std` (a loop of your own must hand ``elbo.parameters()`` to its optimiser; `fit` does).
    "heteroscedastic": the last dimension of the output is [mean, raw] in halves and std = MIN_STD + softplus(raw).

    outputs (batch, ...), targets the same shape; (batch,) and (batch, 1) are aligned, nothing else is.

    >>> Regression(std=2.0).log_prob(torch.zeros(1, 1), torch.tensor([2.0]))  # -1/2 - log 2 - log(2 pi) / 2
    tensor([-2.1121])
    >>> mean, noise = Regression("heteroscedastic").mean_and_noise(torch.zeros(5, 6))
    >>> mean.shape, noise.shape
    (torch.Size([5, 3]), torch.Size([5, 3]))
    """

    task = "regression"
    MIN_STD = 1e-4  # a datum fitted exactly must not have infinite density

    def __init__(self, noise: Noise = "fixed", std: float = 1.0) -> None:
        super().__init__()
        if noise not in ("fixed", "learned", "heteroscedastic"):
            raise ConfigError(f"Regression.noise: expected fixed, learned or heteroscedastic, received {noise!r}")
        if isinstance(std, bool) or not isinstance(std, (int, float)) or not (math.isfinite(std) and std > 0):
            raise ConfigError(f"Regression.std: expected a finite number above 0, received {std!r}")
        self.noise, self.fixed_std = noise, float(std)
        if noise == "learned":
            self.raw_std = nn.Parameter(torch.tensor(std + math.log(-math.expm1(-std))))  # softplus^-1, stable

    @property
    def std(self) -> float | None:
        """The noise standard deviation; None where it depends on the input."""
        if self.noise == "learned":
            return float(F.softplus(self.raw_std.detach().double()))
        return self.fixed_std if self.noise == "fixed" else None

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs = _full(outputs)
        mean, std = self._mean_and_std(outputs)
        error = (self.align(outputs, targets) - mean) / std
        log_prob = -0.5 * error.square() - std.log() - 0.5 * math.log(2 * math.pi)
        return log_prob.flatten(1).sum(1) if log_prob.ndim > 1 else log_prob

    def align(self, outputs: Tensor, targets: Tensor) -> Tensor:
        mean, _ = self._mean_and_std(outputs)
        _tensor(targets, "regression")
        if targets.is_complex() or targets.dtype == torch.bool:
            raise DataError(f"regression: expected real targets, received {targets.dtype}")
        if targets.shape != mean.shape:
            # (batch,) against (batch, 1) would broadcast to (batch, batch): the classic silent mistake.
            if targets.ndim == 0 or mean.ndim == 0 or _without_last_one(targets) != _without_last_one(mean):
                hint = "; [mean, raw] in halves, so twice as many outputs as targets" if self._halves else ""
                raise DataError(
                    f"regression: expected targets of shape {_shape(mean)}, received {_shape(targets)}{hint}"
                )
            targets = targets.reshape(mean.shape)
        if targets.is_floating_point() and not bool(torch.isfinite(targets).all()):
            where = (~torch.isfinite(targets)).nonzero()[0].tolist()
            raise DataError(
                f"regression: expected finite targets, received {targets[tuple(where)].item()} at {where} of the "
                "batch; drop or fill what is missing"
            )
        return targets.to(mean.dtype)

    def mean_and_noise(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = self._mean_and_std(_full(outputs))
        return mean, std.square().expand_as(mean)

    @property
    def _halves(self) -> bool:
        return self.noise == "heteroscedastic"

    def _mean_and_std(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        if self._halves:
            if outputs.ndim < 2 or outputs.shape[-1] % 2:
                raise DataError(
                    "heteroscedastic regression: expected outputs whose last dimension is [mean, raw] in halves, "
                    f"received {_shape(outputs)}; give the network twice as many outputs"
                )
            mean, raw = outputs.chunk(2, dim=-1)
            return mean, F.softplus(raw) + self.MIN_STD
        if outputs.ndim == 0:
            raise DataError("regression: expected outputs with a batch dimension, received a scalar")
        if self.noise == "learned":
            return outputs, F.softplus(self.raw_std).to(outputs.dtype)
        return outputs, outputs.new_tensor(self.fixed_std)

    def to_dict(self) -> dict[str, Any] | None:
        fields = {"noise": self.noise} if self._halves else {"noise": self.noise, "std": self.std}
        return {"kind": "Regression", "version": 1, **fields}


class Custom(Likelihood):
    """A log-likelihood of your own: ``log_likelihood(outputs, targets)`` gives a number per datum, shape (batch,).

    `predict` needs one of the transforms: ``probs(outputs)`` or ``mean_and_noise(outputs)``.

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
            raise ConfigError(f"expected a function of (outputs, targets), received {log_likelihood!r}")
        self.log_likelihood, self._probs, self._mean_and_noise = log_likelihood, probs, mean_and_noise

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        value = self.log_likelihood(outputs, targets)
        if not isinstance(value, Tensor) or value.shape != outputs.shape[:1]:
            got = _shape(value) if isinstance(value, Tensor) else type(value).__name__
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


_KINDS: dict[str, type[Likelihood]] = {c.__name__: c for c in (Classification, Segmentation, Regression)}
TASKS: tuple[str, ...] = tuple(c.task for c in _KINDS.values())


def likelihood(task: Any) -> Likelihood:
    """The likelihood that a task name, a Likelihood, its dictionary or a function of (outputs, targets) stands for.

    >>> likelihood("regression")
    Regression(noise='fixed', std=1.0)
    """
    if isinstance(task, Likelihood):
        return task
    if isinstance(task, Mapping):
        return from_dict(task)
    if isinstance(task, str) and task in TASKS:
        return next(c for c in _KINDS.values() if c.task == task)()
    if callable(task) and not isinstance(task, type):
        return Custom(task)
    raise ConfigError(
        f"task: expected {', '.join(map(repr, TASKS))}, a Likelihood or a function of (outputs, targets), "
        f"received {task!r}"
    )


def from_dict(data: Any) -> Likelihood:
    """The likelihood that `Likelihood.to_dict` described.

    >>> from_dict({"kind": "Segmentation", "version": 1, "ignore_index": 255})
    Segmentation(ignore_index=255, reduction='sum')
    """
    if not isinstance(data, Mapping) or data.get("kind") not in _KINDS:
        raise ConfigError(f"expected the dictionary of one of {', '.join(_KINDS)}, received {data!r}")
    version = data.get("version", 1)
    if version != 1:
        raise ConfigError(f"{data['kind']}: expected version 1, received {version!r}; a newer leanbayes wrote it")
    fields = {k: v for k, v in data.items() if k not in ("kind", "version")}
    try:
        return _KINDS[data["kind"]](**fields)
    except TypeError as error:
        raise ConfigError(f"{data['kind']}: {error}") from error


def _labels(outputs: Tensor, targets: Tensor, ignore_index: int | None) -> Tensor:
    """Class labels of shape outputs.shape without dimension 1, as int64, every one within range."""
    _tensor(targets, "labels")
    classes, shape = max(outputs.shape[1], 2), outputs.shape[:1] + outputs.shape[2:]
    if targets.is_floating_point() or targets.is_complex():
        one_hot = targets.shape == outputs.shape and outputs.shape[1] > 1
        raise DataError(
            f"labels: expected integers, received {targets.dtype} of shape {_shape(targets)}; "
            + ("pass targets.argmax(1)" if one_hot else 'pass targets.long(), or task="regression"')
        )
    if targets.ndim == len(shape) + 1 and targets.shape[1] == 1:
        targets = targets.squeeze(1)
    if targets.shape != shape:
        one_hot = targets.shape == outputs.shape
        raise DataError(
            f"labels: expected shape {tuple(shape)} for outputs {_shape(outputs)}, received {_shape(targets)}"
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


def _full(outputs: Tensor) -> Tensor:
    """At least single precision: sums over pixels and squares of errors overflow in half."""
    return outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs


def _tensor(targets: Any, what: str) -> None:
    if not isinstance(targets, Tensor):
        got = "none; the loader must yield (inputs, targets)" if targets is None else type(targets).__name__
        raise DataError(f"{what}: expected a tensor of targets, received {got}")


def _without_last_one(tensor: Tensor) -> torch.Size:
    return tensor.shape[:-1] if tensor.ndim > 1 and tensor.shape[-1] == 1 else tensor.shape


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
