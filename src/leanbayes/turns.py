"""Which thread may change global state: the sampling context, the modes of a model, torch's random state.

Threads that predict take turns. Training does not wait for them, nor they for it: one beside the other is refused.
A turn is not held across an await of asyncio, where other tasks of the thread would find it changed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .errors import PredictionError, TrainingError
from .walk import modules

lock = threading.RLock()
_turns: list[Turn] = []  # of the thread that holds the lock, innermost last
_trainer: int | None = None  # the thread that runs `fit`
_watched: weakref.ref[Any] | None = None  # the event loop that will call `_task_has_stopped`


class Turn:
    """Holds the lock for a block, such as a prediction, and calls its ``undo`` when it ends.

    model: given by a block that changes the modes of this model.
    """

    undo: Callable[[], None] | None = None
    thread: int = 0
    task: Any = None
    interrupted: bool = False
    trained: frozenset[int] = frozenset()

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model = model

    def __enter__(self) -> None:
        lock.acquire()
        self.thread = threading.get_ident()
        if _trainer not in (None, self.thread):
            lock.release()
            raise PredictionError(
                "expected no training in another thread: it would see the modes, noise and random state of this "
                "prediction; predict after `fit` has ended, in one of its callbacks, or in another process"
            )
        if (asyncio := sys.modules.get("asyncio")) is not None and asyncio._get_running_loop() is not None:
            self.task = asyncio.current_task()
        while _turns and _turns[-1].task not in (None, self.task):  # of a task that awaits something
            _turns[-1]._end(interrupted=True)
        if self.model is not None:
            self.trained = frozenset(id(module) for module in modules(self.model) if module.training)
        _turns.append(self)
        if self.task is not None:
            _watch_loop()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if not self.interrupted:
            self._end()
        elif kind is None:
            raise PredictionError(
                "using: expected a block without await, received one that awaits: other tasks would run with its "
                "settings, so they ended there; await before or after the block"
            )

    def _end(self, interrupted: bool = False) -> None:
        self.interrupted = interrupted
        _turns.remove(self)
        try:
            if self.undo is not None:
                self.undo()
        finally:
            lock.release()


@contextlib.contextmanager
def training() -> Iterator[None]:
    """Mark this thread as the one that trains; refused if another one does. Running predictions may end."""
    global _trainer
    with lock:
        before, me = _trainer, threading.get_ident()
        if before not in (None, me):
            raise TrainingError(
                "expected no training in another thread: both would draw from one random state; train one model after "
                "the other, or in processes of their own"
            )
        _trainer = me
    try:
        yield
    finally:
        _trainer = before


def check_forward(module: nn.Module) -> None:
    """Refuse a pass with gradients through a module in training while another thread predicts."""
    if torch.compiler.is_compiling() or not _turns or not torch.is_grad_enabled():
        return
    for turn in list(_turns):
        others = turn.model is not None and turn.thread != threading.get_ident()
        trained = module.training or id(module) in turn.trained  # the prediction has switched its own model to eval
        if others and trained and torch._C._current_graph_task_id() == -1:  # backward passes have threads of their own
            raise TrainingError(
                "expected no prediction in another thread during a training step: it changes modes, noise and torch's "
                "random state; train in a process of its own, or hold one lock of your own around both"
            )


def _watch_loop() -> None:
    """Have the event loop of this thread call `_task_has_stopped` once the present task lets it."""
    global _watched
    loop = sys.modules["asyncio"]._get_running_loop()
    if _watched is None or _watched() is not loop:
        _watched = weakref.ref(loop)
        loop.call_soon(_task_has_stopped)


def _task_has_stopped() -> None:
    """Called by the event loop, so no task of this thread runs: what they hold is held across an await."""
    global _watched
    _watched = None
    for turn in reversed(_turns.copy()):
        if turn.thread != threading.get_ident() or turn.task is None:
            break
        turn._end(interrupted=True)


def _forget_other_threads() -> None:
    global _trainer
    _trainer = None
    lock.release()


if sys.platform != "win32":  # a child must not inherit another thread's turn
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=_forget_other_threads)
