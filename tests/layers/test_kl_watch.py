"""A training that forgets the KL is noticed by predict, once; one that has it is not."""

import copy
import io
import warnings

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import LeanBayesWarning


def made(method):
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    lb.bayesianize_(model, method)
    return model


def step(model, loss_of):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(16, 3), torch.randint(2, (16,))
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()


def said(model):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        lb.predict(model, torch.randn(2, 3), samples=2, task="classification")
    return [str(w.message) for w in found if issubclass(w.category, LeanBayesWarning)]


@pytest.mark.parametrize("method", [lb.MeanField(), lb.VariationalDropout(), lb.SparseSubspace(density=0.5)])
def test_a_stock_loop_without_the_kl_is_told_so_once(method):
    model = made(method)
    assert said(model) == []
    step(model, nn.functional.cross_entropy)
    (message,) = said(model)
    assert "2 Bayesian layers were trained and their KL was never computed" in message
    assert "lb.kl_sum(model)" in message
    assert said(model) == []


def test_a_loop_with_the_kl_is_not():
    model = made(lb.MeanField())
    elbo = lb.ELBO("classification", num_data=100)
    step(model, lambda outputs, y: elbo(model, outputs, y).loss)
    assert said(model) == []
    model = made(lb.MeanField())
    step(model, lambda outputs, y: nn.functional.cross_entropy(outputs, y) + lb.kl_sum(model) / 100)
    assert said(model) == []


def test_methods_without_a_kl_and_plain_models_are_not():
    for model in (made(lb.Dropout(0.1)), nn.Linear(3, 2)):
        step(model, nn.functional.cross_entropy)
        assert said(model) == []


def test_gradients_in_eval_mode_are_no_training():
    """Saliency maps by backward() reach the parameters too; training that follows is still noticed."""
    model = made(lb.MeanField()).eval()
    for _ in range(2):
        model(torch.randn(4, 3)).sum().backward()
    assert said(model) == []
    step(model.train(), nn.functional.cross_entropy)
    assert len(said(model)) == 1


def test_values_that_were_loaded_are_not_and_copies_remember():
    """Only gradients count: a state_dict, a cast and a deep copy are no training."""
    model = made(lb.MeanField())
    model.load_state_dict({k: v + 0.1 for k, v in model.state_dict().items()})
    assert said(model.double().float()) == []
    step(model, nn.functional.cross_entropy)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert len(said(copy.deepcopy(model))) == len(said(again)) == 1
