"""Threads and tasks: what belongs to the process is never left changed, and training beside predicting is refused."""

import asyncio
import threading

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import sampling
from leanbayes.errors import PredictionError, TrainingError


def make(method=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    lb.bayesianize_(model, method or lb.MeanField())
    return model, torch.randn(6, 4)


def settings():
    context = sampling.context
    return context.estimator, context.mean_only, context.draws


def in_thread(work):
    """What a function returns, or the error it raises, in another thread."""
    found = []

    def run():
        try:
            found.append(work())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    return found[0]


def test_a_block_across_an_await_is_refused_and_leaves_nothing_behind():
    seen = []

    async def holds(first):
        with lb.using(mean_only=True):
            if first:
                await asyncio.sleep(0)
            await asyncio.sleep(0.01 if first else 0.02)

    async def looks():
        await asyncio.sleep(0.001)
        seen.append(settings())

    async def main():
        return await asyncio.gather(holds(True), holds(False), looks(), return_exceptions=True)

    first, second, _ = asyncio.run(main())
    for error in (first, second):
        assert isinstance(error, PredictionError)
        assert "without await" in str(error)
    assert seen == [(None, False, None)]
    assert settings() == (None, False, None)
    assert in_thread(settings) == (None, False, None)  # the lock is free


def test_nested_blocks_across_an_await_end_together():
    async def main():
        with lb.using(estimator="weight"), lb.using(mean_only=True):
            await asyncio.sleep(0)
            return settings()

    with pytest.raises(PredictionError, match="without await"):
        asyncio.run(main())
    assert settings() == (None, False, None)


def test_an_error_of_a_block_that_awaits_is_not_hidden():
    async def main():
        with lb.using(mean_only=True):
            await asyncio.sleep(0)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(main())
    assert settings() == (None, False, None)


def test_blocks_and_predictions_of_tasks_that_do_not_await_inside_are_fine():
    model, x = make()
    expected = lb.predict(model, x, samples=4, task="classification").probs

    async def asks():
        for _ in range(3):
            with lb.using(mean_only=True):
                assert torch.equal(model(x), model(x))
                assert torch.equal(lb.predict(model, x, samples=4, task="classification").probs, expected)
            await asyncio.sleep(0)
        with lb.using(estimator="weight"):
            return settings()

    async def main():
        return await asyncio.gather(*(asks() for _ in range(3)))

    assert asyncio.run(main()) == [("weight", False, None)] * 3
    with lb.using(mean_only=True):  # held by code that is not a task, around a whole event loop
        asyncio.run(main())
        assert settings() == (None, True, None)


def test_a_thread_awaited_inside_a_block_does_not_wait_for_ever():
    model, x = make()

    async def main():
        with lb.using(mean_only=True):
            await asyncio.wait_for(asyncio.to_thread(lb.predict, model, x, 2, task="classification"), 20)

    with pytest.raises(PredictionError, match="without await"):
        asyncio.run(main())


def test_predicting_beside_fit_is_refused():
    model, x = make()
    other, _ = make()
    found = []

    class Ask(lb.Callback):
        def after_step(self, state):
            if not found:
                found.append(in_thread(lambda: lb.predict(other, x, samples=2, task="classification")))
                found.append(in_thread(lambda: lb.fit(other, (x, y), epochs=1, progress=False)))
                found.append(lb.predict(model, x, samples=2, task="classification"))  # in the same thread

    y = torch.randint(3, (6,))
    lb.fit(model, (x, y), epochs=1, callbacks=[Ask()], progress=False)
    assert isinstance(found[0], PredictionError)
    assert "no training in another thread" in str(found[0])
    assert isinstance(found[1], TrainingError)
    assert isinstance(found[2], lb.Predictive)
    assert isinstance(in_thread(lambda: lb.predict(other, x, samples=2, task="classification")), lb.Predictive)


def test_predicting_is_allowed_again_after_a_fit_that_failed():
    model, x = make()
    with pytest.raises(lb.LeanBayesError):
        lb.fit(model, (x, torch.full((6,), 9)), epochs=1, progress=False)
    assert isinstance(in_thread(lambda: lb.predict(model, x, samples=2, task="classification")), lb.Predictive)


@pytest.mark.parametrize(
    "method", [lb.MeanField(), lb.Dropout(0.5), lb.StructuredPruning(), lb.Ensemble(2), lb.SparseSubspace(0.5)]
)
def test_a_training_step_beside_a_prediction_is_refused(method):
    model, x = make(method)
    found = []

    def train(of):
        return lambda: of(x).sum().backward()

    other, _ = make(method)

    def hook(module, args, output):
        if not found and threading.current_thread() is threading.main_thread():
            found.extend(in_thread(train(net)) for net in (model, other))
            other.eval()
            found.append(in_thread(train(other)))  # not in training: gradients of an attack, say

    model[1].register_forward_hook(hook)
    lb.predict(model, x, samples=2, task="classification")
    assert [type(each) for each in found] == [TrainingError, TrainingError, type(None)]
    assert "no prediction in another thread" in str(found[0])
    model[1]._forward_hooks.clear()
    train(model)()
