"""`predict`: the predictive distribution of a model, Bayesian or not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sized
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from .. import batches, checks, likelihoods, sampling, turns
from ..convert.record import get
from ..convert.staged import Staged
from ..errors import DataError, PredictionError
from ..eval_mode import undisturbed
from ..layers.kl_watch import warn_without_kl
from ..likelihoods import Likelihood
from ..training.guard import dtypes_explained
from .accumulate import Accumulator, check_weights
from .engine import Engine
from .phase_transition import warn_if_past
from .predictive import Predictive, join

if TYPE_CHECKING:
    from .moments import OnePass


def predict(
    model: nn.Module,
    inputs: Any,
    samples: int = 32,
    seed: int | None = 0,
    chunk: int | None = None,
    *,
    task: Any = None,
    mean_only: bool = False,
    keep_samples: bool = False,
    settle: float | None = None,
    estimator: Literal["weight", "local", "flipout", "moments"] = "weight",
    strategy: Literal["auto", "vmap", "loop"] = "auto",
    balanced: bool | None = None,
    weights: Tensor | None = None,
    progress: bool = False,
) -> Predictive:
    """The predictive distribution of a batch (or a loader), averaged over networks drawn from the posterior.

    Each sample is a whole network: one draw of all weights, shared by all data. (``estimator="local"`` is local
    reparameterisation, the default in training, which drops the covariance between the positions of a convolution.) The
    result does not depend on train() or eval(); BatchNorm statistics and the global random state do not change (except
    by what a loader draws). A seed repeats a result for every chunk (with whole networks; the other estimators draw for
    every datum). This includes noise that a model draws itself, by ``F.dropout(x, training=True)`` or ``torch.randn``
    in its forward, if its shape does not depend on the batch.


    inputs: a tensor, a tuple or mapping of tensors (arguments of the model by position or keyword), or a DataLoader, a
        Dataset or a list of batches, whose targets are not read; see `leanbayes.batches`.
    seed: None draws one from torch's generator.
    chunk: the most (datum, sample) pairs computed at once, which bounds memory.
    task: "classification", "segmentation", "regression", a `Likelihood`, or a callable; None for the task that the
        model was fitted for.
    mean_only: one pass at the posterior means.
    keep_samples: keep the output of every sample in ``.samples`` (always on for regression).
    estimator: "moments" carries mean and variance through the network once instead of sampling; ``samples`` are drawn
        only after a layer that has no rule, with a warning that names it (see the guide, "One pass").
    settle: stop sampling a datum once its standard error is below this.
    strategy: "vmap" computes what samples have in common once; "auto" does so if it is faster.
    balanced: True balances the samples so that their errors cancel: components of mixtures are used equally often, and
        Gaussian noise comes in pairs of opposite sign (take an even number of samples). False draws samples
        independently; None is the default of the methods (patches are balanced, Gaussians not). Whole networks only.
    weights: the weight of each sample (samples,), as `fit_weights` returns them for this seed
        (``from leanbayes.prediction.stacking import fit_weights``).

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> _ = lb.bayesianize_(model, lb.MeanField())
    >>> pred = lb.predict(model, torch.randn(5, 4), samples=16, task="classification")
    >>> pred.probs.shape, pred.mutual_information.shape
    (torch.Size([5, 3]), torch.Size([5]))
    """
    checks.module("model", model, error=PredictionError)
    samples = checks.samples(samples, error=PredictionError)
    if chunk is not None:
        chunk = checks.whole_number("chunk", chunk, error=PredictionError)
    if settle is not None:
        settle = checks.number("settle", settle, above=0, error=PredictionError)
    checks.one_of("strategy", strategy, ("auto", "vmap", "loop"), error=PredictionError)
    checks.one_of("estimator", estimator, (*sampling.ESTIMATORS, "moments"), error=PredictionError)
    checks.one_of("balanced", balanced, (True, False, None), error=PredictionError)
    for name, value in (("mean_only", mean_only), ("keep_samples", keep_samples), ("progress", progress)):
        checks.flag(name, value, error=PredictionError)
    if balanced is not None and estimator != "weight":
        raise PredictionError(
            f"balanced: expected estimator='weight', since only whole networks are laid out, received {estimator!r}"
        )
    if seed is None:
        with turns.lock:  # another thread's prediction restores torch's random state when it ends
            seed = int(torch.randint(2**62, (1,)))
    else:
        seed = checks.seed(seed, error=PredictionError)
    likelihood = resolve_task(model, task)
    warn_without_kl(model)
    if mean_only:
        warn_if_past(model)
    staged = isinstance(model, Staged)
    if staged and (settle is not None or weights is not None):
        checks.refuse("weights" if settle is None else "settle", _NONE_OF_STAGES, settle or weights, PredictionError)
    if staged and estimator == "moments":
        raise PredictionError('estimator: "moments" expects one network, received a cascade; ask one of its stages')
    how: dict[str, Any] = {
        "seed": seed, "chunk": chunk, "mean_only": mean_only, "estimator": estimator, "strategy": strategy,
        "group": Accumulator.check_every if settle else None, "balanced": balanced,
    }  # fmt: skip
    engine: Engine | OnePass
    if estimator == "moments":
        from .moments import one_pass  # its rules take a while to load

        given = {"mean_only": mean_only, "keep_samples": keep_samples, "settle": settle, "weights": weights}
        engine = one_pass(model, samples, seed, chunk, {**given, "strategy": None if strategy == "auto" else strategy})
    else:
        engine = Engine(model, samples, **how)
    if weights is not None and isinstance(engine, Engine):
        weights = check_weights(weights, engine.samples, settle)
        engine.asked = engine.samples  # no more, if a model without random layers draws noise itself
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    inputs = batches.accept(inputs, model, name="inputs", arguments=True)
    is_tensors = isinstance(inputs, list) and all(isinstance(part, Tensor) for part in inputs)
    is_loader = not (isinstance(inputs, (Tensor, Mapping, tuple)) or is_tensors)
    parts: list[Predictive] = []
    for batch in _batches(inputs, is_loader, progress):  # outside of the lock: a loader may be slow, or predict itself
        if batches.size(batch) == 0:
            continue
        with undisturbed(model), dtypes_explained(model, batch):
            if staged:
                ask = partial(_ask, samples, how, keep_samples)
                found = [model.answer(batches.to(batch, device), likelihood, ask)]  # type: ignore[operator]
            else:
                found = _averages(engine, likelihood, batches.to(batch, device), keep_samples, settle, weights)
            parts += [_on_cpu(part) for part in found] if is_loader else found
    if not parts:
        raise DataError("expected at least one datum, received none")
    record, result = get(model), join(parts)
    if record is None:
        return result
    same = record.conformal is not None and record.conformal.likelihood == str(likelihood)
    named = likelihood.task == "classification" and result.mean.shape[1] == len(record.classes)
    return dataclasses.replace(
        result, conformal=record.conformal if same else None, classes=record.classes if named else ()
    )


_NONE_OF_STAGES = "none with a model that decides by itself how much to ask"


def _ask(
    samples: int,
    how: dict[str, Any],
    keep: bool,
    part: nn.Module,
    inputs: Any,
    likelihood: Likelihood,
    begin: int,
    end: int | None,
) -> Predictive | None:
    """The prediction of a part of a model, from a sample on; None if no further samples would differ."""
    engine = Engine(part, end or samples, **how, begin=begin)
    return join(_averages(engine, likelihood, inputs, keep)) if engine.samples > begin else None


def _averages(
    engine: Engine | OnePass,
    likelihood: Likelihood,
    inputs: Any,
    keep: bool,
    settle: float | None = None,
    weights: Tensor | None = None,
) -> list[Predictive]:
    """The predictions of the blocks into which an engine cuts a batch."""
    return [
        _average(engine, likelihood, batches.size(block), outputs, keep, settle, weights)
        for block, outputs in engine.numbered(inputs)
    ]


def _average(
    engine: Engine | OnePass,
    likelihood: Likelihood,
    rows: int,
    outputs: Iterable[tuple[list[int], Tensor]],
    keep: bool,
    settle: float | None,
    weights: Tensor | None,
) -> Predictive:
    total = Accumulator(likelihood, keep, settle, weights)
    for numbers, group in outputs:
        if group.shape[1:2] != (rows,):
            raise PredictionError(
                f"expected outputs for {rows} data, received a tensor of shape {tuple(group.shape[1:])}; "
                "the first dimension must be the batch"
            )
        total.add(group, numbers)
        if settle is not None and total.settled:
            break
    result = total.result(engine.used)
    if isinstance(engine, Engine):
        return result
    from .moments import one_gaussian

    return one_gaussian(result)


def resolve_task(model: nn.Module, task: Any) -> Likelihood:
    """The likelihood of a task: as given, or that which the model was fitted for.

    The name of the model's own task gives its likelihood, with its learned noise and temperature.
    """
    record = get(model)
    if task is not None:
        given = likelihoods.likelihood(task)
        if not isinstance(task, str) or record is None or record.likelihood is None:
            return given
        own = likelihoods.from_dict(record.likelihood)
        return own if own.task == given.task else given
    if record is None or record.likelihood is None:
        raise PredictionError(
            "this model was not trained by leanbayes.fit, so its task is not known; pass task=elbo.likelihood after a "
            'loop of your own, or task="classification", "segmentation" or "regression" (with a noise of 1)'
        )
    return likelihoods.from_dict(record.likelihood)


def _batches(inputs: Any, is_loader: bool, progress: bool) -> Iterable[Any]:
    if not is_loader:
        return [inputs]
    if not progress:
        return (batches.split(batch)[0] for batch in batches.stream(inputs))
    from rich.progress import track

    total = len(inputs) if isinstance(inputs, Sized) else None
    return (batches.split(b)[0] for b in track(batches.stream(inputs), "predict", total=total, transient=True))


def _on_cpu(prediction: Predictive) -> Predictive:
    tensors = {k: v.cpu() for k, v in vars(prediction).items() if isinstance(v, Tensor)}
    return dataclasses.replace(prediction, **tensors)  # type: ignore[arg-type]
