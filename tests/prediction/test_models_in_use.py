"""Models as people write and serve them: several threads, sums in place, passes that need two data, kept errors."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch._dynamo
from torch import nn

import leanbayes as lb
from leanbayes.errors import PredictionError
from leanbayes.methods.patch import norms
from leanbayes.sampling import context


def perceptron(method, seed=0, **options):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, **options), nn.ReLU(), nn.Linear(8, 3))
    lb.bayesianize_(model, method)
    return model


@pytest.mark.parametrize("strategy", ["vmap", "loop"])
@pytest.mark.parametrize("same", [True, False], ids=["one model", "two models"])
def test_threads_take_turns(strategy, same):
    models = [perceptron(lb.Patch(3), seed) for seed in (0, 0 if same else 1)]
    models = [models[0], models[0] if same else models[1]]
    x = torch.randn(6, 4)

    def ask(model):
        return lb.predict(model, x, samples=12, task="classification", strategy=strategy).probs

    alone = [ask(model) for model in models]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ask, models * 12))
    for number, said in enumerate(found):
        assert torch.equal(said, alone[number % 2])
    assert context.draws is None
    assert not context.mean_only
    assert all(model.training for model in models)
    assert torch.backends.mha.get_fastpath_enabled()


def test_threads_without_a_seed_draw_seeds_of_their_own():
    model, x = perceptron(lb.Patch(5)), torch.randn(3, 4)
    with ThreadPoolExecutor(4) as pool:
        asked = pool.map(lambda _: lb.predict(model, x, samples=1, seed=None, task="classification").probs, range(40))
    assert len({tuple(said.flatten().tolist()) for said in asked}) == 40


def test_a_loader_may_predict_in_a_thread_of_its_own():
    model, x = perceptron(lb.Patch(3)), torch.randn(6, 4)
    alone = lb.predict(model, x, samples=6, task="classification").probs

    def loader():
        with ThreadPoolExecutor(1) as pool:
            for block in x.split(2):
                pool.submit(lb.predict, model, block, 3, task="classification").result()
                yield block

    assert torch.equal(lb.predict(model, loader(), samples=6, task="classification").probs, alone)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_forked_while_a_thread_predicts_can_predict():
    model, x = perceptron(lb.Patch(3)), torch.randn(6, 4)
    with ThreadPoolExecutor(1) as pool:
        with lb.using(mean_only=True):
            waiting = pool.submit(_forked, model, x)
            time.sleep(0.2)  # the thread would fork here, if it did not wait for its turn
        assert waiting.result(timeout=30) == 0


def _forked(model, x):
    """The exit status of a child that predicts: 0 if it is in its own context and comes back."""
    torch.set_num_threads(1)
    if (child := os.fork()) == 0:
        signal.alarm(20)
        lb.predict(model, x, samples=3, strategy="loop", task="classification")
        os._exit(int(context.mean_only))
    return os.waitpid(child, 0)[1]


def test_a_context_inside_a_compiled_function():
    model, x = perceptron(lb.Patch(3)).eval(), torch.randn(6, 4)

    def at_means(x):
        with lb.using(mean_only=True):
            return model(x)

    torch._dynamo.reset()
    found = torch.compile(at_means, backend="eager", fullgraph=True)(x)
    assert torch.equal(found, at_means(x))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv, self.bn2, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 3)

    def forward(self, x):
        h = torch.relu(self.bn1(self.stem(x)))
        h += self.bn2(self.conv(h))
        return self.head(h.mean((2, 3)))


@pytest.mark.parametrize("samples", [5, 20, 32, 100])
def test_sums_in_place_of_what_samples_share_and_what_each_has(samples):
    torch.manual_seed(0)
    model, x = Residual(), torch.randn(4, 3, 8, 8)
    lb.bayesianize_(model, norms(lb.Patch(3, cross=False)))
    options = {"samples": samples, "task": "classification", "keep_samples": True}
    vectorised, loop = (lb.predict(model, x, strategy=s, **options).samples for s in ("auto", "loop"))
    torch.testing.assert_close(vectorised, loop, atol=1e-5, rtol=1e-4)


def test_an_error_that_somebody_keeps_leaves_the_model_random():
    model, x = perceptron(lb.Patch(3)), torch.randn(6, 4)
    with pytest.raises(Exception) as kept:
        lb.predict(model, x, mean_only=True, task="segmentation")
    assert kept.value.__traceback__ is not None
    assert not context.mean_only
    model.eval()
    assert not all(torch.equal(model(x), model(x)) for _ in range(5))


class Squeezed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.bn(nn.functional.adaptive_avg_pool2d(self.conv(x), 1).squeeze()))


@pytest.mark.parametrize("chunk", [None, 4, 30])
def test_models_that_cannot_run_on_one_datum(chunk):
    torch.manual_seed(0)
    model, x = Squeezed(), torch.randn(13, 3, 8, 8)
    lb.bayesianize_(model, lb.Patch(3))
    found = [
        lb.predict(model, x, samples=6, chunk=chunk, strategy=s, task="classification").probs for s in ("auto", "loop")
    ]
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("method", [lb.DropConnect(0.1), lb.Dropout(0.1), lb.Patch(3, cross=False)])
def test_no_block_is_smaller_than_batch_norm_without_statistics_needs(method):
    model = perceptron(method, track_running_stats=False)
    for count, chunk in ((257, None), (9, 4), (8, 5), (5, 1)):
        said = lb.predict(model, torch.randn(count, 4), samples=4, chunk=chunk, task="classification")
        assert said.probs.shape == (count, 3)


def test_a_models_own_fault_is_its_own_error():
    model = perceptron(lb.Patch(3))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        lb.predict(model, torch.randn(6, 5), samples=4, task="classification")
    with pytest.raises(PredictionError):
        lb.predict(model, torch.randn(6, 4), samples=0, task="classification")
