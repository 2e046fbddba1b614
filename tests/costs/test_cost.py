"""Counts compared with closed forms, and the promise to leave the model alone."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes import models
from leanbayes.costs import Cost, cost, seconds_of, training_bytes
from leanbayes.errors import ConfigError, DataError
from leanbayes.kernels import library

# model, example, MACs for one datum
COUNTED: dict[str, tuple[nn.Module, Any, int]] = {
    "linear": (nn.Linear(7, 5), torch.rand(3, 7), 35),
    "linear on a sequence": (nn.Linear(7, 5), torch.rand(3, 4, 7), 4 * 35),
    "convolution": (nn.Conv2d(3, 8, 3, stride=2, padding=1), torch.rand(2, 3, 8, 8), 16 * 8 * 3 * 9),
    "grouped": (nn.Conv2d(4, 8, 3, groups=2), torch.rand(2, 4, 8, 8), 36 * 8 * 2 * 9),
    "depthwise": (nn.Conv1d(4, 4, 3, groups=4), torch.rand(2, 4, 8), 6 * 4 * 3),
    "transposed": (nn.ConvTranspose2d(3, 4, 3), torch.rand(2, 3, 8, 8), 64 * 3 * 4 * 9),
    "lenet5": (models.build("lenet5"), torch.rand(2, 1, 28, 28), 576 * 500 + 64 * 25_000 + 400_000 + 5_000),
    "lstm": (nn.LSTM(4, 3, batch_first=True), torch.rand(2, 5, 4), 5 * 4 * 3 * (4 + 3)),
    "attention": (
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        torch.rand(2, 5, 8),
        5 * (8 * 24 + 64 + 2 * 128) + 2 * 5 * 5 * 8,
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_macs_of_one_datum(name: str) -> None:
    model, example, expected = COUNTED[name]
    assert cost(model, example).macs == expected


def test_resnet18_on_cifar_has_the_published_macs() -> None:
    found = cost(models.build("resnet18_cifar"), torch.zeros(1, 3, 32, 32))
    assert found.macs == 555_422_720  # the 555.4M that sparse subspace VI's FLOPs follow from
    assert found.parameters == 11_173_962
    assert sum(layer.macs for layer in found.layers if layer.kind == "Conv2d") == 555_422_720 - 5_120


def test_the_batch_does_not_matter() -> None:
    model = models.build("lenet5")
    one, many = (cost(model, torch.rand(n, 1, 28, 28)) for n in (1, 5))
    assert (one.macs, one.layers) == (many.macs, many.layers)
    assert (one.batch_size, many.batch_size) == (1, 5)


def test_layers_sum_to_the_totals() -> None:
    found = cost(models.build("resnet18_cifar", width=4), torch.rand(2, 3, 8, 8))
    for field in ("parameters", "active_parameters", "macs", "bytes"):
        assert sum(getattr(layer, field) for layer in found.layers) == getattr(found, field)
    names = [layer.name for layer in found.layers]
    assert names[:2] == ["conv1", "bn1"]
    assert names[-1] == "fc"
    assert len(names) == len(set(names)) == 41


def test_bytes_and_trainable_parameters() -> None:
    model = nn.Sequential(nn.Linear(4, 3).half(), nn.BatchNorm1d(3))
    model[1].requires_grad_(False)
    model[0].forward = lambda x: x[:, :3]  # halves cannot be multiplied everywhere
    found = cost(model, torch.rand(2, 4))
    assert found.bytes == 2 * 15 + 4 * (4 * 3) + 8
    assert (found.parameters, found.trainable_parameters) == (21, 15)


def test_shared_tensors_count_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    found = cost(nn.Sequential(model, model[0]), torch.rand(2, 4))
    assert (found.parameters, found.macs) == (24, 48)
    assert [layer.parameters for layer in found.layers] == [20, 4]
    assert [layer.macs for layer in found.layers] == [32, 16]


class _Functional(nn.Module):
    """Its own parameter, a product of its own, and named arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.inner = nn.Parameter(torch.ones(4, 4)), nn.Linear(4, 2)

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        x = x @ self.weight
        return self.inner(x if other is None else x + other)


def test_products_outside_of_torch_modules_are_counted_where_they_happen() -> None:
    x = torch.rand(3, 4)
    for example in (x, (x, x), {"other": x, "x": x}):
        found = cost(_Functional(), example)
        assert [(layer.name, layer.macs) for layer in found.layers] == [("_Functional", 16), ("inner", 8)]


def test_modules_that_are_called_but_not_registered_are_counted_where_they_are_called() -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = [nn.Linear(4, 3)]

        def forward(self, x: Tensor) -> Tensor:
            return self.hidden[0](x)

    assert [(layer.name, layer.macs) for layer in cost(Hidden(), torch.rand(2, 4)).layers] == [("Hidden", 12)]


def test_active_parameters_are_what_modules_say() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

        def active_parameters(self) -> int:
            return 8

    zeros = nn.Linear(4, 2)
    nn.init.zeros_(zeros.weight)
    found = cost(nn.Sequential(Half(), zeros), torch.rand(2, 4))
    assert (found.parameters, found.active_parameters) == (26, 18)
    assert [(layer.name, layer.macs) for layer in found.layers] == [("0", 16), ("1", 8)]


def test_a_bayesian_model_costs_twice_the_parameters_and_the_same_macs() -> None:
    model = models.build("lenet5")
    x = torch.rand(2, 1, 28, 28)
    plain = cost(model, x)
    lb.bayesianize_(model, lb.MeanField())
    bayes = cost(model, x)
    assert bayes.macs == plain.macs
    assert plain.parameters < bayes.parameters <= 2 * plain.parameters
    assert bayes.sites > plain.sites == 0
    assert [layer.name for layer in bayes.layers] == [layer.name for layer in plain.layers]
    assert bayes.layers[0].kind == "BayesLayer(Conv2d)"
    assert bayes.active_parameters == bayes.parameters
    lb.prune_(model, fraction=0.5)
    assert 0.4 < cost(model, x).active_parameters / bayes.parameters < 0.6


def test_counting_changes_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(144, 2)).train()
    model[1].eval()
    lb.bayesianize_(model, {nn.Linear: lb.MeanField()})
    state, flags, generator = (
        copy.deepcopy(model.state_dict()),
        [m.training for m in model.modules()],
        torch.get_rng_state(),
    )
    fused = torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled
    cost(model, torch.ones(2, 1, 8, 8))
    assert torch.equal(torch.get_rng_state(), generator)
    assert [m.training for m in model.modules()] == flags
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert (torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled) == fused
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(DataError, match=r"Linear cannot run on the example input: .*shapes cannot be multiplied"):
        cost(nn.Linear(4, 2), torch.rand(2, 3))
    with pytest.raises(DataError, match=r"example_input: expected .* a tensor.*, received 'x'"):
        cost(nn.Linear(4, 2), "x")
    with pytest.raises(DataError, match=r"received an empty one"):
        cost(nn.Linear(4, 2), torch.rand(0, 4))


def test_it_prints_and_serialises() -> None:
    found = cost(models.build("lenet5"), torch.rand(2, 1, 28, 28))
    text = str(found)
    assert "431,080" in text
    assert "2,293,000" in text
    assert "MACs are for one datum" in text
    assert json.loads(json.dumps(found.to_dict()))["layers"][0]["kind"] == "Conv2d"
    assert isinstance(found, Cost)


def test_training_flops_are_those_of_the_paper() -> None:
    x = torch.zeros(1, 3, 32, 32)
    model = models.build("resnet18_cifar")
    plain = cost(model, x)
    assert plain.training_flops(50_000, 200) == 6 * 555_422_720 * 50_000 * 200
    assert plain.inference_flops(samples=5) == 10 * 555_422_720
    lb.bayesianize_(model, lb.MeanField())
    dense = cost(model, x).training_flops(50_000, 200)
    assert dense == 12 * 555_422_720 * 50_000 * 200  # 6.67e16, as its table 2 has for VD and SBP: 67.1e15
    assert abs(dense / 67.1e15 - 1) < 0.01


@pytest.mark.parametrize("stem", [None, lb.MeanField()])
def test_a_dense_stem_is_part_of_the_bill(stem: Any) -> None:
    model = models.build("resnet18_cifar")
    lb.bayesianize_(model, {"conv1": stem, "*": lb.SparseSubspace(density=0.05)})
    found = cost(model, torch.zeros(1, 3, 32, 32))
    share = found.training_flops() / (12 * 555_422_720)
    first = 27 * 64 * 32 * 32 / 555_422_720
    assert share == pytest.approx(0.05 * (1 - first) + first * (0.5 if stem is None else 1), rel=1e-3)


def test_passes_depend_on_how_noise_reaches_the_outputs() -> None:
    for method, passes in (
        (lb.MeanField(), 2),
        (lb.MeanField(estimator="flipout"), 2),
        (lb.MeanField(estimator="weight"), 1),
        (lb.VariationalDropout(), 2),
        (lb.Dropout(0.5), 1),
        (lb.Rigl(density=0.5), 1),
        (lb.SparseSubspace(density=0.5), 2),
        (lb.Ensemble(members=2), 1),
    ):
        model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))
        lb.bayesianize_(model, method)
        found = cost(model, torch.rand(2, 8))
        assert found.layers[-1].passes == passes, method
        assert found.training_flops() == 6 * sum(layer.passes * layer.macs for layer in found.layers)


def test_the_path_of_sparse_layers_and_why() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3, dilation=2), nn.Flatten(), nn.Linear(128, 64), nn.Linear(64, 10))
    rules = {"0": lb.Rigl(density=0.1), "2": lb.SparseSubspace(density=0.1), "3": lb.SparseSubspace(density=0.5)}
    lb.bayesianize_(model, rules)
    found = cost(model, torch.rand(2, 8, 8, 8))
    paths = {layer.name: layer.path for layer in found.layers}
    assert paths["0"].startswith("dense: ")
    assert "50%" in paths["3"]
    assert paths["2"] == "compiled" if library.reason() is None else paths["2"].startswith("dense: ")
    assert "of 3 sparse layers take the compiled path" in str(found)
    assert "3: a density of 50% is faster dense" in str(found)
    assert "compiled path" not in str(cost(nn.Linear(2, 2), torch.rand(1, 2)))


@pytest.mark.parametrize(("make", "copies"), [("SGD", 0), ("momentum", 1), ("Adam", 2)])
def test_training_bytes_are_those_of_the_tensors(make: str, copies: int) -> None:
    model = nn.Sequential(nn.Linear(40, 50), nn.BatchNorm1d(50), nn.Linear(50, 4))
    lb.bayesianize_(model, {"0": lb.SparseSubspace(density=0.05)})
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam(model.parameters())
        if make == "Adam"
        else torch.optim.SGD(model.parameters(), 0.1, momentum=0.9 if copies else 0.0)
    )
    with pytest.raises(DataError, match=r"after a step"):
        training_bytes(model, optimizer)
    (model(torch.rand(8, 40)).sum() + lb.kl_sum(model)).backward()
    optimizer.step()
    found = training_bytes(model, optimizer)
    numbers = 2 * 100 + 50 + 2 * 50 + 204  # active weights and biases, BatchNorm, the last layer
    steps = 4 * len(list(model.parameters())) if make == "Adam" else 0
    assert found.parameters == found.gradients == 4 * numbers
    assert found.optimizer == copies * 4 * numbers + steps
    assert found.buffers == 4 * 100 + 2 * 4 * 50 + 8
    assert found.total == found.parameters + found.buffers + found.gradients + found.optimizer


def test_training_bytes_count_shared_storage_once_and_refuse_strangers() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.rand(2, 4)).sum().backward()
    assert training_bytes(model, optimizer).parameters == training_bytes(model, optimizer).gradients == 64
    with pytest.raises(ConfigError, match=r"none of its parameters"):
        training_bytes(nn.Linear(2, 2), optimizer)
    with pytest.raises(ConfigError, match=r"torch optimiser"):
        training_bytes(model, "Adam")  # type: ignore[arg-type]


def test_seconds_are_a_median_of_timed_calls() -> None:
    calls: list[int] = []
    assert seconds_of(lambda: calls.append(1), repeats=3) >= 0
    assert len(calls) == 4
    with pytest.raises(ConfigError, match=r"repeats"):
        seconds_of(lambda: None, repeats=0)


def test_a_set_width_counts_the_channels_that_it_keeps() -> None:
    model = nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))
    lb.bayesianize_(model, lb.Nested(groups=8, base_groups=1, weights=lb.MeanField()))
    whole = cost(model, torch.rand(3, 4))
    assert (whole.macs, whole.active_parameters) == (64 * 6, whole.parameters)  # widths are sampled
    lb.set_width_(model, 0.25)
    found = cost(model, torch.rand(3, 4))
    tails = 7
    assert found.macs == 16 * 6
    assert found.active_parameters == 2 * (16 * 4 + 16) + 2 * 16 + 2 * (2 * 16 + 2) + tails
    assert found.parameters == whole.parameters


@pytest.mark.parametrize("name", ["vgg_small", "mobilenet_v2", "resnext_cifar"])
def test_masked_channels_count_like_skipped_ones(name: str) -> None:
    macs = []
    for skip in (False, True):
        model = models.build(name)
        lb.bayesianize_(model, lb.Nested(groups=4, base_groups=1, skip=skip))
        lb.set_width_(model, 0.5)
        macs.append(cost(model, torch.rand(1, 3, 32, 32)).macs)
    assert macs[0] == pytest.approx(macs[1], rel=1e-6)
    assert macs[0] < 0.7 * cost(models.build(name), torch.rand(1, 3, 32, 32)).macs
