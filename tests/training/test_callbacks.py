import math

import pytest
import torch
from torch import nn

from leanbayes.errors import ConfigError
from leanbayes.training.callbacks import Callback, EarlyStopping, State, callbacks, check, notify
from leanbayes.training.fit import fit

X = torch.linspace(-1, 1, 32).unsqueeze(1)
Y = 2 * X


class Log(Callback):
    def __init__(self):
        self.calls, self.norms = [], []

    def fit_start(self, state):
        self.calls.append("fit_start")

    def before_step(self, state):
        assert state.terms is None
        self.calls.append("before_step")

    def after_backward(self, state):
        assert math.isfinite(state.terms.loss.item())
        self.norms.append(state.model.weight.grad.norm().item())
        self.calls.append("after_backward")

    def after_step(self, state):
        self.calls.append(f"after_step {state.step} of {state.total_steps}")

    def epoch_end(self, state):
        self.calls.append(f"epoch_end {state.row['epoch']}")

    def fit_end(self, state):
        self.calls.append("fit_end")


def test_order_of_the_hooks():
    log = Log()
    fit(nn.Linear(1, 1), (X, Y), task="regression", epochs=2, batch_size=32, callbacks=[log])
    one = ["before_step", "after_backward"]
    assert log.calls == [
        "fit_start", *one, "after_step 1 of 2", "epoch_end 0", *one, "after_step 2 of 2", "epoch_end 1", "fit_end"
    ]  # fmt: skip


def test_any_hook_will_do_and_none_will_not():
    class Duck:
        seen = 0

        def after_step(self, state):
            self.seen += 1

    duck = Duck()
    fit(nn.Linear(1, 1), (X, Y), task="regression", epochs=1, batch_size=8, callbacks=[duck])
    assert duck.seen == 4
    for wrong in ([object()], [Duck], Duck(), 3):
        with pytest.raises(ConfigError, match="callbacks"):
            check(wrong)
    with pytest.raises(ConfigError, match="before_step"):
        notify([], "on_step", State(nn.Linear(1, 1), None))
    assert callbacks(nn.Linear(1, 1)) == []


def test_a_callback_can_stop():
    class Enough(Callback):
        def epoch_end(self, state):
            if state.row["nll"] < 1.2:
                state.stop = "good enough"

    result = fit(nn.Linear(1, 1), (X, Y), task="regression", epochs=500, lr=0.1, callbacks=[Enough()])
    assert result.stopped == "good enough"
    assert len(result) < 500
    assert result["nll"][-1] < 1.2 <= result["nll"][-2]


def rows(stopping, values, name="val_nll"):
    """Epochs run until it stops, on a made-up history."""
    model = nn.Linear(1, 1)
    state = State(model, None)
    for state.epoch, value in enumerate(values):
        nn.init.constant_(model.weight, state.epoch)
        state.row = {name: value}
        stopping.epoch_end(state)
        if state.stop:
            break
    stopping.fit_end(state)
    return state


def test_early_stopping_waits_for_its_patience():
    state = rows(EarlyStopping(patience=2), [3.0, 2.0, 2.5, 2.0, 1.0])
    assert (state.epoch, state.stop) == (3, "val_nll has not improved for 2 epoch(s) since epoch 1")
    assert rows(EarlyStopping(patience=2), [3.0, 2.0, None, 1.5, math.nan, 1.0]).stop is None
    assert rows(EarlyStopping(patience=1, min_delta=0.5), [3.0, 2.8]).epoch == 1
    accuracy = EarlyStopping("val_accuracy", patience=1)
    assert rows(accuracy, [0.5, 0.6, 0.55], "val_accuracy").epoch == 2


def test_early_stopping_restores_the_best():
    assert rows(EarlyStopping(patience=2, restore_best=True), [3.0, 1.0, 2.0, 2.0]).model.weight.item() == 1
    assert rows(EarlyStopping(patience=2), [3.0, 1.0, 2.0, 2.0]).model.weight.item() == 3


def test_early_stopping_in_fit():
    result = fit(
        nn.Linear(1, 1), (X, Y), val=(X, -Y), task="regression", epochs=50, lr=0.1, early_stopping=3, progress=False
    )
    assert "val_nll" in result.stopped
    assert len(result) == result["val_nll"].index(min(result["val_nll"])) + 4


def test_early_stopping_is_refused_early():
    with pytest.raises(ConfigError, match="pass val="):
        fit(nn.Linear(1, 1), (X, Y), task="regression", early_stopping=3)
    with pytest.raises(ConfigError, match="expected one of loss"):
        fit(nn.Linear(1, 1), (X, Y), task="regression", epochs=1, early_stopping=EarlyStopping("accuracy"))
    for bad in ({"patience": 0}, {"patience": True}, {"monitor": 3}, {"mode": "up"}, {"min_delta": -1}):
        with pytest.raises(ConfigError, match="EarlyStopping"):
            EarlyStopping(**bad)
