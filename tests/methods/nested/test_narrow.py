"""Leaving dropped channels out of the arithmetic gives what masking them gives."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.models import resnext_cifar
from leanbayes.ordering.unit import units

X = torch.randn(6, 2, 8, 8, generator=torch.Generator().manual_seed(0)).double()


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8, affine=False),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(32, 16),
        nn.Dropout(0.0),
        nn.Linear(16, 3),
    ).double()


def pair(method, **options):
    models = [network(), network()]
    for model, skip in zip(models, (False, True), strict=True):
        lb.bayesianize_(model, method(groups=8, base_groups=1, skip=skip, **options))
    return models


METHODS = pytest.mark.parametrize("method", [lb.Nested, lb.NestedDropout])


@METHODS
@pytest.mark.parametrize("width", [0.2, 0.6, 1.0])
def test_outputs_and_gradients_are_those_of_the_masked_network(method, width):
    masked, narrow = pair(method)
    assert [unit.narrows for unit in units(narrow)] == [True] * 3
    assert not any(unit.narrows for unit in units(masked))
    grads = []
    for model in (masked, narrow):
        lb.set_width_(model, width)
        torch.manual_seed(1)
        with lb.using(estimator="weight"):
            outputs = model(X)
        (outputs.sin().sum() + lb.kl_sum(model)).backward()
        zeros = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        grads.append({n: zeros[n] if p.grad is None else p.grad for n, p in model.named_parameters()} | {"": outputs})
    for name, value in grads[0].items():
        assert torch.allclose(grads[1][name], value, atol=1e-10), name
    answers = [lb.predict(model, X, samples=3, task="classification").probs for model in (masked, narrow)]
    kept = [unit.kept_channels(unit.width) for unit in units(narrow)]
    for norm, channels in ((1, kept[0]), (4, kept[1])):  # those of dropped channels are not touched
        for name in ("running_mean", "running_var"):
            mine, theirs = getattr(narrow[norm], name), getattr(masked[norm], name)
            assert torch.allclose(mine[channels], theirs[channels])
            start = 0.0 if name == "running_mean" else 1.0
            assert (mine[len(channels) :] == start).all()
    assert torch.allclose(answers[0], answers[1])


@METHODS
def test_widths_drawn_from_fixed_tails_are_computed_narrowly(method):
    masked, narrow = pair(method, tails="uniform")
    seen = []
    narrow[3].register_forward_pre_hook(lambda m, args: seen.append(args[0].shape[1]))
    for seed in range(12):
        outputs = []
        for model in (masked, narrow):
            torch.manual_seed(seed)
            with lb.using(estimator="weight"):
                outputs.append(model(X))
        assert torch.allclose(outputs[0], outputs[1])
    assert len(set(seen)) > 3
    assert min(seen) < 12
    for model in (masked, narrow):
        lb.recalibrate_(model, (X,), seed=2)
    narrow.load_state_dict(masked.state_dict())
    for strategy in ("loop", "vmap"):  # vmap has no one width, and masks
        answers = [
            lb.predict(m, X, samples=4, task="classification", strategy=strategy).probs for m in (masked, narrow)
        ]
        assert torch.allclose(answers[0], answers[1])


def test_learned_tails_are_masked_in_training():
    _, narrow = pair(lb.Nested)
    seen = []
    narrow[3].register_forward_pre_hook(lambda m, args: seen.append(args[0].shape[1]))
    narrow(X).sum().backward()
    assert seen == [12]
    assert all(unit.logits.grad is not None for unit in units(narrow))


def test_what_cannot_be_narrowed_is_masked():
    torch.manual_seed(0)
    model = resnext_cifar(depth=11, cardinality=2, base_width=16, width=0.25)
    lb.bayesianize_(model, lb.NestedDropout(groups=4, base_groups=1, skip=True))
    narrows = {unit.name: unit.narrows for unit in units(model)}
    assert not narrows["stage1.0.reduce"]  # a grouped convolution consumes it
    x = torch.randn(2, 3, 8, 8)
    other = copy.deepcopy(model)
    for unit in units(other):
        unit.narrows = False
    for module in other.modules():
        if hasattr(module, "narrow"):
            module.narrow = None
    for one in (model, other):
        one.eval()
        lb.set_width_(one, 0.5)
    assert torch.allclose(model(x), other(x), atol=1e-6)


def test_parameters_come_back_after_errors_copies_and_restoring():
    _, model = pair(lb.NestedDropout)
    lb.set_width_(model, 0.5)
    copies = [copy.deepcopy(model), pickle.load(io.BytesIO(pickle.dumps(model)))]
    for one in (model, *copies):
        with pytest.raises(RuntimeError):
            one(X[:, :, :2, :2])  # too small to pool
        assert isinstance(one[1].weight, nn.Parameter)
        assert one[1].weight.shape == one[1].running_mean.shape == (12,)
        assert one(X).shape == (6, 3)
        assert one[10].weight.shape == (3, 16)
    expected = {name: value.clone() for name, value in model[10].state_dict().items()}
    lb.restore_(model)
    assert not model[1]._forward_pre_hooks
    assert not model[10]._forward_hooks
    assert all(torch.equal(value, expected[name]) for name, value in model[10].state_dict().items())
