"""Models that draw random numbers by themselves: a seed repeats them, and samples differ."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from leanbayes.errors import LeanBayesWarning


class Noisy(nn.Module):
    """Noise from torch's generator between two layers: "dropout" per datum, "shift" shared by the batch."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.first, self.last = kind, nn.Linear(4, 16), nn.Linear(16, 3)

    def forward(self, x):
        h = self.first(x).relu()
        h = F.dropout(h, 0.5, training=True) if self.kind == "dropout" else h + torch.randn(16)
        return self.last(h)


def make(kind, method=None):
    torch.manual_seed(0)
    model = Noisy(kind)
    if method is not None:
        lb.bayesianize_(model, {"last": method})
    return model, torch.randn(40, 4)


OPTIONS = {"samples": 12, "task": "classification", "keep_samples": True}


@pytest.mark.filterwarnings("ignore:the deterministic prefix")
@pytest.mark.parametrize("strategy", ["auto", "loop"])
@pytest.mark.parametrize("method", [None, lb.MeanField(std=0.1), lb.Dropout(0.2)])
@pytest.mark.parametrize("kind", ["dropout", "shift"])
def test_a_seed_repeats_and_another_does_not(kind, method, strategy):
    model, x = make(kind, method)
    before = torch.get_rng_state()
    first = lb.predict(model, x, seed=3, strategy=strategy, **OPTIONS)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    again = lb.predict(model, x, seed=3, strategy=strategy, **OPTIONS)
    assert torch.equal(first.samples, again.samples)
    assert not torch.equal(first.samples, lb.predict(model, x, seed=4, strategy=strategy, **OPTIONS).samples)


@pytest.mark.filterwarnings("ignore:the deterministic prefix")
@pytest.mark.parametrize("method", [None, lb.MeanField(std=0.1)])
def test_noise_shared_by_the_batch_does_not_depend_on_the_chunk(method):
    model, x = make("shift", method)
    whole = lb.predict(model, x, **OPTIONS).samples
    for chunk in (7, 24, 1000):
        assert torch.allclose(lb.predict(model, x, chunk=chunk, **OPTIONS).samples, whole, atol=1e-6)


@pytest.mark.parametrize("kind", ["dropout", "shift"])
def test_a_plain_model_that_draws_takes_all_samples(kind):
    model, x = make(kind)
    said = lb.predict(model, x, **OPTIONS)
    assert said.samples.shape == (12, 40, 3)
    assert said.engine == "loop"
    assert len({tuple(row.flatten().tolist()) for row in said.samples}) == 12
    plain = lb.predict(nn.Linear(4, 3), x, **OPTIONS)
    assert plain.samples.shape == (1, 40, 3)
    assert plain.engine == "deterministic"


def test_the_means_repeat_with_the_seed():
    model, x = make("dropout", lb.MeanField())
    first = lb.predict(model, x, mean_only=True, task="classification", seed=2)
    torch.rand(7)
    assert torch.equal(first.probs, lb.predict(model, x, mean_only=True, task="classification", seed=2).probs)


def test_a_vectorised_pass_is_refused_aloud():
    model, x = make("shift", lb.MeanField())
    with pytest.warns(LeanBayesWarning, match="draws random numbers of its own"):
        said = lb.predict(model, x, strategy="vmap", **OPTIONS)
    assert said.engine == "loop"


def test_a_temperature_repeats():
    model, x = make("dropout")
    y = model.last(model.first(x).relu()).argmax(1)
    options = {"task": "classification", "samples": 4, "seed": 1, "progress": False}
    first = lb.calibrate_(model, (x, y), **options)
    torch.rand(7)
    assert lb.calibrate_(model, (x, y), **options) == first


def test_the_first_sample_is_not_special():
    """The samples of a plain model are alike in distribution: the first differs from the others as they do."""
    model, _ = make("shift")
    said = lb.predict(model, torch.zeros(1, 4), samples=64, task="classification", keep_samples=True).samples[:, 0]
    spread = (said - said.mean(0)).norm(dim=1)
    assert spread[0] < spread.mean() + 4 * spread.std()
