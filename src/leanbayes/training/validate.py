"""Metrics of a validation set during training: predictive nll, and accuracy or RMSE."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import batches, sampling
from ..errors import DataError
from ..eval_mode import undisturbed
from ..likelihoods import Likelihood, Regression
from . import processes, rng
from .callbacks import check_monitors
from .data import Feed
from .guard import check_inputs
from .progress import METRICS

if TYPE_CHECKING:
    from .loop import Run


def validate(
    model: nn.Module,
    likelihood: Likelihood,
    data: Iterable[Any],
    *,
    forward: Callable[[Any], Any],
    device: torch.device,
    seed: int = 0,
    samples: int = 4,
    reduce: Callable[[Callable[[], Tensor]], Tensor] = lambda sums: sums(),
) -> dict[str, float]:
    """Predictive nll and accuracy or RMSE, from `samples` draws of the weights.

    val_nll = -mean log(1/S sum_s p(y | f_s)); accuracy of the averaged probabilities; RMSE of the averaged mean. For a
    model with latents, val_nll = -mean 1/S sum_s log p(x | z_s), which with val_latent_kl is the negative ELBO.
    The draws are the same in every epoch, and training's generators are restored. reduce: calls its argument and sums
    the returned tensor over processes.
    """
    metric = {"classification": "accuracy", "segmentation": "accuracy", "regression": "rmse"}.get(likelihood.task)
    sums = partial(_sums, model, likelihood, data, forward, device, seed, samples, metric)
    data_seen, total, kl, with_kl, score, counted = reduce(sums).tolist()
    if not data_seen:
        raise DataError("val: expected at least one batch, received none; pass a list or a DataLoader, not an iterator")
    row = {"val_nll": -total / data_seen, **({"val_latent_kl": kl / with_kl} if with_kl else {})}
    if metric == "accuracy":
        row["val_accuracy"] = score / counted if counted else math.nan
    elif metric == "rmse":
        row["val_rmse"] = math.sqrt(score / counted)
    return row


def _sums(
    model: nn.Module,
    likelihood: Likelihood,
    data: Iterable[Any],
    forward: Callable[[Any], Any],
    device: torch.device,
    seed: int,
    samples: int,
    metric: str | None,
) -> Tensor:
    """Of this process: data, log-likelihood, latent KL, data with latents, sum and count of the metric."""
    sums = torch.zeros(6, dtype=torch.float64)
    for passes in drawn(model, data, forward, device, seed, samples):
        log_probs, predictions, kls = [], [], []
        for result, targets in passes:
            output, aim = batches.output_tensor(result), batches.targets_of(result, targets)
            log_probs.append(likelihood.log_prob(output, aim))
            if isinstance(result, batches.LatentOutput):
                kls.append(result.kl)
            if metric is not None:
                is_mean = likelihood.class_dim is None
                predictions.append(likelihood.mean_and_noise(output)[0] if is_mean else likelihood.probs(output))
        together = torch.stack(log_probs)
        log_prob = together.mean(0) if kls else together.logsumexp(0) - math.log(len(together))
        sums[0] += log_prob.numel()
        sums[1] += log_prob.double().sum().cpu()
        if kls:
            sums[2] += torch.stack(kls).mean(0).double().sum().cpu()
            sums[3] += log_prob.numel()
        if metric is not None:
            sums[4:] += _score(likelihood, torch.stack(predictions).mean(0), likelihood.align(output, aim)).cpu()
    return sums


def drawn(
    model: nn.Module, data: Iterable[Any], forward: Callable[[Any], Any], device: torch.device, seed: int, samples: int
) -> Iterator[Iterator[tuple[Any, Any]]]:
    """For every batch, an iterator over (output, targets), one for each of ``samples`` drawn networks.

    Draws are functions of (seed, batch, sample), and training's generators are restored. Read the outputs of a batch
    before the next batch.
    """
    count = samples if sampling.sites(model) else 1
    mean_only, given = sampling.context.mean_only, sampling.context.draws

    def passes(number: int, inputs: Any, targets: Any) -> Iterator[tuple[Any, Any]]:
        for sample in range(count):
            torch.manual_seed(sampling.mix(seed, number, sample))
            noise = sampling.laid_out(model, seed, sample) if given is None else given
            with sampling.using(estimator="weight", mean_only=mean_only, draws=noise):
                result = forward(inputs)
            yield result, targets

    with rng.preserved(device), undisturbed(model):
        for number, batch in enumerate(data):
            yield passes(number, *(batches.to(part, device) for part in batches.split(batch)))


def start_noise(run: Run, count: int = 16) -> None:
    """Start a learned noise level at the residuals of the model on the first batches.

    Starting at 1 takes thousands of steps if the targets are of another size.
    """
    likelihood = run.job.elbo.likelihood
    if isinstance(likelihood, Regression) and likelihood.starts_at_residuals:
        with unread(run.feed, run.fabric.device), run.job.parameters.whole():
            together = partial(processes.total_of, run.fabric)
            found = run.validate(itertools.islice(run.feed.epoch(0), count), 1, together)
        if math.isfinite(found["val_rmse"]):
            likelihood.start_at(torch.tensor(found["val_rmse"]))


def check_validation(run: Run) -> None:
    """Validate on the first batch, and check the number that early stopping monitors, before the first step.

    Random generators are restored, so that the run does not depend on it.
    """
    names = ["loss", "nll", "kl", "kl_weight", "lr", "seconds"]

    def check(val: Feed) -> None:
        seen = list(itertools.islice(val.epoch(0), 1))
        for batch in seen:
            check_inputs(batches.split(batch)[0], "val: ")
        if not seen and run.fabric.world_size > 1:  # fewer batches than processes
            names.extend(METRICS)
        else:
            names.extend(run.validate(seen, samples=1))

    if (val := run.val) is not None:
        with unread(val, run.fabric.device), run.job.parameters.whole():
            processes.together(run.fabric, lambda: check(val))
    check_monitors(run.job.callbacks, names)


@contextlib.contextmanager
def unread(feed: Feed, device: torch.device | None = None) -> Iterator[None]:
    """Run a block that reads from a feed, then restore all generators, also those of the user's samplers."""
    states = [(generator, rng.state_of(generator)) for generator in feed.generators()]
    try:
        with rng.preserved(device):
            yield
    finally:
        for generator, state in states:
            rng.set_state(generator, state)


def _score(likelihood: Likelihood, prediction: Tensor, targets: Tensor) -> Tensor:
    """The sum of the metric and its count: correct labels, or squared errors."""
    if likelihood.class_dim is None:
        return torch.tensor([(prediction - targets).double().square().sum(), targets.numel()], dtype=torch.float64)
    ignored = -1 if likelihood.ignore_index is None else likelihood.ignore_index  # labels are 0 or more otherwise
    labelled, labels = targets != ignored, prediction.argmax(likelihood.class_dim)
    labels = labels if labels.ndim == targets.ndim else labels.unsqueeze(1)  # targets of several annotators
    right = (labels == targets) & labelled
    return torch.tensor([right.sum(), labelled.sum()], dtype=torch.float64)
