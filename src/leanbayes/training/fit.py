"""`fit`: train a model, converted or plain, on whatever devices there are."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from .. import checks
from ..batches import accept
from ..convert import record
from ..data.dataset import class_names
from ..errors import ConfigError, LeanBayesWarning
from ..turns import training
from . import arguments, callbacks as hooks, checkpoint as files, data, snapshot
from .elbo import ELBO
from .history import History
from .job import Job
from .loop import Run
from .natural_gradient import NaturalGradientSGD
from .noise import Limits, limited_, noise_scales, tunable, tuned_
from .noise_trials import put_back
from .processes import Parameters, in_precision
from .progress import tell
from .recalibrate import needs_whole_draws, recalibrate_
from .schedules import Schedule, schedule
from .trackers import TensorBoardTracker, Tracker, check as check_trackers

if TYPE_CHECKING:
    from lightning_fabric import Fabric


RECALIBRATION = 10_000
"""How many data BatchNorm's statistics are collected from after training: 50 whole networks with 200 data each."""

_HIGHEST_RATE = 1e6  # far beyond any that learns, and far below what float32 overflows at
_SHARDED = {"fsdp": "popen", "fsdp_spawn": "spawn", "fsdp_fork": "fork"}  # and how processes are started


def fit(
    model: nn.Module,
    train_loader: Any,
    *,
    val: Any = None,
    task: Any = "classification",
    epochs: int = 10,
    optimizer: Optimizer | Callable[..., Optimizer] | None = None,
    lr: float = 1e-3,
    scale_lr: float | None = None,
    scheduler: Callable[[Optimizer], LRScheduler] | LRScheduler | None = None,
    scheduler_every: Literal["epoch", "step"] = "epoch",
    kl_weight: float | Schedule | None = None,
    latent_weight: float | Schedule = 1.0,
    num_data: int | None = None,
    batch_size: int = 128,
    accumulate: int = 1,
    val_samples: int = 4,
    seed: int = 0,
    clip: float | None = None,
    recalibrate: bool = True,
    tune: bool = True,
    early_stopping: int | hooks.EarlyStopping | None = None,
    callbacks: Sequence[Any] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    log: str | os.PathLike[str] | None = None,
    tensorboard: str | os.PathLike[str] | None = None,
    trackers: Sequence[Tracker] = (),
    accelerator: str = "auto",
    devices: int | str | list[int] = 1,
    strategy: Any = "auto",
    precision: Any = "32-true",
    progress: bool = True,
) -> History:
    """Train a model in place on the ELBO; returns a row of numbers an epoch.

    train_loader, val: inputs and targets, in whatever `leanbayes.batches` takes: a DataLoader, a Dataset, a tuple of
    tensors (x, y), but no generator: it is read once an epoch. For a DataLoader
    of a map-style data set with a default sampler, `fit` orders the data itself: shuffling and random augmentation are
    functions of (seed, epoch, batch), whatever the workers. batch_size is for data sets and tensors.
    task: see `ELBO`. The number of data comes from the loader; num_data overrides it. After training the model
    remembers the task, and `predict` need not be told.

    optimizer: Adam, or a class, a function of the parameters, or an instance. lr, scale_lr: of Adam or the class;
    scale_lr is that of the spread of posteriors (see `parameter_groups`, for optimizers of your own), and a run of 100
    steps or more that has left it where it was ends with a warning.
    scheduler: a function of the optimizer that returns a learning-rate scheduler, stepped each epoch or each step.
    kl_weight: a number or a schedule of the step, say ``warmup(0, 1, steps=5 * len(loader))``; 1 is the ELBO itself.
    None is 1 where there are 20 data a random weight, and 0.05 data / weights where there are fewer, so that the KL
    counts 0.05 of its mean over the weights: a tempered posterior, without which the prior of a large network outweighs
    little data. latent_weight: the same for the KL of latent variables, where a model has any: a beta-VAE's beta.
    accumulate: how many batches make one step of the optimizer: their gradients are added, each weighed by its data,
    and the KL counts once, so that it is the step of one batch of accumulate * batch_size data in the memory of one of
    batch_size. BatchNorm and weight noise still see batch by batch. Schedules, callbacks, ``checkpoint_every`` and the
    history count steps of the optimizer; an epoch ends with the batches that are left.
    clip: the largest norm of the gradient.
    recalibrate: training noise and the noise of `predict` differ (see the guide on BatchNorm), so that BatchNorm's
    statistics are collected anew at the end, from up to 10,000 data under whole draws of the weights. Frozen ones stay.
    tune: with ``val``, the amount of noise is chosen by it at the end (`tune_noise_`): a factor on the spread of all
    that is random, and the noise of a regression that learns it. The history has what was tried, as ``tuning``. Before
    a regression, noise is halved until the variance that it adds is at most 0.05 of the squared residuals of ``val``.
    early_stopping: a patience in epochs on val_nll, or an `EarlyStopping`. callbacks: see
    `leanbayes.training.callbacks`. val_samples: draws of the weights in validation.

    checkpoint: a file, replaced atomically after each epoch and every `checkpoint_every` steps; the one before it stays
    as ``<name>.previous``, and ``<name>.lock`` keeps other runs out. With resume=True a run continues from it if it is
    there; killed at any moment, it ends bit-identical to one that was not (on the same number of threads). Another
    seed, batch_size, accumulate, num_data, kl_weight, scheduler, method or prior is refused; other data, clip and
    options of the optimizer such as lr apply from there on, with a warning (where a scheduler sets them, its values
    stay).
    log: a file of JSON lines, a row an epoch. tensorboard: a folder. trackers: `MLflowTracker`, `WandbTracker` or any
    object with the methods of `leanbayes.training.trackers.Tracker`.

    Where a step cannot be done (inputs that are not finite, targets that do not fit, a loss or gradient that is not
    finite) an error says why, and the model is as it was when that step began, buffers included.

    accelerator, devices, strategy, precision: as in Lightning Fabric; one device, or DDP, where batch_size is per
    process. Noise differs between processes, parameters do not. "fsdp" (or "fsdp_spawn", "fsdp_fork") is the same with
    parameters, gradients and the optimizer's state divided among processes between steps; a step gathers all of them,
    since the KL needs whole posteriors. It is for plain models and methods without callbacks, such as `MeanField`. The
    model stays on its device, in the train or eval mode it came in, and the global random generators are left as they
    were found.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> x = torch.linspace(-1, 1, 64).unsqueeze(1)
    >>> model = nn.Linear(1, 1)
    >>> result = fit(model, (x, 3 * x), task="regression", epochs=30, lr=0.1, batch_size=16)
    >>> round(model.weight.item(), 1), len(result)
    (3.0, 30)
    """
    checks.module("model", model)
    seed = checks.seed(seed)
    checks.one_of("scheduler_every", scheduler_every, ("epoch", "step"))
    flags = {"resume": resume, "recalibrate": recalibrate, "tune": tune, "progress": progress}
    for name, flag in flags.items():
        checks.flag(name, flag)
    counts = {"epochs": epochs, "batch_size": batch_size, "accumulate": accumulate, "val_samples": val_samples}
    for name, value in counts.items():
        checks.whole_number(name, value)
    checks.number("lr", lr, above=0, at_most=_HIGHEST_RATE)
    if clip is not None:
        checks.number("clip", clip, above=0)
    if scale_lr is not None:
        checks.number("scale_lr", scale_lr, at_least=0, at_most=_HIGHEST_RATE)
    if checkpoint_every is not None:
        checks.whole_number("checkpoint_every", checkpoint_every)
    if checkpoint is None and (resume or checkpoint_every is not None):
        raise ConfigError("resume and checkpoint_every: expected a checkpoint as well; pass checkpoint='run.ckpt'")
    tracked = check_trackers(trackers)
    if tensorboard is not None:
        tracked = [TensorBoardTracker(tensorboard), *tracked]

    train_loader = accept(train_loader, model, name="train_loader")
    val = None if val is None else accept(val, model, name="val")
    feed = data.feed(train_loader, batch_size=batch_size, seed=seed)  # checks it; the loop makes its own
    held_out = None if val is None else data.feed(val, batch_size=batch_size, seed=seed, training=False)
    count = num_data if num_data is not None else data.count(train_loader)
    elbo = ELBO(task, count, 1.0 if kl_weight is None else kl_weight, latent_weight)
    if kl_weight is None:
        elbo.kl_weight = schedule(arguments.default_kl_weight(model, elbo.num_data))
    fabric, parameters = _fabric(accelerator, devices, strategy, precision)
    chosen = arguments.make_optimizer(optimizer, model, elbo, lr, scale_lr)
    own = [*hooks.check(callbacks), *arguments.make_early_stopping(early_stopping, val)]
    if type(parameters) is not Parameters:
        _check_sharding(model, chosen, own)
    job = Job(
        model=model,
        elbo=elbo,
        train=train_loader,
        val=val,
        epochs=epochs,
        batch_size=batch_size,
        accumulate=accumulate,
        optimizer=chosen,
        scheduler=arguments.make_scheduler(scheduler, chosen, scheduler_every),
        scheduler_every=scheduler_every,
        seed=seed,
        clip=clip,
        val_samples=val_samples,
        of_methods=hooks.callbacks(model),
        own=own,
        checkpoint=arguments.as_file("checkpoint", checkpoint),
        checkpoint_every=checkpoint_every,
        resume=resume,
        log=arguments.as_file("log", log),
        trackers=tracked,
        progress=progress,
        parameters=parameters,
    )
    if checkpoint is not None and not feed.owned:
        warnings.warn(
            "the order of this loader is its own, so checkpoints are written at the end of epochs only and a run "
            f"continues at the start of one; {len(feed.generators())} random generator(s) of it are saved, whatever "
            "else it keeps from epoch to epoch starts anew; use a DataLoader with its default sampler to continue "
            "after any batch",
            LeanBayesWarning,
            stacklevel=2,
        )

    limits = _limits(fabric, job, held_out if tune else None)
    job.noise_scales = noise_scales(model)
    try:
        with training():
            result = _launch(fabric, job)
    except BaseException:
        put_back(limits.undo if elbo.step == 0 else [])
        raise

    record.ensure(model).trained(elbo.likelihood.to_dict(), class_names(train_loader))
    if recalibrate and needs_whole_draws(model):
        recalibrate_(model, train_loader, data=RECALIBRATION, seed=seed)
    if tune and held_out is not None and tunable(model, elbo.likelihood):
        forward = partial(in_precision, fabric, model)
        options: Any = {"seed": seed, "recalibrate": recalibrate, "final": RECALIBRATION}
        result.tuning = tuned_(model, elbo.likelihood, held_out, train_loader, forward=forward, **options)
        record.ensure(model).likelihood = elbo.likelihood.to_dict()
        if progress:
            tell(result.tuning.summary())
    return result


def _fabric(accelerator: str, devices: Any, strategy: Any, precision: Any) -> tuple[Fabric, Parameters]:
    """Lightning's Fabric, and whether each process has all parameters between steps or a part of them."""
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import DDPStrategy, SingleDeviceStrategy

    parameters, chosen = Parameters(), strategy
    if isinstance(strategy, str) and strategy in _SHARDED:
        from .sharded import Sharded, Shards

        parameters = shards = Shards()
        chosen = Sharded(shards, start_method=_SHARDED[strategy])
    try:
        fabric = Fabric(accelerator=accelerator, devices=devices, strategy=chosen, precision=precision)
    except Exception as error:  # Fabric raises whatever comes of a bad argument
        shown = {"accelerator": accelerator, "devices": devices, "strategy": strategy, "precision": precision}
        given = ", ".join(f"{name}={checks.short(value)}" for name, value in shown.items())
        raise ConfigError(f"{given}: {error}") from error
    if not isinstance(fabric.strategy, (DDPStrategy, SingleDeviceStrategy)):
        raise ConfigError(
            f"strategy: expected a single device, DDP or FSDP, received {type(fabric.strategy).__name__}; parameters "
            f"that are divided any other way leave the KL without whole posteriors: pass one of {', '.join(_SHARDED)}"
        )
    return fabric, parameters


def _check_sharding(model: nn.Module, optimizer: Optimizer, callbacks: Sequence[Any]) -> None:
    """Refuse callbacks and optimisers that need whole parameters, which a sharded run has only during a step."""
    wrong = None
    if found := hooks.callbacks(model):
        wrong = (
            f"a method without callbacks (such as MeanField), received {type(found[0]).__name__}, which changes weights"
        )
    elif any(isinstance(c, hooks.EarlyStopping) and c.restore_best for c in callbacks):
        wrong = "no EarlyStopping(restore_best=True), which copies weights"
    elif isinstance(optimizer, NaturalGradientSGD):
        wrong = "an optimizer that works number by number, received NaturalGradientSGD, which decomposes matrices"
    if wrong is not None:
        raise ConfigError(
            f'strategy="fsdp": expected {wrong} between steps, where every process has a part of them; use '
            'strategy="ddp"'
        )


def _limits(fabric: Fabric, job: Job, val: data.Feed | None) -> Limits:
    """Scale the noise as the resumed run did, or to suit the residuals of ``val``.

    Processes that were started from outside do not know each other yet: errors are left to the training loop, where
    all processes raise them.
    """
    try:
        if (scales := snapshot.noise_scales(job)) is not None:
            return Limits().at_(job.model, scales)
        return Limits() if val is None else limited_(job.model, job.elbo.likelihood, val, seed=job.seed)
    except Exception:
        if fabric.world_size == 1:
            raise
        return Limits()


def _launch(fabric: Fabric, job: Job) -> History:
    """Run the job here, or in processes of its own (strategy="ddp_spawn", "ddp_fork"), and return its history."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "result")
        work: Any = _work
        if os.environ.get("LT_CLI_USED", "0") == "1":  # `fabric run` has started the processes already
            result = work(fabric, job, home, os.getpid())
        else:
            result = fabric.launch(work, job, home, os.getpid())
        if isinstance(result, History):
            return result
        # The result of another process is read from a file: tensors in a queue end with the process that sent them.
        content = files.read(home)
    job.model.load_state_dict(content["model"])
    job.elbo.load_state_dict(content["elbo"])
    return History(content["rows"], content["stopped"])


def _work(fabric: Fabric, job: Job, home: Path, caller: int) -> History | None:
    """Train in one process of the job; in a new process, the first one writes the result to the file `home`."""
    result = Run(fabric, job).train()
    if os.getpid() == caller:
        return result
    if fabric.is_global_zero:
        model = {k: v.cpu() if isinstance(v, Tensor) else v for k, v in job.model.state_dict().items()}
        content = {"model": model, "elbo": dict(job.elbo.state_dict()), "rows": result.rows, "stopped": result.stopped}
        files.write(home, content)
    return None
