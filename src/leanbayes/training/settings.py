"""What decides a run: compared when one is continued, so that it is that run, or its user is told."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .. import config
from ..convert import record
from ..errors import ConfigError, LeanBayesWarning
from .fingerprint import fingerprint
from .schedules import Schedule, evaluate

if TYPE_CHECKING:
    from .loop import Run

# What a scheduler changes as it goes, or takes from the optimiser; the rest of its state is how it was made.
_MOVES = {
    "last_epoch", "_step_count", "_last_lr", "base_lrs", "best", "num_bad_epochs", "cooldown_counter", "T_cur", "T_i",
    "_get_lr_called_within_step", "_is_initial",
}  # fmt: skip


def fixed(run: Run) -> dict[str, Any]:
    """What has to be the same for a run to be continued."""
    job = run.job
    return {
        "seed": job.seed,
        "processes": run.fabric.world_size,
        "precision": str(run.fabric.strategy.precision.precision),
        "task": job.elbo.likelihood.task,
        "optimizer": type(job.optimizer).__name__,
        **run.feed.describe(),
        "elbo.num_data": job.elbo.num_data,
        "kl_weight": _told(job.elbo.kl_weight),
        "latent_weight": _told(job.elbo.latent_weight),
        "methods": {name: _config(method) for name, method in record.conversions(job.model).items()},
        "scheduler": None
        if job.scheduler is None
        else {"class": type(job.scheduler).__name__, "every": job.scheduler_every, **_made(job.scheduler.state_dict())},
    }


def free(run: Run) -> dict[str, Any]:
    """What may differ, and is then said: the data behind the same number of them, options of the optimiser, clip."""
    groups = [{k: _number(v) for k, v in g.items() if k != "params"} for g in run.job.optimizer.param_groups]
    return {
        "data": fingerprint(run.feed),
        "clip": run.job.clip,
        "groups": [{k: v for k, v in group.items() if _scalar(v)} for group in groups],
    }


def apply_free(run: Run, stored: dict[str, Any]) -> None:
    """Say what differs from the run that is continued; options of the optimiser take the values of this run.

    Not where a scheduler sets them: it goes on from where it was.
    """
    said: list[str] = []
    now = run.free
    if None not in (stored.get("data"), now["data"]) and stored["data"] != now["data"]:
        said.append("the data are not those that it was written with, though as many; training goes on with the new")
    if "clip" in stored and stored["clip"] != now["clip"]:
        said.append(f"written with clip={stored['clip']!r}, goes on with clip={now['clip']!r}")
    optimizer = run.job.optimizer
    for group, old, new in zip(optimizer.param_groups, stored.get("groups", []), now["groups"], strict=False):
        for key, value in new.items():
            if key not in old or old[key] == value:
                continue
            if run.job.scheduler is None:
                group[key] = value
                said.append(f"written with {key}={old[key]!r}, goes on with {key}={value!r}")
            else:
                said.append(
                    f"written with {key}={old[key]!r}, this run has {key}={value!r}, which is not applied: the "
                    f"scheduler goes on with {key}={_number(group[key])!r}"
                )
    if said and run.fabric.is_global_zero:
        text = "; ".join(dict.fromkeys(said))
        warnings.warn(f"{run.job.checkpoint}: {text}", LeanBayesWarning, stacklevel=2)


def _told(schedule: Schedule) -> Any:
    """A schedule as its config, or as its values where it is a function of the user's own."""
    with contextlib.suppress(ConfigError):
        return config.to_dict(schedule)
    values = {}
    with contextlib.suppress(Exception):  # it may end somewhere
        for step in (0, 1, 10, 100, 1000, 10_000):
            values[str(step)] = evaluate(schedule, step)
    return values


def _config(method: Any) -> Any:
    try:
        return config.to_dict(method)
    except ConfigError:
        return type(method).__name__


def _made(state: Any) -> Any:
    """How a scheduler was made, from its state: plain values that do not move."""
    if isinstance(state, dict):
        made = {str(k): _made(v) for k, v in state.items() if k not in _MOVES}
        return {k: v for k, v in made.items() if v is not None}
    if isinstance(state, (list, tuple)):
        return [_made(item) for item in state]
    return _number(state) if _scalar(_number(state)) else None


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def _scalar(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_scalar, value))
    return value is None or isinstance(value, (bool, int, float, str))
