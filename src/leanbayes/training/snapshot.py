"""The whole state of a training run: written to a checkpoint, checked, and restored."""

from __future__ import annotations

import contextlib
import copy
import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import ArtifactError, LeanBayesError, TrainingError
from ..layers.contract import option
from . import checkpoint, lock, processes, rng, settings
from .guard import finite
from .stored_sizes import completed, sparse_weights

if TYPE_CHECKING:
    from .job import Job
    from .loop import Run

_SINCE_0_2 = {"free", "feed", "noise_scales"}  # missing in files of version 0.1
# State that torch's optimisers keep in the shape of the parameter.
_ELEMENTWISE = {
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "acc_delta", "sum",
    "exp_inf", "prev", "step_size",
}  # fmt: skip


@contextlib.contextmanager
def exclusive(run: Run) -> Iterator[None]:
    """Run a block while holding the lock on the checkpoint; the first process holds it for all of them."""
    path, problem = run.job.checkpoint, None
    with contextlib.ExitStack() as stack:
        if path is not None:
            if run.fabric.is_global_zero:
                try:
                    stack.enter_context(lock.held(path))
                except LeanBayesError as error:
                    problem = str(error)
            problem = run.fabric.broadcast(problem)
        if problem is not None:
            raise TrainingError(problem)
        yield


def find(run: Run) -> dict[str, Any] | None:
    """The checkpoint to resume from, checked against this run, or None; every process reads the file."""
    path = run.job.checkpoint
    if path is None:
        return None
    world = run.fabric.world_size
    seen = int(processes.total(run.fabric, torch.tensor([float(os.path.exists(path))])))
    if not seen:
        return None
    if seen < world:
        raise TrainingError(f"{path}: expected all {world} processes to see it, {seen} do; use a shared folder")
    if not run.job.resume:
        raise TrainingError(f"{path}: there is a checkpoint already; pass resume=True to continue it, or delete it")
    now = take(run)

    def read() -> dict[str, Any]:
        stored = checkpoint.read(path)
        if isinstance(stored.get("model"), dict):
            stored["model"] = completed(run.job.model, stored["model"])
        _check(run, stored, now)
        return stored

    return processes.together(run.fabric, read)


def noise_scales(job: Job) -> dict[str, float] | None:
    """The noise scales of layers at the first step of the run that is resumed; None if none is resumed.

    Rates of dropout are options of a method, which a checkpoint compares and does not restore.
    """
    if not job.resume or job.checkpoint is None or not job.checkpoint.exists():
        return None
    scales = checkpoint.read(job.checkpoint).get("noise_scales", {})
    if not isinstance(scales, dict) or not all(type(s) is float and 0 < s < math.inf for s in scales.values()):
        raise ArtifactError(f"{job.checkpoint}: expected positive scales of its noise, found {scales!r}")
    return scales


def begin(run: Run) -> None:
    """Write the first checkpoint, with the initial weights; a state that cannot be written is refused now."""
    if run.job.checkpoint is not None:
        content = take(run)
        processes.together(run.fabric, lambda: checkpoint.check_plain(content))
        _write(run, content)


def save(run: Run) -> None:
    """Write a checkpoint if the run has one."""
    if run.job.checkpoint is not None:
        _write(run, take(run))


def take(run: Run) -> dict[str, Any]:
    """The state of a run as tensors and plain values; every process takes part."""
    job, state = run.job, run.state
    return {
        "settings": run.fixed,
        "free": run.free,
        "noise_scales": job.noise_scales,
        "model": job.parameters.gathered(dict(job.model.state_dict())),
        "elbo": dict(job.elbo.state_dict()),
        "optimizer": job.parameters.gathered(job.optimizer.state_dict()),
        "scheduler": None if job.scheduler is None else job.scheduler.state_dict(),
        "precision": run.fabric.strategy.precision.state_dict(),
        "callbacks": [(type(c).__name__, c.state_dict() if option(c, "state_dict") else None) for c in job.callbacks],
        "rng": _generators(run),
        "feed": [rng.state_of(generator) for generator in _own_generators(run)],
        "position": {"epoch": state.epoch, "batch": run.batch, "step": state.step, "stop": state.stop},
        "sums": dict(vars(run.sums)),
        "history": run.history.rows,
    }


def restore(run: Run, stored: dict[str, Any]) -> None:
    """Load the state that `find` has checked; if that fails, the model stays as it was."""
    job = run.job
    parts: tuple[Any, ...] = (job.model, job.elbo, job.optimizer)
    before = [copy.deepcopy(part.state_dict()) for part in parts]
    try:
        _restore(run, stored)
    except Exception as error:
        for part, state in zip(parts, before, strict=True):
            part.load_state_dict(state)
        raise ArtifactError(
            f"{job.checkpoint}: expected a state that this run can take over, but {type(error).__name__}: {error}; "
            "delete it, or move it"
        ) from error
    settings.apply_differences(run, stored.get("free", {}))
    if _SINCE_0_2 - stored.keys():
        save(run)


def _restore(run: Run, stored: dict[str, Any]) -> None:
    job, position = run.job, stored["position"]
    stored = job.parameters.divided(stored, job.model)
    job.model.load_state_dict(stored["model"])
    job.elbo.load_state_dict(stored["elbo"])
    job.optimizer.load_state_dict(stored["optimizer"])
    if job.scheduler is not None:
        job.scheduler.load_state_dict(stored["scheduler"])
    run.fabric.strategy.precision.load_state_dict(stored["precision"])
    for callback, (_, kept) in zip(job.callbacks, stored["callbacks"], strict=True):
        if kept is not None:
            callback.load_state_dict(kept)
    for generator, state in zip(_own_generators(run), stored.get("feed", []), strict=False):
        rng.set_state(generator, state)
    run.history.rows[:] = stored["history"]
    for name in vars(run.sums):
        setattr(run.sums, name, stored["sums"].get(name, 0))  # older versions had fewer terms
    run.batch = position["batch"]
    run.state.epoch, run.state.step, run.state.stop = position["epoch"], position["step"], position["stop"]
    rng.restore(stored["rng"][run.fabric.global_rank], run.fabric.device)


def _check(run: Run, stored: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse a checkpoint of another run, or one that no run has written, before anything is changed."""
    path = run.job.checkpoint
    if missing := sorted(now.keys() - stored.keys() - _SINCE_0_2):
        raise ArtifactError(f"{path}: expected a complete checkpoint, but it lacks {missing[0]!r}")
    try:
        if not isinstance(stored["settings"], dict):
            raise TypeError("its settings are no dictionary")
        checkpoint.check_equal(path, stored["settings"], now["settings"])
        for name, (weight, count) in sparse_weights(run.job.model, stored["model"]).items():
            # training thins weights out: a checkpoint may have fewer than the model at its start
            for key in [*weight._parameters, "index"]:
                now["model"][f"{name}.{key}"] = now["model"][f"{name}.{key}"].new_empty(count)
        for part in ("model", "elbo"):
            checkpoint.check_tensors(path, part, stored[part], now[part])
        checkpoint.check_equal(path, _layout(stored), _layout(now))
        wrong = _impossible(run, stored, now)
    except LeanBayesError:
        raise
    except Exception as error:  # content of a wrong kind may lead to any error
        wrong = f"{type(error).__name__}: {error}"
    if wrong:
        raise ArtifactError(f"{path}: expected a checkpoint that leanbayes.fit wrote, but {wrong}; delete it")


def _impossible(run: Run, stored: dict[str, Any], now: dict[str, Any]) -> str | None:
    """Why no run can have written this state, or None."""
    trained = {name for name, p in run.job.model.named_parameters() if p.requires_grad}
    if now_bad := [name for name in trained if not finite([stored["model"][name]])]:
        return f"its parameter {now_bad[0]!r} is not finite, so that training cannot go on from it"
    position = stored["position"]
    counts = [position[key] for key in ("epoch", "batch", "step")]
    if not all(type(n) is int and n >= 0 for n in counts) or not isinstance(position["stop"], str | None):
        return f"its position is {position}"
    if not all(isinstance(stored["sums"].get(name, 0), (int, float)) for name in vars(run.sums)):
        return "its sums are no numbers"
    rows = stored["history"]
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "step" in row for row in rows):
        return "its history has no rows"
    with rng.preserved(run.fabric.device):
        rng.restore(stored["rng"][run.fabric.global_rank], run.fabric.device)
    if now["scheduler"] is not None and stored["scheduler"].keys() != now["scheduler"].keys():
        return "the state of its scheduler has other entries"
    groups, ours = stored["optimizer"]["param_groups"], now["optimizer"]["param_groups"]
    if any(a["params"] != b["params"] for a, b in zip(groups, ours, strict=True)):
        return "its optimizer has other parameters"
    parameters = [p for group in run.job.optimizer.param_groups for p in group["params"]]
    shapes = {id(p): stored["model"][name].shape for name, p in run.job.model.named_parameters()}
    for index, state in stored["optimizer"]["state"].items():
        for name, value in state.items():
            p = parameters[index]
            shaped = isinstance(value, Tensor) and value.shape == shapes.get(id(p), p.shape)
            if name in _ELEMENTWISE and value is not None and not shaped:
                return f"{name!r} in its optimizer is not of the shape of its parameter"
    return None


def _layout(content: dict[str, Any]) -> dict[str, Any]:
    return {
        "parameters in the optimizer": [len(group["params"]) for group in content["optimizer"]["param_groups"]],
        "callbacks": [name for name, _ in content["callbacks"]],
        "scheduler": "none" if content["scheduler"] is None else "one",
    }


def _write(run: Run, content: dict[str, Any]) -> None:
    path = run.job.checkpoint
    assert path is not None
    first = run.fabric.is_global_zero
    processes.together(run.fabric, lambda: checkpoint.write(path, content, keep_previous=True) if first else None)


def _own_generators(run: Run) -> list[Any]:
    """The random generators of the user's samplers, of training and validation data."""
    return [*run.feed.generators(), *(() if run.val is None else run.val.generators())]


def _generators(run: Run) -> list[dict[str, Tensor]]:
    mine = rng.capture(run.fabric.device)
    if run.fabric.world_size == 1:
        return [mine]
    everyone: list[Any] = [None] * run.fabric.world_size
    torch.distributed.all_gather_object(everyone, mine)
    return everyone
