from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import pytest
import torch

from leanbayes import batches
from leanbayes.data import load
from leanbayes.errors import DataError

X, Y = torch.arange(6.0).reshape(3, 2), torch.arange(3)
Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    ("batch", "inputs", "targets"),
    [
        (1, 1, None),
        ([1], 1, None),
        ((1, 2), 1, 2),
        ([1, 2], 1, 2),
        ((1, 2, 3), (1, 2), 3),
        (Pair(1, 2), 1, 2),
        ({"x": 1, "labels": 2}, {"x": 1}, 2),
        ({"x": 1, "label": 2}, {"x": 1}, 2),
        ({"x": 1, "targets": 2}, {"x": 1}, 2),
        ({"x": 1}, {"x": 1}, None),
    ],
)
def test_split(batch, inputs, targets):
    assert batches.split(batch) == (inputs, targets)


def test_an_empty_batch_is_refused():
    with pytest.raises(DataError, match="empty"):
        batches.split(())


def test_models_are_called_as_their_inputs_ask():
    def model(a, b=0):
        return a, b

    assert batches.call(model, 1) == (1, 0)
    assert batches.call(model, (1, 2)) == batches.call(model, [1, 2]) == (1, 2)
    assert batches.call(model, {"b": 2, "a": 1}) == (1, 2)


def test_the_tensor_that_carries_the_prediction():
    for output in (X, (X, None), [X], {"logits": X, "loss": 1}, SimpleNamespace(logits=X), OrderedDict(logits=X)):
        assert batches.output_tensor(output) is X
    for output in (None, (), {"x": X}, (None, X), "text"):
        with pytest.raises(DataError, match="wrap the model"):
            batches.output_tensor(output)


def test_rows_and_size_of_whatever_is_nested():
    nested = {"a": X, "b": (Y, [X, "text"]), "c": 3}
    assert batches.size(nested) == 3
    part = batches.rows(nested, 1, 3)
    assert torch.equal(part["b"][1][0], X[1:])
    assert torch.equal(part["b"][0], Y[1:])
    assert (part["b"][1][1], part["c"]) == ("text", 3)
    pair = batches.rows(Pair(X, Y), 0, 1)
    assert isinstance(pair, Pair)
    assert torch.equal(pair.y, Y[:1])
    assert batches.to(pair, "meta").x.device.type == "meta"


def test_a_data_set_of_the_library_is_refused_with_what_to_pass():
    with pytest.raises(DataError, match=r"received DataSet\(.*; pass data.train"):
        batches.accept(load("digits"))


def test_what_has_no_tensor_or_no_batch_is_refused():
    for inputs in (None, 3, "x", (), {}, [1]):
        with pytest.raises(DataError, match="expected a tensor"):
            batches.size(inputs)
    with pytest.raises(DataError, match="scalar"):
        batches.size(torch.tensor(1.0))
