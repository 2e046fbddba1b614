"""Running a server: one process, or several behind one port that are replaced when they die."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from ..errors import ConfigError
from ..optional import require
from .config import Settings
from .metrics import Metrics
from .predictor import Predictor

log = logging.getLogger("leanbayes.serve")
BROKEN = 3
"""The exit code of a worker that could not start: another one would not either."""

PAUSE = 0.0005
"""Seconds between connections that a worker takes: the others wake up meanwhile, and take theirs."""

Opener = Callable[[], Predictor]
"""Reads the model; a function of a module, or a `functools.partial` of one, which another process can import."""


def check_packages() -> None:
    """Refuse to begin where the packages of the extra are missing."""
    require("starlette", "serve", "leanbayes serve")
    require("uvicorn", "serve", "leanbayes serve")


def run(opener: Opener, settings: Settings, host: str, port: int, workers: int = 1, threads: int = 0) -> None:
    """Serve until SIGTERM or SIGINT; requests under way are answered first.

    threads: of torch in each worker; 0 shares the processors out. Several workers take connections from one socket, so
    that those which nobody has taken yet outlive a worker that dies.
    """
    check_packages()
    threads = threads or max(1, (os.cpu_count() or 1) // workers)
    if workers > 1 and sys.platform == "win32":
        raise ConfigError("--workers: expected 1 on this system, which cannot share a port; run several on other ports")
    with _bound(host, port) as listening, tempfile.TemporaryDirectory(prefix="leanbayes-serve-") as folder:
        predictor = opener()  # also where workers will read it themselves: what is wrong with a model shows here
        path = Path(folder, "metrics")
        Metrics.create(path, workers)
        if not predictor.card.together:
            print("the network looks at the whole batch: requests are predicted one by one", file=sys.stderr)
        if workers == 1:
            _serve(predictor, settings, _Listening(listening), threads, Metrics(path))
            return
        del predictor
        supervisor = _Supervisor(
            lambda number: (opener, settings, listening, threads, path, number, workers), workers, listening
        )
        supervisor.run()


class _Supervisor:
    """Starts workers, replaces those that die, and ends all of them when it is told to."""

    def __init__(self, arguments: Callable[[int], tuple[Any, ...]], workers: int, listening: socket.socket) -> None:
        self.arguments, self.workers, self.listening = arguments, workers, listening
        self.stopping = threading.Event()
        self.spawn = multiprocessing.get_context("spawn")  # threads of torch do not survive a fork

    def run(self) -> None:
        """Until a signal comes, or a worker cannot start."""
        for kind in (signal.SIGTERM, signal.SIGINT):
            signal.signal(kind, lambda *_: self.stopping.set())
        workers = [self._started(number) for number in range(self.workers)]
        broken = False
        while not self.stopping.is_set() and not broken:
            connection.wait([worker.sentinel for worker in workers], timeout=0.2)
            for number, worker in enumerate(workers):
                if worker.is_alive() or self.stopping.is_set():
                    continue
                broken = broken or worker.exitcode == BROKEN
                if not broken:
                    log.warning("worker %s ended with code %s and is replaced", worker.pid, worker.exitcode)
                    time.sleep(0.2)  # one that dies at once must not keep a processor busy
                    workers[number] = self._started(number)
        self.listening.close()  # nobody listens once the workers have closed theirs
        for worker in workers:
            worker.terminate()  # SIGTERM: it answers what is under way
        for worker in workers:
            worker.join()
        if broken:
            raise ConfigError("serve: expected workers that start, one could not; the lines above say why")

    def _started(self, number: int) -> SpawnProcess:
        worker = self.spawn.Process(target=_work, args=self.arguments(number), daemon=True)
        worker.start()
        return worker


def _work(
    opener: Opener, settings: Settings, listening: socket.socket, threads: int, path: Path, number: int, workers: int
) -> None:
    """A worker: it listens once the model is read."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        predictor = opener()
        metrics = Metrics(path, number, workers)
        shared = _Listening(listening, PAUSE)
    except Exception as error:
        print(f"leanbayes: {error}", file=sys.stderr)
        sys.exit(BROKEN)
    _serve(predictor, settings, shared, threads, metrics)


def _end_with_parent() -> None:
    """Workers whose supervisor was killed would hold the port for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _serve(predictor: Predictor, settings: Settings, listening: _Listening, threads: int, metrics: Metrics) -> None:
    import uvicorn

    from .app import make_app

    torch.set_num_threads(threads)
    config = uvicorn.Config(
        make_app(predictor, settings, metrics),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(settings.drain)),
        lifespan="on",
        loop="asyncio",  # uvloop takes all connections that wait at once
        backlog=1,  # connections that asyncio takes at once: workers are to share them out
    )
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn takes them, and raises them again when it has ended
        signal.signal(number, signal.SIG_IGN)
    with listening:
        if not metrics.value("worker_starts_total"):  # the first of all workers
            said = f"serving on {listening.url} (documentation at /docs); Ctrl-C stops"
            print(said, file=sys.stderr, flush=True)
        uvicorn.Server(config).run([listening])


def _bound(host: str, port: int) -> socket.socket:
    """A socket with this address that does not listen yet; port 0 finds a free one."""
    try:
        found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        if sys.platform != "win32":
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--host, --port: expected an address that is free, {host}:{port} is not ({error})") from None
    return found


class _Listening(socket.socket):
    """A bound socket, now listening; 2048 connections may wait, whatever backlog asyncio asks for.

    pause: seconds after each connection that is taken, where other processes listen too: one that is awake would take
    all that come at once.
    """

    def __init__(self, bound: socket.socket, pause: float = 0.0) -> None:
        super().__init__(fileno=bound.detach())
        self.pause = pause
        try:
            self.listen()
        except OSError as error:  # another server had the address too, and was quicker
            raise ConfigError(f"--port: expected an address that is free, {self.url} is not ({error})") from None

    def listen(self, backlog: int = 2048, /) -> None:
        """Connections may wait from now on."""
        super().listen(2048)

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection and its address."""
        found = super().accept()
        time.sleep(self.pause)
        return found

    @property
    def url(self) -> str:
        """The address, as a browser takes it."""
        host, port = self.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
