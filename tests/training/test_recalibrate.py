"""BatchNorm's statistics, against those computed by hand; nothing else may move."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler

import leanbayes as lb
from leanbayes.errors import ConfigError, ConversionError, DataError, PredictionError
from leanbayes.training.recalibrate import collected_at_means


def network(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Dropout(0.5), nn.Linear(7, 3))
    lb.bayesianize_(model, {"0": lb.Variance(**{"log_alpha": 2.0, **options})})
    return model


X = torch.randn(1000, 5, generator=torch.Generator().manual_seed(1))


def test_at_the_means_they_are_those_of_the_mean_network():
    model = network()
    lb.recalibrate_(model, (X,), at="means")
    with torch.no_grad():
        outputs = nn.functional.linear(X, model[0].posteriors["weight"].mean, model[0].bias)
    assert torch.allclose(model[1].running_mean, outputs.mean(0), atol=1e-5)
    assert torch.allclose(model[1].running_var, outputs.var(0), rtol=0.02)  # the mean of the variances within batches
    assert collected_at_means(model)


def test_at_samples_they_are_those_under_noise():
    model = network()
    # 500 whole draws of 5 weights a channel: if one of them made all the noise, the mean of its square would have a
    # relative deviation of sqrt(2 / 500) = 0.063
    lb.recalibrate_(model, DataLoader(TensorDataset(X), 100), passes=50)
    q = model[0].posteriors["weight"]
    with torch.no_grad():
        mean = nn.functional.linear(X, q.mean, model[0].bias)
        noise = nn.functional.linear(X * X, q.variance).mean(0)
    error = (noise / 1000).sqrt()
    assert ((model[1].running_mean - mean.mean(0)).abs() < 4.5 * error).all()
    assert (model[1].running_var / (mean.var(0) + noise) - 1).abs().max() < 0.25
    assert not collected_at_means(model)


class Jittered(Dataset):
    """Random augmentation from the global generators of numpy and of python."""

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index] + np.random.rand() + random.random()


def test_a_seed_repeats_whatever_the_loader_draws_from():
    found = []
    for state in range(2):
        np.random.seed(state)
        random.seed(state)
        sampler = WeightedRandomSampler([1.0] * 50, 50, generator=torch.Generator().manual_seed(0))
        expected = np.random.RandomState(state).rand(), random.Random(state).random()
        found.append(lb.recalibrate_(network(), DataLoader(Jittered(), 10, sampler=sampler), seed=4)[1].running_mean)
        assert (np.random.rand(), random.random()) == expected  # as they were found
    assert torch.equal(*found)


def test_batches_count_by_their_size():
    model = nn.Sequential(nn.BatchNorm1d(5))
    lb.recalibrate_(model, DataLoader(TensorDataset(X[:350]), 300))
    assert torch.allclose(model[0].running_mean, X[:350].mean(0), atol=1e-6)
    momentum = nn.Sequential(nn.BatchNorm1d(5))
    lb.recalibrate_(momentum, DataLoader(TensorDataset(X[:300]), 300), momentum=0.5)
    assert torch.allclose(momentum[0].running_mean, 0.5 * X[:300].mean(0), atol=1e-6)


def test_data_limits_what_is_read():
    model, read = nn.Sequential(nn.BatchNorm1d(5)), []
    model.register_forward_pre_hook(lambda _, inputs: read.append(len(inputs[0])))
    lb.recalibrate_(model, DataLoader(TensorDataset(X), 100), data=250)
    assert read == [100, 100, 50]
    assert torch.allclose(model[0].running_mean, X[:250].mean(0), atol=1e-6)
    read.clear()
    lb.recalibrate_(model, DataLoader(TensorDataset(X), 100), data=201)  # a single datum has no variance
    assert read == [100, 100, 1]
    assert torch.allclose(model[0].running_mean, X[:200].mean(0), atol=1e-6)


def test_single_data_count_where_they_have_a_variance():
    images = torch.randn(4, 2, 5, 5)
    model = nn.Sequential(nn.BatchNorm2d(2))
    lb.recalibrate_(model, DataLoader(TensorDataset(images), 1))
    assert torch.allclose(model[0].running_mean, images.mean((0, 2, 3)), atol=1e-6)
    mixed = nn.Sequential(nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(2))
    lb.recalibrate_(mixed, [(images[:1],), (images[1:],)])  # no layer has the first image
    assert torch.allclose(mixed[0].running_mean, images[1:].mean((0, 2, 3)), atol=1e-6)
    with pytest.raises(DataError, match="single datum"):
        lb.recalibrate_(mixed, DataLoader(TensorDataset(images), 1))


@pytest.mark.parametrize("at", ["samples", "means"])
def test_nothing_else_changes(at):
    model = network()
    model[0].eval()
    model[3].p = 0.25
    before, modes = copy.deepcopy(model), [m.training for m in model.modules()]
    state = torch.get_rng_state()
    assert lb.recalibrate_(model, (X,), at=at) is model
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in model.modules()] == modes
    assert model[1].momentum == before[1].momentum
    for (name, new), old in zip(model.state_dict().items(), before.state_dict().values(), strict=True):
        moved = name in ("1.running_mean", "1.running_var", "1.num_batches_tracked")
        assert torch.equal(new, old) != moved, name
    assert all(p.grad is None for p in model.parameters())


def test_a_seed_repeats_it():
    results = []
    for seed in (1, 1, 2):
        model = network()
        lb.recalibrate_(model, (X,), seed=seed)
        results.append(model[1].running_var.clone())
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_it_restores_a_network_at_its_means():
    # the statistics of noise make the mean network's signal small; beta then decides
    torch.manual_seed(0)
    x = torch.randn(512, 8)
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(8, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
    lb.bayesianize_(model, {"0": lb.Variance(log_alpha=1.0)})
    lb.fit(model, (x, y), epochs=30, batch_size=64, lr=0.02, progress=False)
    with torch.no_grad():
        model[0].posteriors["weight"].log_alpha.fill_(14.0)
        model[1].bias += torch.randn(32)
    lb.recalibrate_(model, (x,))

    def accuracy():
        return (lb.predict(model, x, mean_only=True).probs.argmax(1) == y).float().mean().item()

    with pytest.warns(lb.LeanBayesWarning):
        assert accuracy() < 0.7
    with torch.no_grad():
        model[1].bias.zero_()
    lb.recalibrate_(model, (x,), at="means")
    assert accuracy() > 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [({"at": "mean"}, "'samples', 'means'"), ({"data": 0}, "data"), ({"momentum": 2.0}, "momentum")],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        lb.recalibrate_(network(), (X,), **options)


def test_without_batch_norm_or_data_it_is_refused_and_nothing_changes():
    with pytest.raises(ConversionError, match="BatchNorm"):
        lb.recalibrate_(nn.Linear(5, 2), (X,))
    with pytest.raises(ConversionError, match="BatchNorm"):
        lb.recalibrate_(nn.Sequential(nn.BatchNorm1d(5, track_running_stats=False)), (X,))
    with pytest.raises(ConversionError, match="Module"):
        lb.recalibrate_("model", (X,))
    model = network()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(DataError):
        lb.recalibrate_(model, (X[:0],))
    with pytest.raises(DataError, match="at least one"):
        lb.recalibrate_(model, [])
    with pytest.raises(RuntimeError):
        lb.recalibrate_(model, [(X[:100],), (X[:100, :3],)])  # fails in the second batch
    zero = network(parameterisation="zero")
    zero_before = copy.deepcopy(zero.state_dict())
    with pytest.raises(PredictionError, match="meaningless"):
        lb.recalibrate_(zero, (X,), at="means")
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(torch.equal(v, zero_before[k]) for k, v in zero.state_dict().items())
    assert model[1].momentum == 0.1


def patched(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))
    lb.bayesianize_(model, {nn.BatchNorm1d: lb.Patch(3, perturbation=0.5, **options)})
    return model


def test_patched_layers_average_over_their_components():
    """The second layer's statistics are those of many draws of the first one's components, by hand."""
    model = patched(cross=False)
    lb.recalibrate_(model, (X,), passes=200)
    assert torch.allclose(model[0].running_mean, X.mean(0), atol=1e-5)
    gammas, betas = (model[0].posteriors[name].centres.detach() for name in ("weight", "bias"))
    normal = (X - X.mean(0)) / X.std(0, correction=0)
    with torch.no_grad():
        each = torch.stack([model[1](normal * g + b).mean(0) for g, b in zip(gammas, betas, strict=True)])
    error = each.std(0, correction=0) / 1000**0.5  # 200 passes of 5 batches, a component each
    assert ((model[2].running_mean - each.mean(0)).abs() < 4.5 * error + 2e-3).all()  # batches have means of their own
    assert model[2].shell.momentum == 0.1
    assert ((model[2].running_mean - each[1]).abs() > 10 * error).any()  # component 0 is close to the mean


def test_components_with_statistics_of_their_own_get_their_own():
    model = patched(cross=False, statistics="component")
    lb.recalibrate_(model, (X + 3,), passes=20)
    for k in range(3):  # the inputs of the first layer do not depend on what it draws
        assert torch.allclose(model[0].running_mean[k], (X + 3).mean(0), atol=0.1)
    assert model[0].num_batches_tracked.sum() == 100
    before = {name: b.clone() for name, b in model.named_buffers()}
    with pytest.raises(ConversionError, match="use at='samples'"):
        lb.recalibrate_(model, (X,), at="means")
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())
    assert not collected_at_means(model)


def test_every_pass_reads_the_same_number_of_data():
    model, read = nn.Sequential(nn.BatchNorm1d(5)), []
    model.register_forward_pre_hook(lambda _, inputs: read.append(len(inputs[0])))
    lb.recalibrate_(model, DataLoader(TensorDataset(X), 100), data=250, passes=2)
    assert read == [100, 100, 50] * 2
    with pytest.raises(ConfigError, match="passes"):
        lb.recalibrate_(model, (X,), passes=0)


@pytest.mark.parametrize("seed", range(5))
def test_every_component_with_statistics_of_its_own_has_its_turn(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3))
    lb.bayesianize_(model, {"0": lb.Patch(4, cross=False, statistics="component")})
    lb.recalibrate_(model, DataLoader(TensorDataset(X[:200]), 50), seed=seed)
    assert model[0].num_batches_tracked.tolist() == [1, 1, 1, 1]
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(DataError, match="every component"):
        lb.recalibrate_(model, DataLoader(TensorDataset(X[:150]), 50))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
