"""The settings of a run, compared with those of the checkpoint that it resumes from."""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from .. import config
from ..convert import record
from ..errors import ConfigError, LeanBayesWarning
from ..fingerprint import add_nested
from . import rng
from .data import Feed, Keyed, Rows
from .schedules import Schedule, evaluate

if TYPE_CHECKING:
    from .loop import Run

_MOST_BYTES = 2**26  # of a tensor that are read for a digest
# State of a scheduler that changes as it steps, or that it takes from the optimiser; the rest are its options.
_CHANGING = {
    "last_epoch", "_step_count", "_last_lr", "base_lrs", "best", "num_bad_epochs", "cooldown_counter", "T_cur", "T_i",
    "_get_lr_called_within_step", "_is_initial",
}  # fmt: skip


def must_match(run: Run) -> dict[str, Any]:
    """The settings that must be those of the checkpoint."""
    job, scheduler = run.job, run.job.scheduler
    return {
        "seed": job.seed,
        "processes": run.fabric.world_size,
        "precision": str(run.fabric.strategy.precision.precision),
        "task": job.elbo.likelihood.task,
        "optimizer": type(job.optimizer).__name__,
        **run.feed.describe(),
        "accumulate": job.accumulate,
        "elbo.num_data": job.elbo.num_data,
        "kl_weight": _described(job.elbo.kl_weight),
        "latent_weight": _described(job.elbo.latent_weight),
        "methods": {name: _config(method) for name, method in record.conversions(job.model).items()},
        "scheduler": None
        if scheduler is None
        else {"class": type(scheduler).__name__, "every": job.scheduler_every, **_options(scheduler.state_dict())},
    }


def may_differ(run: Run) -> dict[str, Any]:
    """The settings that may differ from the checkpoint, with a warning: data, options of the optimiser, clip."""
    groups = [{k: _number(v) for k, v in g.items() if k != "params"} for g in run.job.optimizer.param_groups]
    return {
        "data": fingerprint(run.feed),
        "clip": run.job.clip,
        "groups": [{k: v for k, v in group.items() if _scalar(v)} for group in groups],
    }


def apply_differences(run: Run, stored: dict[str, Any]) -> None:
    """Warn of what differs from the checkpoint, and give the optimiser the options of this run, unless a scheduler
    sets them.
    """
    notes: list[str] = []
    now = run.free
    if None not in (stored.get("data"), now["data"]) and stored["data"] != now["data"]:
        notes.append("the data are not those that it was written with, though as many; training goes on with the new")
    if "clip" in stored and stored["clip"] != now["clip"]:
        notes.append(f"written with clip={stored['clip']!r}, goes on with clip={now['clip']!r}")
    optimizer = run.job.optimizer
    for group, old, new in zip(optimizer.param_groups, stored.get("groups", []), now["groups"], strict=False):
        for key, value in new.items():
            if key not in old or old[key] == value:
                continue
            if run.job.scheduler is None:
                group[key] = value
                notes.append(f"written with {key}={old[key]!r}, goes on with {key}={value!r}")
            else:
                notes.append(
                    f"written with {key}={old[key]!r}, this run has {key}={value!r}, which is not applied: the "
                    f"scheduler goes on with {key}={_number(group[key])!r}"
                )
    if notes and run.fabric.is_global_zero:
        text = "; ".join(dict.fromkeys(notes))
        warnings.warn(f"{run.job.checkpoint}: {text}", LeanBayesWarning, stacklevel=2)


def fingerprint(feed: Feed) -> str | None:
    """A digest of the first, middle and last datum, or of all data if they are a few tensors.

    None if reading the data could have side effects: they are no data set, or workers are to open their files.
    """
    loader: Any = feed.loader
    if not isinstance(loader, DataLoader) or loader.num_workers or isinstance(loader.dataset, IterableDataset):
        return None
    dataset: Any = loader.dataset.dataset if isinstance(loader.dataset, Keyed) else loader.dataset
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(dataset, (Rows, TensorDataset)):
        for tensor in dataset.tensors:
            add_nested(digest, tensor[:: 1 + tensor.numel() * tensor.element_size() // _MOST_BYTES])
    elif feed.num_data is None:
        return None
    else:
        with rng.seeded_host(0):
            for index in sorted({0, feed.num_data // 2, feed.num_data - 1}):
                with contextlib.suppress(Exception):  # training will raise it again
                    add_nested(digest, dataset[index])
    return digest.hexdigest()


def _described(schedule: Schedule) -> Any:
    """A schedule as a config, or, for a function of the user, some of its values."""
    with contextlib.suppress(ConfigError):
        return config.to_dict(schedule)
    values = {}
    with contextlib.suppress(Exception):  # it may be defined for a few steps only
        for step in (0, 1, 10, 100, 1000, 10_000):
            values[str(step)] = evaluate(schedule, step)
    return values


def _config(method: Any) -> Any:
    try:
        return config.to_dict(method)
    except ConfigError:
        return type(method).__name__


def _options(state: Any) -> Any:
    """The options in the state of a scheduler: plain values that do not change as it steps."""
    if isinstance(state, dict):
        found = {str(k): _options(v) for k, v in state.items() if k not in _CHANGING}
        return {k: v for k, v in found.items() if v is not None}
    if isinstance(state, (list, tuple)):
        return [_options(item) for item in state]
    return _number(state) if _scalar(_number(state)) else None


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def _scalar(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_scalar, value))
    return value is None or isinstance(value, (bool, int, float, str))
