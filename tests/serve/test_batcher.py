"""Concurrent jobs are computed together, within limits, and none of them harms another."""

import asyncio
import threading
import time

import pytest

from leanbayes.serve.batcher import Batcher, Busy


class Model:
    """Doubles numbers, and remembers the batches; it waits for ``go``, so that others can come meanwhile."""

    def __init__(self):
        self.batches, self.go, self.begun = [], threading.Event(), threading.Event()

    def __call__(self, key, parts):
        self.begun.set()
        assert self.go.wait(10)
        self.batches.append((key, list(parts)))
        if any(part == "bad" for part in parts):
            raise ValueError("a bad datum")
        return [2 * part for part in parts]


def run(scenario, most=8, wait=0.0):
    """What a scenario(batcher, model) returns, with the batches that were computed."""
    model = Model()
    batcher = Batcher(model, most=most, wait=wait)
    try:
        return asyncio.run(scenario(batcher, model)), model.batches
    finally:
        model.go.set()
        batcher.close()


async def while_busy(batcher, model, jobs, seconds=10):
    """The results of jobs that all come while the model computes another one."""
    first = asyncio.create_task(batcher.ask("first", 0, 1, 10))
    while not model.begun.is_set():
        await asyncio.sleep(0.001)
    tasks = [asyncio.create_task(batcher.ask(key, data, size, seconds)) for key, data, size in jobs]
    await asyncio.sleep(0.01)
    model.go.set()
    return await asyncio.gather(first, *tasks, return_exceptions=True)


def test_what_comes_while_the_model_is_busy_is_one_batch():
    found, batches = run(lambda b, m: while_busy(b, m, [("a", n, 1) for n in range(1, 6)]))
    assert found == [0, 2, 4, 6, 8, 10]
    assert batches == [("first", [0]), ("a", [1, 2, 3, 4, 5])]


def test_batches_have_one_key_and_at_most_so_much():
    jobs = [("a", 1, 3), ("b", 2, 1), ("a", 3, 3), ("a", 4, 1), ("b", 5, 1), ("a", 6, 9)]
    found, batches = run(lambda b, m: while_busy(b, m, jobs), most=4)
    assert found == [0, 2, 4, 6, 8, 10, 12]
    # the oldest decides; a job larger than a batch is computed by itself
    assert batches == [("first", [0]), ("a", [1, 4]), ("b", [2, 5]), ("a", [3]), ("a", [6])]


def test_a_job_that_fails_does_not_fail_its_neighbours(caplog):
    found, batches = run(lambda b, m: while_busy(b, m, [("a", 1, 1), ("a", "bad", 1), ("a", 3, 1)]))
    assert [found[1], found[3]] == [2, 6]
    assert isinstance(found[2], ValueError)
    assert batches[1:] == [("a", [1, "bad", 3]), ("a", [1]), ("a", ["bad"]), ("a", [3])]


def test_what_is_too_late_is_refused_and_not_computed():
    async def scenario(batcher, model):
        first = asyncio.create_task(batcher.ask("first", 0, 1, 10))
        while not model.begun.is_set():
            await asyncio.sleep(0.001)
        with pytest.raises(Busy, match="no answer within 20 ms"):
            await batcher.ask("a", 1, 1, 0.02)
        model.go.set()
        await first
        return await batcher.ask("a", 2, 1, 10)

    assert run(scenario) == (4, [("first", [0]), ("a", [2])])


def test_a_lone_job_waits_no_longer_than_asked_and_a_full_batch_not_at_all():
    async def scenario(batcher, model):
        model.go.set()
        start = time.monotonic()
        await asyncio.gather(*(batcher.ask("a", n, 1, 10) for n in range(3)))
        return time.monotonic() - start

    seconds, batches = run(scenario, most=3, wait=30.0)
    assert seconds < 10
    assert batches == [("a", [0, 1, 2])]


def test_closing_computes_what_is_waiting_and_refuses_the_rest():
    async def scenario(batcher, model):
        tasks = [asyncio.create_task(batcher.ask("a", n, 1, 10)) for n in range(4)]
        await asyncio.sleep(0.01)
        closing = asyncio.get_running_loop().run_in_executor(None, batcher.close)
        while not batcher.closed:
            await asyncio.sleep(0.001)
        with pytest.raises(Busy, match="stopping"):
            await batcher.ask("a", 9, 1, 10)
        model.go.set()
        await closing
        return await asyncio.gather(*tasks)

    found, _ = run(scenario)
    assert found == [0, 2, 4, 6]


def test_sizes_and_times_of_batches_are_observed():
    seen = []
    batcher = Batcher(lambda key, parts: parts, most=8, observe=lambda size, seconds: seen.append((size, seconds)))
    asyncio.run(batcher.ask("a", 1, 5, 10))
    batcher.close()
    assert [size for size, _ in seen] == [5]
    assert 0 <= seen[0][1] < 10
