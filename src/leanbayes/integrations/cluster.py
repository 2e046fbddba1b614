"""Work on a Ray cluster: connecting to one, blocks of data through Ray Data, and tasks that survive a lost worker."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .. import checks
from ..errors import ConfigError, PredictionError
from ..optional import require

SECONDS = 5.0
"""How long the address of a cluster may take to answer."""


@contextlib.contextmanager
def connected(address: str | None, purpose: str) -> Iterator[Any]:
    """Yield the package ray, connected: to the cluster at an address, or to one that is started on this machine.

    A connection that is there already is used and left open.
    """
    ray = require("ray", "cluster", purpose)
    if ray.is_initialized():
        yield ray
        return
    if address is not None and address not in ("auto", "local"):
        _check_answers(address)
    options: dict[str, Any] = {} if address not in (None, "local") else {"include_dashboard": False}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"address: expected a Ray cluster at {address!r}, received: {str(error)[:300]}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_answers(address: Any) -> None:
    """Ray itself tries for minutes."""
    checks.instance("address", address, str, "host:port, ray://host:port or auto")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"address: expected host:port, ray://host:port or auto, received {checks.short(address)}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS).close()
    except OSError as error:
        raise ConfigError(
            f"address: expected a Ray cluster at {address}, which does not answer ({error}); 'ray start --head' prints "
            "the address of one, and without --address one is started here"
        ) from error


class _Actor:
    """Lives in a worker and holds what `make` returns, a function of a block; made once."""

    def __init__(self, make: Callable[[], Callable[[Any], Any]], blocks: Sequence[Any], threads: int) -> None:
        torch.set_num_threads(threads)  # as where the work was asked for: the order of sums depends on it
        self.work, self.blocks = make(), blocks

    def __call__(self, batch: dict[str, Any]) -> Any:
        return self.work(self.blocks[int(batch["id"][0])])


def map_blocks(
    ray: Any, make: Callable[[], Callable[[Any], Any]], blocks: Sequence[Any], workers: int | None = None
) -> Iterator[Any]:
    """The Arrow table that ``make()(block)`` returns for every block, in their order, computed by actors of Ray Data.

    Each actor calls `make` once. What a lost worker or node had not delivered is computed again. workers: how many
    actors; as many as the cluster has processors if None.
    """
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    most = max(1, min(len(blocks), workers or int(ray.cluster_resources().get("CPU", 1))))
    items = [{"id": number} for number in range(len(blocks))]
    answers = ray.data.from_items(items, override_num_blocks=len(blocks)).map_batches(
        _Actor,
        fn_constructor_args=(make, list(blocks), torch.get_num_threads()),
        batch_size=1,
        concurrency=most,
        # Next to nothing is reserved, so that the actor of a node that is lost finds room on another at once.
        num_cpus=0.01,
        scheduling_strategy="SPREAD",
    )
    try:
        yield from answers.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
    except ray.exceptions.RayTaskError as error:
        raise _cause(error) from error
    except ray.exceptions.RayActorError as error:  # `make` failed: a file that the worker does not see, a package
        raise PredictionError(f"a worker of the cluster could not start: {str(error)[-400:]}") from error


def run_tasks(
    ray: Any, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[int, Any]]:
    """The number and the result of every call ``function(*arguments[number])``, as they finish.

    A call whose worker or node is lost runs again, on another; one that raises ends it all with its error.
    """
    task = ray.remote(max_retries=-1, num_cpus=1)(_in_worker)
    waiting = {task.remote(torch.get_num_threads(), function, given): at for at, given in enumerate(arguments)}
    try:
        while waiting:
            done, _ = ray.wait(list(waiting), num_returns=1)
            yield waiting.pop(done[0]), ray.get(done[0])
    except ray.exceptions.RayTaskError as error:
        raise _cause(error) from error
    finally:
        for left in waiting:
            ray.cancel(left, force=True)


def _in_worker(threads: int, function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    torch.set_num_threads(threads)
    return function(*given)


def _cause(error: Any) -> Exception:
    """The error that was raised in the worker, under Ray's wrapping."""
    inner: Exception = error.cause
    while type(inner).__module__.partition(".")[0] == "ray" and isinstance(inner.__cause__, Exception):
        inner = inner.__cause__
    return inner
