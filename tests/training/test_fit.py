import json
import math
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from leanbayes.convert import record
from leanbayes.convert.apply import bayesianize_
from leanbayes.errors import ConfigError, DataError, MissingExtraError, TrainingError
from leanbayes.likelihoods import Classification, Regression
from leanbayes.methods import MeanField
from leanbayes.training.callbacks import Callback
from leanbayes.training.fit import fit
from leanbayes.training.schedules import warmup
from leanbayes.training.validate import validate

X = torch.randn(96, 2, generator=torch.Generator().manual_seed(0))
LABELS = (X[:, 0] * X[:, 1] > 0).long()
LINE = X @ torch.tensor([1.0, -2.0])


def mlp(outputs=2, bayesian=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, outputs))
    if bayesian:
        bayesianize_(model, MeanField())
    return model


@pytest.mark.parametrize("bayesian", [False, True])
def test_classification(bayesian):
    model = mlp(bayesian=bayesian)
    result = fit(model, (X, LABELS), val=(X, LABELS), epochs=60, lr=0.02, batch_size=32, kl_weight=0.05)
    assert result.last["val_accuracy"] > 0.9
    assert result.last["val_nll"] < result["val_nll"][0]
    assert (result.last["kl"] > 0) == bayesian
    assert result.last["step"] == 180
    assert result.last["loss"] == pytest.approx(result.last["nll"] + 0.05 * result.last["kl"] / 96, abs=0.02)
    assert record.get(model).likelihood == Classification().to_dict()
    json.dumps(result.to_dict())


def test_regression_learns_its_noise():
    y = LINE + 0.2 * torch.randn(96, generator=torch.Generator().manual_seed(1))
    model = nn.Linear(2, 1)
    result = fit(model, (X, y), val=(X, y), task=Regression("learned"), epochs=60, lr=0.1, batch_size=24)
    assert record.get(model).likelihood["std"] == pytest.approx(0.2, abs=0.04)
    assert result.last["val_rmse"] == pytest.approx(0.2, abs=0.04)


def test_segmentation_and_dictionaries():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 3, 1)

        def forward(self, image):
            return {"logits": self.conv(image)}

    labels = torch.randint(0, 3, (8, 4, 4), generator=torch.Generator().manual_seed(0))
    labels[:, 0] = -100

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return {"image": labels[index].float()[None], "labels": labels[index]}

    result = fit(Net(), Images(), val=Images(), task="segmentation", epochs=40, lr=0.1, batch_size=4)
    assert result.last["val_accuracy"] == 1.0


def test_custom_likelihood_and_no_metric():
    def poisson(f, y):
        return y * f[:, 0] - f[:, 0].exp() - torch.lgamma(y + 1)

    model = nn.Linear(1, 1)
    model.weight.requires_grad_(False)  # inputs of zero tell it nothing
    counts = torch.full((32,), 5.0)
    result = fit(
        model, (torch.zeros(32, 1), counts), val=(torch.zeros(32, 1), counts), task=poisson, epochs=100, lr=0.1
    )
    assert model.bias.exp().item() == pytest.approx(5, rel=0.05)
    assert "val_accuracy" not in result.last
    assert record.get(model).likelihood is None


def test_a_seed_repeats_and_the_global_generators_do_not_notice():
    torch.manual_seed(5)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    runs = [mlp(bayesian=True) for _ in range(3)]
    torch.set_rng_state(states[0])
    losses = [
        fit(m, (X, LABELS), val=(X, LABELS), epochs=2, seed=s)["loss"] for m, s in zip(runs, (0, 0, 1), strict=True)
    ]
    assert losses[0] == losses[1] != losses[2]
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]
    assert random.getstate() == states[2]


def test_validation_does_not_disturb_training():
    model, watched = mlp(bayesian=True), mlp(bayesian=True)
    fit(model, (X, LABELS), epochs=3)
    fit(watched, (X, LABELS), val=DataLoader(TensorDataset(X, LABELS), shuffle=True, batch_size=7), epochs=3)
    for a, b in zip(model.parameters(), watched.parameters(), strict=True):
        assert torch.equal(a, b)


def test_validation_by_hand():
    model = mlp()
    data = [(X[:50], LABELS[:50]), (X[50:], LABELS[50:])]
    row = validate(model, Classification(), data, forward=model, device=torch.device("cpu"))
    logits = model(X)
    assert row["val_nll"] == pytest.approx(nn.functional.cross_entropy(logits, LABELS).item(), rel=1e-5)
    assert row["val_accuracy"] == pytest.approx((logits.argmax(1) == LABELS).float().mean().item())
    with pytest.raises(DataError, match="at least one batch"):
        validate(model, Classification(), [], forward=model, device=torch.device("cpu"))


def test_modes_are_kept():
    class Modes(Callback):
        def before_step(self, state):
            self.seen = [m.training for m in state.model]

    for training, frozen in ((True, True), (True, False), (False, False)):
        model, modes = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), Modes()
        model.train(training)
        if frozen:
            model[1].eval()
        fit(model, (X, LABELS), val=(X, LABELS), epochs=2, callbacks=[modes])
        assert modes.seen == [True, not frozen, True]
        assert (model.training, model[1].training) == (training, training and not frozen)


def test_clipping_bounds_the_gradient():
    class Norm(Callback):
        norms = ()

        def after_step(self, state):
            self.norms += (state.model.weight.grad.norm().item(),)

    free, bound = Norm(), Norm()
    for norm, clip in ((free, None), (bound, 0.01)):
        model = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(model.weight)
        fit(model, (X, 100 * LINE), task=Regression(std=1.0), epochs=1, batch_size=24, clip=clip, callbacks=[norm])
    assert min(free.norms) > 1
    assert max(bound.norms) <= 0.01 + 1e-6


def test_optimizers_and_schedulers():
    model = mlp()
    mine = torch.optim.SGD(model.parameters(), lr=0.5)
    fit(model, (X, LABELS), optimizer=mine, epochs=1, scheduler=torch.optim.lr_scheduler.StepLR(mine, 1, 0.1))
    assert mine.param_groups[0]["lr"] == pytest.approx(0.05)
    result = fit(
        mlp(),
        (X, LABELS),
        optimizer=lambda p: torch.optim.AdamW(p, lr=0.3),
        epochs=3,
        batch_size=48,
        scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5),
        scheduler_every="step",
    )
    assert result["lr"] == pytest.approx([0.3 / 4, 0.3 / 16, 0.3 / 64])
    assert fit(mlp(), (X, LABELS), optimizer=torch.optim.SGD, lr=0.7, epochs=1).last["lr"] == 0.7
    noisy, line = Regression("learned"), nn.Linear(2, 1)
    fit(line, (X, LINE), task=noisy, optimizer=torch.optim.SGD(line.parameters(), lr=0.1), epochs=1)
    assert noisy.std != 1.0  # an instance over the model alone is given the noise as well


def test_kl_schedule_in_fit():
    result = fit(mlp(bayesian=True), (X, LABELS), epochs=4, batch_size=48, kl_weight=warmup(0, 1, steps=4))
    assert result["kl_weight"] == [0.25, 0.75, 1.0, 1.0]


def test_jsonl(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("an older run\n")
    result = fit(mlp(), (X, LABELS), val=(X, LABELS), epochs=3, log=path)
    assert [json.loads(line) for line in path.read_text().splitlines()] == result.rows


def test_history():
    result = fit(mlp(), (X, LABELS), epochs=2)
    assert [row["epoch"] for row in result] == result["epoch"] == [0, 1]
    with pytest.raises(KeyError, match="val_nll"):
        result["val_nll"]


def test_tensorboard_is_optional(tmp_path):
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtraError, match=r"pip install 'leanbayes\[tensorboard\]'"):
            fit(mlp(), (X, LABELS), tensorboard=tmp_path)
    else:
        fit(mlp(), (X, LABELS), epochs=1, tensorboard=tmp_path)
        assert list(tmp_path.iterdir())


def test_double_and_mixed_precision():
    result = fit(mlp(bayesian=True), (X, LABELS), val=(X, LABELS), epochs=2, precision="bf16-mixed")
    assert math.isfinite(result.last["val_nll"])
    model = mlp(bayesian=True)
    fit(model, (X, LINE), val=(X, LINE), task=lambda f, y: -(f[:, 0] - y).square(), epochs=1, precision="64-true")
    assert next(model.parameters()).dtype == torch.float64


def test_iterables_need_num_data():
    batches = [(X[:48], LABELS[:48]), (X[48:], LABELS[48:])]
    assert fit(mlp(), batches, num_data=96, epochs=2).last["step"] == 4
    counted, given = (fit(mlp(bayesian=True), batches, epochs=1, **known) for known in ({}, {"num_data": 96}))
    assert counted.last["loss"] == given.last["loss"]

    class Unsized:
        def __iter__(self):
            return iter(batches)

    with pytest.raises(ConfigError, match="num_data"):
        fit(mlp(), Unsized())
    with pytest.raises(ConfigError, match="num_data: expected the number of training data"):
        fit(mlp(bayesian=True), batches, num_data="many")
    with pytest.raises(DataError, match="at least one batch in epoch 0"):
        fit(mlp(), [], num_data=3)


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": 0}, {"epochs": 1.5}, {"epochs": True}, {"lr": 0}, {"lr": math.nan}, {"lr": "fast"}, {"clip": -1},
        {"lr": 1e40}, {"scale_lr": 1e40},
        {"seed": 1.5}, {"seed": None}, {"batch_size": 0}, {"val_samples": 0}, {"kl_weight": -1}, {"kl_weight": "warm"},
        {"accumulate": 0}, {"accumulate": 2.5},
        {"num_data": 0}, {"num_data": 2.5}, {"task": "classify"}, {"task": nn.MSELoss()}, {"optimizer": "adam"},
        {"optimizer": lambda p: None}, {"optimizer": torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1)},
        {"scheduler": 3}, {"scheduler": lambda o: None}, {"scheduler_every": "year"}, {"callbacks": [3]},
        {"callbacks": 3}, {"early_stopping": 0}, {"accelerator": "abacus"}, {"accelerator": "cuda", "devices": 7},
        {"devices": -3}, {"strategy": "fsdp_hope"},
        {"strategy": "hope"}, {"precision": "7-bit"}, {"log": "/no/such/folder/log"}, {"log": 3},
        {"checkpoint": "/no/such/folder/a"}, {"resume": True}, {"val": 3}, {"val": (X, LABELS[:3])},
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_before_anything_happens(options):
    model = mlp()
    before = [p.clone() for p in model.parameters()]
    with pytest.raises((ConfigError, DataError)):
        fit(model, (X, LABELS), **options)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert record.get(model) is None


def test_bad_models_and_data():
    with pytest.raises(ConfigError, match=r"model: expected an nn\.Module"):
        fit(3, (X, LABELS))
    with pytest.raises(TrainingError, match="require gradients"):
        fit(mlp().requires_grad_(False), (X, LABELS))
    with pytest.raises(DataError, match="must yield"):
        fit(mlp(), (X,))
    with pytest.raises(DataError, match="received 2 at"):
        fit(mlp(), (X, LABELS + 1))
