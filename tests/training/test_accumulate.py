"""Gradients of several batches in one step: that of the larger batch, in numbers, schedules and checkpoints."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import leanbayes as lb
from leanbayes.errors import DataError, LeanBayesWarning

X = torch.randn(22, 5, generator=torch.Generator().manual_seed(0))
Y = X.sum(1) + 0.1 * torch.randn(22, generator=torch.Generator().manual_seed(1))
LABELS = (Y > 0).long()


def make(method, outputs=1):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, outputs))
    if method is not None:
        lb.bayesianize_(model, method)
    return model


def train(model, batch_size, accumulate, data=(X, Y), task="regression", **options):
    settings = {"epochs": 3, "lr": 0.01, "progress": False, "kl_weight": lb.warmup(0.1, 1, steps=7), **options}
    return lb.fit(model, data, task=task, batch_size=batch_size, accumulate=accumulate, **settings)


@pytest.mark.parametrize(
    "method",
    [
        None,
        lb.MeanField(std=0.1, prior=lb.Normal(std=1.0)),
        {"2": lb.MeanField(std=0.1, prior=lb.Normal(std=1.0))},
        lb.SparseSubspace(density=0.5, interval=2, addition="mean"),
        lb.Ensemble(members=2),
    ],
    ids=["plain", "mean-field", "last layer", "sparse", "ensemble"],
)
def test_the_step_is_that_of_one_batch(method):
    # 22 data: batches of 4 in groups of 2 leave a step of 4 + 2 data, whose gradients must not count alike
    whole, parts = make(method), make(method)
    with lb.using(mean_only=method is not None and not isinstance(method, lb.Ensemble)):
        expected = train(
            whole, 8, 1, clip=1.0, scheduler=lambda o: LambdaLR(o, lambda t: 0.9**t), scheduler_every="step"
        )
        found = train(parts, 4, 2, clip=1.0, scheduler=lambda o: LambdaLR(o, lambda t: 0.9**t), scheduler_every="step")
    for name, tensor in whole.state_dict().items():
        if isinstance(tensor, torch.Tensor):
            torch.testing.assert_close(parts.state_dict()[name], tensor, rtol=1e-5, atol=1e-6)
    for row, other in zip(expected.rows, found.rows, strict=True):
        assert row["step"] == other["step"]
        assert row["lr"] == other["lr"]
        assert row["kl_weight"] == other["kl_weight"]
        for name in ("loss", "nll", "kl"):
            assert row[name] == pytest.approx(other[name], rel=1e-5, abs=1e-6)


def test_callbacks_see_steps_and_their_terms():
    class Watch(lb.Callback):
        def __init__(self):
            self.calls, self.nll, self.again = [], [], []

        def before_step(self, state):
            self.calls.append(("before", state.step, state.total_steps))

        def after_backward(self, state):
            self.calls.append(("backward", state.step))
            self.nll.append(float(state.terms.nll))
            self.again.append(float(state.closure().detach()))

        def after_step(self, state):
            self.calls.append(("after", state.step))

    watches = [Watch(), Watch()]
    models = [make(None), make(None)]
    for watch, model, batch_size, accumulate in zip(watches, models, (22, 4), (1, 6), strict=True):
        train(model, batch_size, accumulate, epochs=2, callbacks=[watch], optimizer=torch.optim.SGD)
    assert watches[0].calls == watches[1].calls
    assert watches[1].calls[0] == ("before", 0, 2)
    assert watches[0].nll == pytest.approx(watches[1].nll, rel=1e-6)
    assert watches[1].again == pytest.approx(watches[1].nll, rel=1e-6)


def test_a_run_that_was_stopped_between_steps_goes_on_bit_by_bit(tmp_path):
    class Stop(lb.Callback):
        def __init__(self, at):
            self.at = at

        def before_step(self, state):
            if state.step == self.at:
                raise KeyboardInterrupt

    method, path = lb.MeanField(std=0.1), tmp_path / "run.ckpt"
    straight, rough = make(method), make(method)
    expected = train(straight, 4, 2)
    kept = {"checkpoint": path, "checkpoint_every": 1, "resume": True}
    with pytest.raises(KeyboardInterrupt):  # in the second step of the second epoch; there are three an epoch
        train(make(method), 4, 2, callbacks=[Stop(4)], **kept)
    found = train(rough, 4, 2, callbacks=[Stop(None)], **kept)
    assert [row["step"] for row in found.rows] == [3, 6, 9]
    assert [row["loss"] for row in found.rows] == [row["loss"] for row in expected.rows]
    for name, tensor in straight.state_dict().items():
        assert torch.equal(tensor, rough.state_dict()[name])


def test_a_batch_that_fails_in_the_middle_of_a_step_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    targets = Y.clone()
    targets[9] = torch.inf
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, targets), batch_size=4)
    with pytest.raises(DataError, match="finite targets"):
        train(model, 4, 3, data=loader, epochs=1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_warnings_of_the_first_step_come_once():
    model = make(lb.MeanField(prior=lb.Normal(std=1e-3)))
    with pytest.warns(LeanBayesWarning, match="the KL counts") as caught:
        train(model, 4, 3, epochs=1, kl_weight=1.0)
    assert sum("the KL counts" in str(warning.message) for warning in caught) == 1
