"""Everything a training run must have to continue as if nothing had happened: taken, checked, put back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import ArtifactError, TrainingError
from . import checkpoint, rng

if TYPE_CHECKING:
    from .loop import Run


def find(run: Run) -> dict[str, Any] | None:
    """The checkpoint to continue from, if there is one, checked against this run; every process reads the file."""
    path = run.job.checkpoint
    if path is None:
        return None
    exists = path.exists()
    run.fabric.barrier()  # nobody writes before everybody has looked
    if not exists:
        return None
    if not run.job.resume:
        raise TrainingError(f"{path}: there is a checkpoint already; pass resume=True to continue it, or delete it")
    stored = checkpoint.read(path)
    _check(run, stored)
    return stored


def begin(run: Run) -> None:
    """Write the first checkpoint: what cannot be written is refused now, and the initial weights are on record."""
    if run.job.checkpoint is not None:
        content = take(run)
        checkpoint.check_plain(content)
        _write(run, content)


def save(run: Run) -> None:
    """Write a checkpoint, where one is wanted."""
    if run.job.checkpoint is not None:
        _write(run, take(run))


def take(run: Run) -> dict[str, Any]:
    """The state of a run as tensors and plain values; every process must take part."""
    job, state = run.job, run.state
    return {
        "settings": {
            "seed": job.seed,
            "processes": run.fabric.world_size,
            "precision": str(run.fabric.strategy.precision.precision),
            "task": job.elbo.likelihood.task,
            "optimizer": type(job.optimizer).__name__,
            **run.feed.describe(),
        },
        "model": dict(job.model.state_dict()),
        "elbo": dict(job.elbo.state_dict()),
        "optimizer": job.optimizer.state_dict(),
        "scheduler": None if job.scheduler is None else job.scheduler.state_dict(),
        "precision": run.fabric.strategy.precision.state_dict(),
        "callbacks": [(type(c).__name__, c.state_dict() if hasattr(c, "state_dict") else None) for c in job.callbacks],
        "rng": _generators(run),
        "position": {"epoch": state.epoch, "batch": run.batch, "step": state.step, "stop": state.stop},
        "sums": dict(vars(run.sums)),
        "history": run.history.rows,
    }


def restore(run: Run, stored: dict[str, Any]) -> None:
    """Take over the state that `find` has checked."""
    job, position = run.job, stored["position"]
    job.model.load_state_dict(stored["model"])
    job.elbo.load_state_dict(stored["elbo"])
    job.optimizer.load_state_dict(stored["optimizer"])
    if job.scheduler is not None:
        job.scheduler.load_state_dict(stored["scheduler"])
    run.fabric.strategy.precision.load_state_dict(stored["precision"])
    for callback, (_, kept) in zip(job.callbacks, stored["callbacks"], strict=True):
        if kept is not None:
            callback.load_state_dict(kept)
    run.history.rows[:] = stored["history"]
    for name, value in stored["sums"].items():
        setattr(run.sums, name, value)
    run.batch = position["batch"]
    run.state.epoch, run.state.step, run.state.stop = position["epoch"], position["step"], position["stop"]
    rng.restore(stored["rng"][run.fabric.global_rank], run.fabric.device)


def _check(run: Run, stored: dict[str, Any]) -> None:
    """Refuse a checkpoint that is not of this run, before anything is touched."""
    path, now = run.job.checkpoint, take(run)
    if missing := sorted(now.keys() - stored.keys()):
        raise ArtifactError(f"{path}: expected a complete checkpoint, but it lacks {missing[0]!r}")
    checkpoint.check_equal(path, stored["settings"], now["settings"])
    for part in ("model", "elbo"):
        checkpoint.check_tensors(path, part, stored[part], now[part])
    checkpoint.check_equal(path, _layout(stored), _layout(now))


def _layout(content: dict[str, Any]) -> dict[str, Any]:
    return {
        "parameters in the optimizer": [len(group["params"]) for group in content["optimizer"]["param_groups"]],
        "callbacks": [name for name, _ in content["callbacks"]],
        "scheduler": "none" if content["scheduler"] is None else "one",
    }


def _write(run: Run, content: dict[str, Any]) -> None:
    assert run.job.checkpoint is not None
    if run.fabric.is_global_zero:
        checkpoint.write(run.job.checkpoint, content)


def _generators(run: Run) -> list[dict[str, Tensor]]:
    mine = rng.capture(run.fabric.device)
    if run.fabric.world_size == 1:
        return [mine]
    everyone: list[Any] = [None] * run.fabric.world_size
    torch.distributed.all_gather_object(everyone, mine)
    return everyone
