"""The loop behind `fit`, as one process runs it."""

from __future__ import annotations

import math
import operator
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from .. import batches, files
from ..errors import DataError, LeanBayesWarning, TrainingError
from ..eval_mode import kept_modes
from ..layers.contract import option
from ..sampling import mix
from . import data, diagnose, guard, processes, rng, settings, snapshot
from .callbacks import State, notify
from .elbo import Terms, averaged
from .history import History, Journal
from .job import Job, Step, Sums
from .parameter_groups import Watch
from .progress import Bar
from .unused import Unused
from .validate import check_validation, start_noise, validate

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass
class Run:
    """One process of a training run."""

    fabric: Fabric
    job: Job
    history: History = field(default_factory=History)
    batch: int = 0
    sums: Sums = field(default_factory=Sums)

    def __post_init__(self) -> None:
        fabric, job = self.fabric, self.job
        feed = partial(data.feed, batch_size=job.batch_size, seed=job.seed)
        feed = partial(feed, rank=fabric.global_rank, world=fabric.world_size)
        self.feed = feed(job.train)
        self.val = None if job.val is None else feed(job.val, training=False)
        if fabric.world_size > 1 and fabric.is_global_zero and not self.feed.owned:
            warnings.warn(
                "the order of this loader is its own, so every process reads all of it; have it yield a share to each, "
                "or use a DataLoader with its default sampler",
                LeanBayesWarning,
                stacklevel=2,
            )
        self.epoch_steps = math.ceil(len(self.feed) / job.accumulate)
        self.state = State(job.model, job.optimizer, total_steps=job.epochs * self.epoch_steps or None)
        self._find_trained()
        self.finite_at_start = guard.finite(self.trained.values())
        self.fixed = self.free = {}
        if job.checkpoint is not None:  # as they are before anything moves
            self.fixed, self.free = settings.must_match(self), settings.may_differ(self)

    def _find_trained(self) -> None:
        """Set the parameters that the optimiser steps, which `fabric.setup` may replace."""
        job = self.job
        stepped = {id(p) for group in job.optimizer.param_groups for p in group["params"]}
        named = (*job.model.named_parameters(), *job.elbo.named_parameters())
        self.trained = {name: p for name, p in named if id(p) in stepped}
        self.unused = Unused(job.model, self.trained)

    def train(self) -> History:
        """Train from the start, or from the checkpoint; returns the history."""
        job, fabric = self.job, self.fabric
        with snapshot.exclusive(self):
            stored = snapshot.find(self)
            self._notify("fit_start")
            with rng.preserved(fabric.device), kept_modes(job.model):
                if not job.model.training:  # otherwise modules that were frozen in eval mode stay so
                    job.model.train()
                watch = Watch(job.model, job.optimizer)
                self.module, self.optimizer = fabric.setup(Step(job.model, job.elbo), job.optimizer)
                job.parameters.adopt(job.optimizer)
                try:
                    self._find_trained()
                    self._epochs(stored)
                finally:
                    job.parameters.end()
                if stored is None and fabric.is_global_zero:  # a resumed run does not know where the scales began
                    watch.warn(self.state.step)
        self.history.stopped = self.state.stop
        return self.history

    def _epochs(self, stored: dict[str, Any] | None) -> None:
        job, fabric = self.job, self.fabric
        # Each process has noise of its own; DDP has made parameters and buffers the same everywhere.
        rng.seed_all(mix(job.seed, fabric.global_rank))
        check_validation(self)
        self.undo = guard.Undo(job.model, job.elbo)
        first = fabric.is_global_zero
        for path in (job.checkpoint, job.log):
            if first and path is not None:
                files.remove_leftovers(path)  # of runs that were killed while writing
        if stored is None:
            start_noise(self)
            snapshot.begin(self)
        else:
            snapshot.restore(self, stored)
        journal = Journal(job.log, job.trackers, self.history.rows) if first else Journal(None, [], [])
        bar = Bar(job.epochs, self.epoch_steps, self.state.step, show=job.progress and first)
        try:
            while self.state.epoch < job.epochs and self.state.stop is None:
                self._epoch(bar)
                journal.append(self.history.last)
            self._notify("fit_end")
        finally:
            journal.close()
            bar.close()

    def _epoch(self, bar: Bar) -> None:
        job, state = self.job, self.state
        started = time.perf_counter() - self.sums.seconds
        feed = iter(self.feed.epoch(state.epoch, self.batch))
        for group in self._groups(feed):
            numbers = self._step(group)
            self.batch += len(group)
            self.sums.seconds = time.perf_counter() - started
            bar.step(state.epoch, state.step, *numbers[:3])
            if self.feed.owned and job.checkpoint_every and state.step % job.checkpoint_every == 0:
                self._check_parameters()
                snapshot.save(self)
        self._check_parameters()
        if not self.sums.data:
            raise DataError(f"train_loader: expected at least one batch in epoch {state.epoch}, received none")
        processes.synchronise_buffers(self.fabric, job.model)
        state.row = self._row(started)
        bar.epoch(state.row)
        self._notify("epoch_end")
        if job.scheduler is not None and job.scheduler_every == "epoch":
            self._schedule(state.row)
        self.history.rows.append(files.plain(state.row))
        state.epoch, state.row, self.batch, self.sums = state.epoch + 1, None, 0, Sums()
        snapshot.save(self)

    def _groups(self, feed: Iterator[Any]) -> Iterator[list[Any]]:
        """Lists of the batches that make one step; the last of an epoch may be shorter."""
        group: list[Any] = []
        while (batch := self._next(feed)) is not None:
            group.append(batch)
            if len(group) == self.job.accumulate:
                yield group
                group = []
        if group:
            yield group

    def _next(self, feed: Iterator[Any]) -> Any:
        """The next batch, checked; None at the end."""

        def checked() -> Any:
            for batch in feed:
                guard.check_inputs(batches.split(batch)[0], f"{self._where()}: ")
                return batch
            return None

        batch, world = processes.together(self.fabric, checked), self.fabric.world_size
        if world > 1 and not self.feed.owned:
            having = int(processes.total(self.fabric, torch.tensor([float(batch is not None)])))
            if 0 < having < world:
                raise DataError(
                    f"train_loader: expected as many batches on every process, after {self.batch} of them {having} of "
                    f"{world} processes have another; have the loader yield equal shares"
                )
        return batch

    def _step(self, group: list[Any]) -> list[float]:
        """A step of the optimiser with the gradient of a group of batches; returns the terms of the loss."""
        job, state = self.job, self.state
        self.undo.mark()
        try:
            terms, numbers, count = self._gradients(group)
        except BaseException:
            self.undo.restore()
            raise
        self.optimizer.step()
        job.elbo.step = self.undo.step + 1  # however often a callback has asked for the loss
        if job.scheduler is not None and job.scheduler_every == "step":
            self._schedule(None)
        state.step += 1
        self._notify("after_step")
        self.sums.add(count, numbers, terms)
        return numbers

    def _gradients(self, group: list[Any]) -> tuple[Terms, list[float], int]:
        """Compute the gradients of a group of batches, clipped and checked to be finite.

        Batches count by their data, so that the result is the gradient of all of them in one batch, with one KL.
        Returns the terms of the ELBO, the same as numbers averaged over processes, and the number of data.
        """
        fabric, job, state = self.fabric, self.job, self.state
        parts = [batches.split(batch) for batch in group]
        sizes = [batches.size(inputs) for inputs, _ in parts]
        shares = [size / sum(sizes) for size in sizes]
        state.terms = None
        state.closure = lambda: sum(
            share * job.elbo(job.model, self._forward(inputs, targets), targets).loss
            for share, (inputs, targets) in zip(shares, (self._placed(part) for part in parts), strict=True)
        )
        self._notify("before_step")
        self.optimizer.zero_grad()
        found = []
        with self.unused.shapes():
            for number, (batch, share) in enumerate(zip(group, shares, strict=True), start=1):
                job.elbo.step = self.undo.step  # schedules of its weights count steps of the optimiser
                with fabric.no_backward_sync(self.module, enabled=number < len(group)):
                    found.append(self._backward(batch, share))
        state.terms = terms = averaged([terms for terms, _ in found], shares)
        scaler = option(fabric.strategy.precision, "scaler")
        state.scale = 1.0 if scaler is None else float(scaler.get_scale())
        self._notify("after_backward")
        norm: Any = None
        if job.clip is not None:
            norm = fabric.clip_gradients(self.module, self.optimizer, max_norm=job.clip, error_if_nonfinite=False)
        if scaler is None and (norm is None or not bool(torch.isfinite(norm))):  # a scaler skips such steps by itself
            guard.check_gradients(self.trained, self._where(), self._resume_hint())
        self.unused.gradients()
        numbers = [sum(map(operator.mul, shares, each)) for each in zip(*(n for _, n in found), strict=True)]
        return terms, numbers, sum(sizes)

    def _backward(self, batch: Any, share: float) -> tuple[Terms, list[float]]:
        """Add the gradients of a batch, times its share of the data; returns the detached terms and their numbers."""
        fabric, job = self.fabric, self.job
        inputs, targets = self._placed(batches.split(batch))
        before = rng.capture_torch(fabric.device)

        def loss() -> Terms:
            try:
                return self.module(inputs, targets)  # type: ignore[no-any-return]
            except (TypeError, ValueError, RuntimeError) as error:
                if (why := guard.batch_at_fault(job.model, batch, inputs, targets, error)) is not None:
                    raise DataError(why) from error
                raise

        terms = processes.together(self.fabric, loss)
        fabric.backward(terms.loss if share == 1 else terms.loss * share)
        # Averaged over processes, so that a NaN on one of them stops all; read only now, since it waits for the device.
        losses: Any = fabric.all_reduce(terms.numbers(), reduce_op="mean")
        numbers: list[float] = losses.tolist()
        if not all(map(math.isfinite, numbers)):
            rng.restore_torch(before, fabric.device)
            raise TrainingError(self._diagnosis(inputs, targets, terms) + self._resume_hint())
        return terms.detached(), numbers

    def _placed(self, part: Any) -> Any:
        return tuple(batches.to(each, self.fabric.device) for each in part)

    def _check_parameters(self) -> None:
        """Refuse to go on, or to write a checkpoint, with parameters that are not finite."""
        if self.finite_at_start:
            guard.check_parameters(self.trained, self._where(), self._resume_hint())

    def _where(self) -> str:
        return f"step {self.state.step} (epoch {self.state.epoch})"

    def _resume_hint(self) -> str:
        path = self.job.checkpoint
        if path is None:
            return "; with checkpoint='run.ckpt' a run can be continued from before such a step"
        return (
            f"; {str(path)!r} is from before this step, {files.previous(path).name!r} is the one before it: pass "
            "resume=True and, say, a lower lr to go on from it"
        )

    def _diagnosis(self, inputs: Any, targets: Any, terms: Terms) -> str:
        where = self._where()
        if bool(torch.isfinite(terms.numbers()).all()):
            return f"{where}: loss is not finite on another process; see its message"
        with self.fabric.autocast():
            inputs = self.fabric.strategy.precision.convert_input(inputs)
            return f"{where}: " + diagnose.explain(self.job.model, self.job.elbo, inputs, targets, terms)

    def _row(self, started: float) -> dict[str, Any]:
        sums, state = self.sums, self.state
        row = {
            "epoch": state.epoch,
            "step": state.step,
            "loss": sums.loss / sums.data,
            "nll": sums.nll / sums.data,
            "kl": sums.kl,
            "kl_weight": sums.kl_weight,
            **sums.terms(),
            "lr": float(self.job.optimizer.param_groups[0]["lr"]),
        }
        if self.val is not None:
            reduce = partial(processes.total_of, self.fabric)
            with self.job.parameters.whole():
                row |= self.validate(self.val.epoch(0), self.job.val_samples, reduce)
        return row | {"seconds": round(time.perf_counter() - started, 3)}

    def validate(
        self, data: Iterable[Any], samples: int, reduce: Callable[[Callable[[], Tensor]], Tensor] = lambda sums: sums()
    ) -> dict[str, float]:
        """The row of metrics of validation data, from ``samples`` draws of the weights."""
        job = self.job
        options: Any = {"forward": self._forward, "device": self.fabric.device, "seed": job.seed}
        return validate(job.model, job.elbo.likelihood, data, samples=samples, reduce=reduce, **options)

    def _forward(self, inputs: Any, targets: Any = None) -> Any:
        """A forward pass without DDP, whose synchronisation would wait for processes that have fewer batches."""
        return processes.in_precision(self.fabric, self.job.model, inputs, targets)

    def _notify(self, hook: str) -> None:
        """Call a hook of all callbacks; if one of the user's fails on one process, all processes raise."""
        notify(self.job.of_methods, hook, self.state)
        processes.together(self.fabric, partial(notify, self.job.own, hook, self.state))

    def _schedule(self, row: dict[str, Any] | None) -> None:
        if isinstance(self.job.scheduler, ReduceLROnPlateau):
            assert row is not None
            self.job.scheduler.step(row.get("val_nll", row["loss"]))
        else:
            self.job.scheduler.step()
