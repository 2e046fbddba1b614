"""What `predict` is given: batches of every form, tasks, and arguments that it refuses."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes.errors import DataError, PredictionError
from leanbayes.likelihoods import Custom, Regression

from .networks import close, mlp


class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, a, b=None, scale=1.0):
        return {"logits": self.fc(a + (0 if b is None else b)) * scale}


def test_mappings_tuples_and_loaders_of_them():
    model, a, b = Keywords(), torch.randn(5, 4), torch.randn(5, 4)
    lb.bayesianize_(model, lb.MeanField(std=0.3))
    kw = {"samples": 4, "task": "classification", "chunk": 2}
    reference = lb.predict(model, {"a": a, "b": b}, **kw)
    assert close(reference, lb.predict(model, (a, b), **kw))
    assert close(reference, lb.predict(model, [a, b], **kw))
    assert close(reference, lb.predict(model, {"b": b, "a": a, "scale": 1.0}, **kw))
    labelled = [{"a": a[:3], "b": b[:3], "labels": torch.zeros(3)}, {"a": a[3:], "b": b[3:], "labels": torch.zeros(2)}]
    assert close(reference, lb.predict(model, iter(labelled), **kw))
    assert close(reference, lb.predict(model, DataLoader(TensorDataset(a, b, a), batch_size=2), **kw))


def test_the_task_comes_from_the_fit_or_has_to_be_said():
    from leanbayes.convert.record import ensure

    model, x = mlp(outputs=2), torch.randn(3, 4)
    with pytest.raises(PredictionError, match="task"):
        lb.predict(model, x)
    ensure(model).likelihood = Regression("heteroscedastic").to_dict()
    assert lb.predict(model, x, samples=2).mean.shape == (3, 1)
    assert lb.predict(model, x, samples=2, task="classification").probs.shape == (3, 2)


def test_likelihoods_of_your_own():
    model, x = mlp(outputs=2), torch.randn(3, 4)

    def log_likelihood(outputs, targets):
        return -outputs.sum(1)

    raw = lb.predict(model, x, samples=4, task=log_likelihood, keep_samples=True)
    assert raw.task == "custom"
    assert torch.allclose(raw.mean, raw.samples.mean(0), atol=1e-6)
    with pytest.raises(PredictionError, match="custom"):
        raw.entropy
    with pytest.raises(PredictionError, match="custom"):
        raw.log_prob(torch.zeros(3))
    classes = lb.predict(model, x, samples=4, task=Custom(log_likelihood, probs=lambda f: f.softmax(-1)))
    assert close(classes, lb.predict(model, x, samples=4, task="classification"))
    assert classes.labels.shape == (3,)
    numbers = Custom(log_likelihood, mean_and_noise=lambda f: (f, torch.ones_like(f)))
    assert close(lb.predict(model, x, samples=4, task=numbers), lb.predict(model, x, samples=4, task="regression"))


BAD = {
    "samples: expected": {"samples": 0},
    "samples: expected a whole number of at least 1, received True": {"samples": True},
    "samples: expected a whole number of at least 1, received 2.5": {"samples": 2.5},
    "chunk: expected": {"chunk": -1},
    "seed: expected a whole number of 64 bits, received '0'": {"seed": "0"},
    "settle: expected a finite number above 0, received 0": {"settle": 0},
    "settle: expected a finite number above 0, received 'soon'": {"settle": "soon"},
    "settle: expected a finite number above 0, received nan": {"settle": math.nan},
    "strategy: expected one of 'auto', 'vmap', 'loop', received 'fast'": {"strategy": "fast"},
    "estimator: expected one of 'local', 'weight', 'flipout', 'moments', received 'mean'": {"estimator": "mean"},
    "task: expected": {"task": "clustering"},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_arguments_are_refused(message):
    with pytest.raises(lb.LeanBayesError, match=message):
        lb.predict(mlp(), torch.ones(2, 4), **{"task": "classification", **BAD[message]})


@pytest.mark.parametrize("inputs", [None, 3, "x", [], (), {}, [1, 2], {"a": 1}, iter([]), torch.tensor(1.0)])
def test_bad_inputs_are_refused(inputs):
    with pytest.raises(DataError, match="expected"):
        lb.predict(mlp(), inputs, task="classification")


def test_outputs_that_do_not_fit_the_task_are_refused():
    x = torch.ones(2, 4)
    with pytest.raises(PredictionError, match=r"expected an nn.Module"):
        lb.predict(lambda x: x, x, task="classification")
    with pytest.raises(DataError, match="at least one datum"):
        lb.predict(mlp(), x[:0], task="classification")
    with pytest.raises(PredictionError, match="the first dimension must be the batch"):
        lb.predict(nn.Sequential(mlp(), nn.Flatten(0)), x, task="regression")
    flat = nn.Sequential(mlp(outputs=1), nn.Flatten(0))
    with pytest.raises(PredictionError, match=r"expected outputs of shape \(batch, classes\), received \(2,\)"):
        lb.predict(flat, x, task="classification")
    with pytest.raises(PredictionError, match=r"expected outputs of shape \(batch, classes, ...\)"):
        lb.predict(mlp(), x, task="segmentation")
    with pytest.raises(DataError, match="expected the model to return a tensor"):
        lb.predict(type("Odd", (nn.Module,), {"forward": lambda self, x: "text"})(), x, task="classification")
