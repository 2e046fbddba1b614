"""Every verb takes every kind of data, and says the same of all of them."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import leanbayes as lb
from leanbayes.errors import DataError, EvaluationError
from leanbayes.methods.variance.transition import accuracies
from leanbayes.prediction.stacking import fit_weights

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long()
KNOWN = 2 * X.flip(1), Y
"""What `ood` tells the data from: other values, since of ties rounding would decide."""


class Items(Dataset):
    """A data set that is no TensorDataset."""

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index], Y[index]


class Batches(IterableDataset):
    def __iter__(self):
        return iter([(X[:25], Y[:25]), (X[25:], Y[25:])])


KINDS = {
    "loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=16),
    "dataset": lambda: TensorDataset(X, Y),
    "items": Items,
    "iterable dataset": Batches,
    "list": lambda: [(X[:25], Y[:25]), (X[25:], Y[25:])],
    "list of lists": lambda: [[X[:25], Y[:25]], [X[25:], Y[25:]]],
    "list of mappings": lambda: [{"input": X[:25], "labels": Y[:25]}, {"input": X[25:], "labels": Y[25:]}],
    "list of arrays": lambda: [(X[:25].numpy(), Y[:25].numpy()), (X[25:].numpy(), Y[25:].numpy())],
    "tuple": lambda: (X, Y),
    "arrays": lambda: (X.double().numpy(), Y.numpy()),
    "mapping": lambda: {"input": X, "labels": Y},
    "mapping of arrays": lambda: {"input": X.double().numpy(), "labels": Y.numpy()},
    "generator": lambda: (batch for batch in [(X[:25], Y[:25]), (X[25:], Y[25:])]),
}


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    lb.bayesianize_(model, lb.MeanField(std=0.01))
    return model


def fit(data):
    model = make()
    lb.fit(model, data, val=data, epochs=1, batch_size=40, num_data=40, progress=False)
    return model[3].posteriors["weight"].mean


def recalibrate(data):
    model = make()
    lb.recalibrate_(model, data, at="means")
    return model[1].running_mean


def tune(data):
    return lb.tune_noise_(make(), data, task="classification", samples=2).tried[0].nll


QUIET = {"task": "classification", "progress": False}
VERBS = {
    "fit": fit,
    "recalibrate_": recalibrate,
    "tune_noise_": tune,
    "predict": lambda data: lb.predict(make(), data, samples=4, task="classification").probs,
    "evaluate": lambda data: lb.evaluate(make(), data, samples=4, replicates=0, **QUIET).metrics["nll"],
    "evaluate_each": lambda data: next(iter(lb.evaluate_each(make(), data, samples=4, replicates=0, **QUIET))).metrics[
        "nll"
    ],
    "ood": lambda data: lb.evaluate(make(), KNOWN, samples=4, replicates=0, ood={"o": data}, **QUIET).metrics[
        "ood.o.entropy.auroc"
    ],
    "calibrate_": lambda data: lb.calibrate_(make(), data, samples=4, **QUIET),
    "kappa": lambda data: lb.kappa(make(), data, **QUIET)["0.weight"],
    "stacking": lambda data: fit_weights(make(), data, samples=4, task="classification"),
    "Transition": lambda data: accuracies(make(), data, samples=4)["ensemble"],
}
NOT = {("fit", "generator"), ("recalibrate_", "generator"), ("tune_noise_", "generator")}  # read once an epoch
FULL_BATCH = {"dataset", "items", "tuple", "arrays", "mapping", "mapping of arrays"}
"""Kinds that `fit` reads in one batch here, so that a step is the same up to rounding."""


def given(verb, kind):
    data = KINDS[kind]()
    if verb == "predict" and isinstance(data, tuple):
        return data[0]
    if verb == "predict" and isinstance(data, dict):
        return {"input": data["input"]}
    return data


@pytest.mark.filterwarnings("ignore:the best temperature")
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_says_the_same_of_every_kind(verb):
    expected = torch.as_tensor(VERBS[verb](given(verb, "tuple")))
    for kind in KINDS:
        if (verb, kind) in NOT:
            with pytest.raises(DataError, match="once an epoch"):
                VERBS[verb](given(verb, kind))
            continue
        found = torch.as_tensor(VERBS[verb](given(verb, kind)))
        if verb in ("fit", "tune_noise_") and kind not in FULL_BATCH:  # noise goes with batches
            assert found.shape == expected.shape
            continue
        assert torch.allclose(found, expected, rtol=1e-3, atol=1e-5), kind


@pytest.mark.parametrize("verb", ["predict", "ood", "recalibrate_"])
def test_inputs_alone_will_do_where_targets_are_not_looked_at(verb):
    for data in (X, X.numpy(), (X,), [(X[:25],), (X[25:],)]):
        assert torch.allclose(
            torch.as_tensor(VERBS[verb](data)), torch.as_tensor(VERBS[verb](given(verb, "tuple"))), atol=1e-5
        )


BAD = {
    "number": lambda: 3,
    "nothing": lambda: None,
    "text": lambda: "digits",
    "model": make,
    "class": lambda: DataLoader,
    "rows": lambda: (X, Y[:5]),
    "objects": lambda: (np.array([None] * 40), Y.numpy()),
    "mixed": lambda: (X, "labels"),
    "mapping of text": lambda: {"input": "x", "labels": "y"},
    "empty mapping": dict,
}


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"predict"}))
@pytest.mark.parametrize("kind", BAD)
def test_what_holds_no_data_is_refused(verb, kind):
    with pytest.raises((DataError, EvaluationError), match="expected"):
        VERBS[verb](BAD[kind]())


@pytest.mark.parametrize("kind", ["number", "nothing", "text", "model", "class", "objects"])
def test_predict_refuses_what_holds_no_data(kind):
    with pytest.raises(DataError, match="expected"):
        VERBS["predict"](BAD[kind]())


def test_arrays_take_the_precision_of_the_model():
    model = make().double()
    assert lb.predict(model, X.numpy(), samples=2, task="classification").probs.dtype == torch.float64
    flipped = lb.predict(model, X.numpy()[::-1], samples=2, task="classification").probs
    assert torch.allclose(flipped, lb.predict(model, X.flip(0).double(), samples=2, task="classification").probs)
