"""Concurrent requests as one batch: a queue in front of the one thread that predicts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

log = logging.getLogger("leanbayes.serve")


class Busy(Exception):
    """More is waiting than allowed, or an answer would come too late; the request may be repeated after a while."""


@dataclass(eq=False)
class Job:
    """One request: what it asks for, its data, and who waits for them until when."""

    key: Hashable
    data: Any
    size: int
    until: float
    future: asyncio.Future[Any]


class Batcher:
    """Runs ``compute(key, [data, ...]) -> [result, ...]`` in a thread, for all waiting jobs of one key together.

    A job does not wait for others while the thread is idle, beyond ``wait`` seconds: batches grow with the load, from
    what arrives while the one before is computed. The oldest job decides which key is next. Where a batch fails, its
    jobs are computed one by one, so that one request cannot fail another.

    most: the largest size of a batch, the sum of its jobs. observe: called with the size and the seconds of a batch.
    """

    def __init__(
        self,
        compute: Callable[[Any, list[Any]], Sequence[Any]],
        *,
        most: int,
        wait: float = 0.0,
        observe: Callable[[int, float], None] = lambda size, seconds: None,
    ) -> None:
        self.compute, self.most, self.wait, self.observe = compute, most, wait, observe
        self.waiting: list[Job] = []
        self.changed = threading.Condition()
        self.closed = False
        self.thread = threading.Thread(target=self._run, name="leanbayes-model", daemon=True)
        self.thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether somebody computes."""
        return self.thread.is_alive() and not self.closed

    async def ask(self, key: Hashable, data: Any, size: int, seconds: float) -> Any:
        """The result for these data; `Busy` where there is none after so many seconds."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        job = Job(key, data, size, time.monotonic() + seconds, future)
        with self.changed:
            if self.closed:
                raise Busy("the server is stopping")
            self.waiting.append(job)
            self.changed.notify()
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            raise Busy(f"no answer within {1000 * seconds:g} ms; ask for fewer samples, or more time") from None

    def close(self) -> None:
        """Compute what is waiting, and end."""
        with self.changed:
            self.closed = True
            self.changed.notify()
        self.thread.join()

    def _run(self) -> None:
        while (jobs := self._next()) is not None:
            if jobs:
                start = time.perf_counter()
                self._answer(jobs)
                self.observe(sum(job.size for job in jobs), time.perf_counter() - start)

    def _next(self) -> list[Job] | None:
        """The jobs to compute now: perhaps none, since some gave up; None at the end."""
        with self.changed:
            self.changed.wait_for(lambda: self.waiting or self.closed)
            if not self.waiting:
                return None
            enough = lambda: sum(job.size for job in self.waiting) >= self.most or self.closed  # noqa: E731
            if self.wait:
                self.changed.wait_for(enough, self.wait)
            now, size = time.monotonic(), 0
            taken: list[Job] = []
            left: list[Job] = []
            for job in self.waiting:
                if job.until < now or job.future.done():
                    continue
                fits = not taken or (job.key == taken[0].key and size + job.size <= self.most)
                (taken if fits else left).append(job)
                size += job.size if fits else 0
            self.waiting = left
            return taken

    def _answer(self, jobs: list[Job]) -> None:
        try:
            results = list(self.compute(jobs[0].key, [job.data for job in jobs]))
        except Exception as error:  # a network may raise anything
            if len(jobs) > 1:
                for job in jobs:
                    self._answer([job])
                return
            log.exception("a prediction failed")
            results = [error]
        self._deliver(jobs, results)

    def _deliver(self, jobs: list[Job], results: list[Any]) -> None:
        """Wake the event loop once for all of them."""

        def deliver() -> None:
            for job, result in zip(jobs, results, strict=True):
                if job.future.done():  # it gave up
                    continue
                if isinstance(result, Exception):
                    job.future.set_exception(result)
                else:
                    job.future.set_result(result)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            jobs[0].future.get_loop().call_soon_threadsafe(deliver)
