"""Data that a model cannot learn from are refused, and leave it as it was."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes.errors import ConfigError, DataError, TrainingError
from leanbayes.training import checkpoint
from leanbayes.training.callbacks import Callback, EarlyStopping
from leanbayes.training.guard import Undo, check_inputs, finite

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()


def make(bayesian=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    if bayesian:
        lb.bayesianize_(model, lb.MeanField())
    return model


def spoiled(value, row=13):
    x = X.clone()
    x[row, 1] = value
    return x


class Record(Callback):
    """The state of the model after every step."""

    def __init__(self):
        self.states = []

    def after_step(self, state):
        self.states.append(copy.deepcopy(state.model.state_dict()))


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def refused(model, x, y, error, match, **options):
    """Train until the refusal; the model must be what it was before the step that failed."""
    start, record = copy.deepcopy(model.state_dict()), Record()
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    with pytest.raises(error, match=match):
        lb.fit(model, loader, epochs=2, progress=False, callbacks=[record], **options)
    assert same(model.state_dict(), [start, *record.states][-1])
    return len(record.states)


@pytest.mark.parametrize("bayesian", [False, True])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_inputs_that_are_not_finite(value, bayesian):
    steps = refused(make(bayesian), spoiled(value), Y, DataError, r"step 3 \(epoch 0\).* non-finite: .* at \[1, 1\]")
    assert steps == 3


def test_labels_out_of_range():
    labels = Y.clone()
    labels[13] = 2
    assert refused(make(), X, labels, DataError, "expected 0 to 1") == 3


def test_targets_of_the_wrong_kind():
    assert refused(make(), X, Y.float(), DataError, "expected integers") == 0
    spoiled_targets = spoiled(torch.nan)[:, :2]
    assert refused(make(), X, spoiled_targets, DataError, "finite targets", task=lb.Regression(std=1.0)) == 3
    # a noise level that is learned starts at the residuals of the first batches: found before the first step
    assert refused(make(), X, spoiled_targets, DataError, "finite targets", task="regression") == 0


def test_an_interrupt_within_a_step_leaves_the_statistics_of_its_start():
    class Interrupt(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            if self.calls == 4:
                raise KeyboardInterrupt
            return x

    assert refused(make().append(Interrupt()), X, Y, KeyboardInterrupt, "^$") == 3


@pytest.mark.parametrize(
    ("model", "inputs", "match"),
    [
        (torch.bfloat16, torch.float32, r"pass x\.to\(torch\.bfloat16\)"),
        (torch.float32, torch.float64, r"pass x\.float\(\), or .*model\.to\(torch\.float64\)"),
        (torch.float64, torch.float32, r"pass x\.double\(\)"),
        (torch.float32, torch.uint8, r"received torch\.uint8; pass x\.float\(\)$"),
    ],
)
@pytest.mark.parametrize("bayesian", [False, True])
def test_inputs_of_another_dtype_say_what_to_type(model, inputs, match, bayesian):
    net = make(bayesian).to(model)
    assert refused(net, X.to(inputs), Y, DataError, match) == 0
    with pytest.raises(DataError, match=match):
        lb.predict(net, X.to(inputs), samples=2, task="classification")


def test_autocast_takes_inputs_of_any_precision():
    lb.fit(make(), (X.bfloat16(), Y), epochs=1, precision="bf16-mixed", progress=False)


def test_masks_may_be_infinite():
    check_inputs({"x": X, "attention_mask": torch.tensor([0.0, -torch.inf])})
    check_inputs((X, torch.full((2,), 3e38)))  # the sum overflows, the numbers do not
    with pytest.raises(DataError, match="of 'x'"):
        check_inputs({"x": spoiled(torch.nan)})


@pytest.mark.parametrize(
    ("val", "match"),
    [
        ((X, Y + 1), "expected 0 to 1"),
        ((X, Y.float()), "expected integers"),
        ((spoiled(torch.nan, 0), Y), "val: the inputs"),
        ([], "at least one batch"),
    ],
)
def test_bad_validation_data_are_refused_before_the_first_step(tmp_path, val, match):
    for path in (None, tmp_path / "run.ckpt"):
        assert refused(make(), X, Y, DataError, match, val=val, checkpoint=path) == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("monitor", ["val_acuracy", "val_rmse", "accuracy"])
def test_a_mistyped_monitor_is_refused_before_the_first_step(monitor):
    stopping = EarlyStopping(monitor)
    assert (
        refused(
            make(),
            X,
            Y,
            ConfigError,
            f"val_nll, val_accuracy, received '{monitor}'",
            val=(X, Y),
            early_stopping=stopping,
        )
        == 0
    )


def test_a_monitor_that_a_callback_adds_is_fine():
    class Adds(Callback):
        def epoch_end(self, state):
            state.row["mine"] = 1.0

    result = lb.fit(make(), (X, Y), epochs=4, callbacks=[Adds()], early_stopping=EarlyStopping("mine", 2))
    assert "mine has not improved" in result.stopped
    with pytest.raises(ConfigError, match="mine, received 'yours'"):
        lb.fit(make(), (X, Y), epochs=4, callbacks=[Adds()], early_stopping=EarlyStopping("yours", 2))


def test_the_rehearsal_leaves_the_order_of_validation_alone():
    orders = []

    class Own(torch.utils.data.Sampler):
        def __init__(self):
            self.generator = torch.Generator().manual_seed(0)

        def __iter__(self):
            orders.append(torch.randperm(24, generator=self.generator).tolist())
            return iter(orders[-1])

        def __len__(self):
            return 24

    lb.fit(make(), (X, Y), val=DataLoader(TensorDataset(X, Y), 4, sampler=Own()), epochs=2)
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_recalibration_refuses_them_and_writes_nothing(value):
    model = make()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(DataError, match="non-finite"):
        lb.recalibrate_(model, DataLoader(TensorDataset(spoiled(value), Y), 4))
    model.insert(0, nn.Threshold(-10, 0))
    model[0].forward = lambda x: x * 3e38 * 3e38  # finite data, and a layer that makes them infinite
    with pytest.raises(DataError, match="every BatchNorm layer, received others at '2'"):
        lb.recalibrate_(model, DataLoader(TensorDataset(X, Y), 4))
    del model[0]
    assert same(model.state_dict(), before)


class Root(nn.Module):
    """sqrt has an infinite slope at 0, and 0 times it is not a number: a finite loss with a gradient that is not."""

    def forward(self, x):
        return (x * 0).square().sum(1, keepdim=True).sqrt() + x


def fragile():
    """Fine until a datum of zeros comes."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = make()

        def forward(self, x):
            out = self.inner(x)
            return Root()(out) if bool((x == 0).all(1).any()) else out

    return Net()


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("row", [13, 23])  # in the middle, and in the last step
def test_a_gradient_that_is_not_finite_is_not_stepped(tmp_path, row, clip):
    x = X.clone()
    x[row] = 0
    path = tmp_path / "run.ckpt"
    steps = refused(
        fragile(), x, Y, TrainingError, r"the gradient of 'inner\.0\.weight' is not.*resume=True and, say, a lower lr",
        clip=clip, checkpoint=path, checkpoint_every=1,
    )  # fmt: skip
    assert steps == row // 4
    model = fragile()  # the checkpoint is good: with other data the run goes on from there
    with pytest.warns(lb.LeanBayesWarning, match="the data are not those"):
        lb.fit(model, DataLoader(TensorDataset(X, Y), 4), epochs=2, clip=clip, callbacks=[Record()],
               checkpoint=path, checkpoint_every=1, resume=True, progress=False)  # fmt: skip
    assert finite(model.parameters())


def test_parameters_that_overflow_are_not_saved(tmp_path):
    path = tmp_path / "run.ckpt"
    options = {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=3e38), "checkpoint_every": 1}
    with pytest.raises(TrainingError, match=r"step 1 .* parameter 'weight' is no longer finite, though"):
        lb.fit(nn.Linear(3, 2), (1e3 * X, Y), epochs=1, batch_size=24, progress=False, checkpoint=path, **options)
    assert checkpoint.read(path)["position"]["step"] == 0


def test_sparse_and_huge_gradients_are_judged_by_their_numbers():
    embedding = nn.Embedding(5, 2, sparse=True)
    embedding(torch.tensor([1, 2])).sum().backward()
    assert finite([embedding.weight.grad])
    assert finite([torch.full((10,), 3e38)])
    assert finite([])
    assert not finite([torch.ones(2), torch.tensor([[torch.nan]])])


def test_undo_puts_back_buffers_changed_in_any_way():
    model, elbo = make(), lb.ELBO("classification", num_data=24)
    model.register_buffer("mask", torch.ones(3))
    undo = Undo(model, elbo)
    for _ in range(3):
        undo.mark()
        before, mask = copy.deepcopy(model.state_dict()), model.mask
        model.mask.mul_(2)
        elbo(model, model(X), Y)
        model.mask = torch.zeros(3)
        undo.restore()
        assert same(model.state_dict(), before)
        assert model.mask is mask
        assert elbo.step == 0
        model.mask.add_(1)
        model(X)
