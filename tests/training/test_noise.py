"""`tune_noise_`: the amount of noise that held-out data choose, and no trace of the amounts that were tried."""

import copy
import math
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

import leanbayes as lb
from leanbayes.convert.record import conversions
from leanbayes.errors import ConfigError, DataError
from leanbayes.methods.ensemble.layer import layers as ensemble_layers
from leanbayes.training import data as feeds
from leanbayes.training.noise import SHARE, limited_, scale_noise_
from leanbayes.training.noise_trials import Trials, put_back

METHODS = [
    lb.MeanField(),
    lb.VariationalDropout(parameterisation="multiplicative", granularity="layer"),
    lb.Variance(),
    lb.SparseSubspace(density=0.5),
    lb.Patch(),
    lb.Ensemble(3, init="perturb"),
    lb.Ensemble(2, method=lb.MeanField(), init="perturb"),
    lb.Dropout(0.2),
    lb.Nested(),
]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def converted(method):
    model = network()
    lb.bayesianize_(model, method)
    return model.eval()


def problem(count=400, seed=0):
    """Labels that the inputs tell in part."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator)
    scores = x[:, :3] + torch.randn(count, 3, generator=generator)
    return x, scores.argmax(1)


def spread(model, x):
    """The standard deviation of the logits over samples."""
    kept = lb.predict(model, x, samples=300, task="classification", keep_samples=True)
    return float(kept.samples.log().std(0).mean())


def state(model):
    return {name: t.clone() for name, t in model.state_dict().items() if isinstance(t, torch.Tensor)}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(t, second[name]) for name, t in first.items())


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_factor_multiplies_the_spread_and_keeps_the_means(method):
    model = converted(method)
    before = [m.mean.clone() for m in model.modules() if isinstance(m, lb.posteriors.Posterior)]
    x = problem(20)[0]
    little = spread(model, x)
    scale_noise_(model, 0.25)
    after = [m.mean for m in model.modules() if isinstance(m, lb.posteriors.Posterior)]
    for a, b in zip(before, after, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    assert 0.15 < spread(model, x) / little < 0.4


def test_members_of_an_ensemble_keep_their_mean():
    model = converted(lb.Ensemble(3, init="perturb"))
    members = ensemble_layers(model)[0].members
    mean = torch.stack([m.weight for m in members]).mean(0)
    distance = (members[1].weight - mean).norm()
    scale_noise_(model, 2.0)
    torch.testing.assert_close(torch.stack([m.weight for m in members]).mean(0), mean)
    torch.testing.assert_close((members[1].weight - mean).norm(), 2 * distance)


def test_dropout_has_the_rate_whose_deviation_is_so_much_larger():
    model = converted(lb.Dropout())
    scale_noise_(model, 2.0)
    assert math.isclose(model[3].rate, 0.5)  # odds of 1/4 become 1
    assert model[3].method == lb.Dropout(0.5)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_what_is_chosen_survives_a_file_and_what_is_not_leaves_no_trace(method, tmp_path):
    x, y = problem(60)
    model = converted(method)
    before = state(model)
    found = lb.tune_noise_(model, (x, y), task="classification", samples=2)
    if found.factor == 1.0:
        assert same(before, state(model))
    lb.save(model, tmp_path / "model.safetensors")
    again = lb.load(tmp_path / "model.safetensors", into=network())
    torch.testing.assert_close(lb.predict(again, x, samples=4).probs, lb.predict(model, x, samples=4).probs)


def overconfident(scale=1.0):
    """A network that is right in three of four cases and always sure."""
    model = nn.Sequential(nn.Linear(4, 3, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(8 * torch.eye(3, 4))
    lb.bayesianize_(model, lb.MeanField(scale=scale))
    return model


def test_noise_grows_where_a_network_is_too_sure_and_shrinks_where_it_doubts_too_much():
    data = problem()
    sure = lb.tune_noise_(overconfident(0.02), data, task="classification")
    assert sure.factor > 1
    assert sure.chosen.gain > sure.chosen.error
    doubtful = converted(lb.MeanField(scale=3.0))
    lb.fit(doubtful, data, epochs=3, lr=0.02, progress=False)
    assert lb.tune_noise_(doubtful, data).factor < 1


def test_more_noise_may_not_cost_accuracy():
    """The NLL likes factor 4 best, where more data are wrong than at 1: 4 of 400 are allowed, or one of few."""
    for count, wrong, chosen in ((400, 4, 4.0), (400, 5, 2.0), (20, 1, 4.0), (20, 2, 2.0)):
        trials = Trials(network(), lb.Classification(), lambda: iter(()), lambda data: None)
        for factor, nll in ((1.0, 0.9), (2.0, 0.8), (4.0, 0.6)):
            right = torch.ones(count, dtype=torch.float64)
            right[: wrong if factor == 4 else 0] = 0
            trials.right.append(right)
            trials._add(factor, None, torch.full((count,), -nll))
        assert trials.best().factor == chosen
        assert trials.best().accuracy == pytest.approx(1 - (wrong / count if chosen == 4 else 0))


def test_few_data_change_nothing():
    x, y = problem(3)
    assert lb.tune_noise_(converted(lb.MeanField()), (x, y), task="classification").factor == 1.0
    one = lb.tune_noise_(overconfident(0.02), (x[:1], y[:1]), task="classification")
    assert one.factor == 1.0


def test_a_second_tuning_stays_near_the_first():
    model, data = overconfident(0.2), problem()
    lb.tune_noise_(model, data, task="classification")
    assert lb.tune_noise_(model, data).factor in (0.5, 1.0, 2.0)


def test_noise_of_targets_is_that_of_held_out_data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(300, 20, generator=generator)
    y = x[:, :1] + 0.5 * torch.randn(300, 1, generator=generator)
    model = nn.Sequential(nn.Linear(20, 200), nn.ReLU(), nn.Linear(200, 1))
    options = {"task": "regression", "epochs": 60, "lr": 0.01, "progress": False}
    history = lb.fit(model, (x[:40], y[:40]), val=(x[40:], y[40:]), **options)
    errors = lb.predict(model, x[40:]).mean - y[40:]
    assert history.tuning.tried[0].std < 0.8 * history.tuning.std  # a network that fits its data too closely
    above = 1 + 1 / (2 * 260) ** 0.5  # one standard error
    assert abs(history.tuning.std / float(errors.square().mean().sqrt()) / above - 1) < 0.03
    low, high = lb.predict(model, x[40:]).interval(0.95)
    assert 0.9 < float(((y[40:] >= low) & (y[40:] <= high)).float().mean()) < 0.99


def test_fit_tunes_where_it_has_held_out_data_and_is_not_told_otherwise():
    x, y = problem()
    first, second = (x[:200], y[:200]), (x[200:], y[200:])
    model = converted(lb.MeanField())
    assert lb.fit(copy.deepcopy(model), first, epochs=1, progress=False).tuning is None
    assert lb.fit(copy.deepcopy(model), first, val=second, epochs=1, tune=False, progress=False).tuning is None
    assert lb.fit(network(), first, val=second, epochs=1, progress=False).tuning is None  # nothing in it is random
    history = lb.fit(model, first, val=second, epochs=1, progress=False)
    assert history.to_dict()["tuning"]["factor"] == history.tuning.factor
    assert "chosen" in str(history.tuning)


def line(count=200, seed=0):
    """Targets that are a function of the inputs, all but a little noise, and a network that knows it."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator)
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(count, 1, generator=generator)
    model = nn.Sequential(nn.Linear(4, 64), nn.Identity(), nn.Linear(64, 1))
    with torch.no_grad():
        for layer, weight in ((model[0], torch.eye(4).repeat(16, 1)), (model[2], torch.full((1, 64), 1 / 16))):
            layer.weight.copy_(weight)
            layer.bias.zero_()
    return model, (x, y)


def ratio(model, data):
    """The variance that noise adds to the outputs, relative to the squared residuals."""
    said = lb.predict(model, data[0], samples=300, task=lb.Regression(std=1e-3), keep_samples=True)
    return float(said.samples.var(0).mean() / (said.mean - data[1]).square().mean())


@pytest.mark.parametrize("method", [lb.MeanField(), lb.Dropout(), lb.Patch(), lb.Ensemble(3), lb.Nested()], ids=str)
def test_noise_starts_small_beside_the_residuals_of_a_regression(method):
    model, data = line()
    lb.bayesianize_(model, method)
    before, methods = state(model), {name: m.method for name, m in model.named_modules() if hasattr(m, "method")}
    feed = feeds.feed(data, batch_size=50, seed=0, training=False)
    limits = limited_(model, lb.Regression(), feed, seed=0)
    assert SHARE / 8 < ratio(model, data) < 1.5 * SHARE  # halved as often as needed, and no more
    assert not limited_(model, lb.Regression(), feed, seed=0).factors
    put_back(limits.undo)
    assert same(before, state(model))
    assert methods == {name: m.method for name, m in model.named_modules() if hasattr(m, "method")}


class StopOnce(lb.Callback):
    stopped = False

    def epoch_end(self, state):
        if not StopOnce.stopped:
            StopOnce.stopped = True
            raise KeyboardInterrupt


@pytest.mark.parametrize("method", [lb.Dropout(0.3), lb.MeanField(), lb.Ensemble(2, method=lb.Dropout(0.3))], ids=str)
def test_a_run_continued_from_other_weights_has_the_noise_that_it_began_with(method, tmp_path):
    path, states, StopOnce.stopped = tmp_path / "run.ckpt", [], False
    for shift in (0.0, 0.0, 5.0):  # the last has residuals so large that its own noise would stay as it is
        model, (x, y) = line()
        model[-1].bias.data += shift
        lb.bayesianize_(model, method)
        options = {"task": "regression", "epochs": 2, "batch_size": 50, "progress": False, "checkpoint": path}
        if not StopOnce.stopped:
            with pytest.raises(KeyboardInterrupt):
                lb.fit(model, (x, y), val=(x, y), callbacks=[StopOnce()], **options)
            written = path.read_bytes()
        else:
            path.write_bytes(written)
            lb.fit(model, (x, y), val=(x, y), callbacks=[StopOnce()], resume=True, **options)
            states.append((state(model), [m.mask.rate for m in model.modules() if hasattr(m, "mask")]))
    assert same(states[0][0], states[1][0])
    assert states[0][1] == states[1][1]


def test_noise_stays_where_residuals_are_large_or_nothing_is_to_be_tuned():
    model, (x, y) = line()
    rough = x, y + torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    lb.bayesianize_(model, lb.Dropout(0.05))
    feed = feeds.feed(rough, batch_size=50, seed=0, training=False)
    assert not limited_(model, lb.Regression(), feed, seed=0).factors
    lb.fit(model, (x, y), val=(x, y), task="regression", epochs=1, tune=False, progress=False)
    assert model[2].mask.rate == 0.05


def test_training_keeps_the_means_of_a_network_whose_residuals_are_small():
    errors = {}
    for tune in (True, False):
        model, (x, y) = line()
        lb.bayesianize_(model, lb.Dropout(0.5))
        options = {"task": "regression", "epochs": 10, "batch_size": 20, "progress": False, "tune": tune}
        lb.fit(model, (x[:100], y[:100]), val=(x[100:], y[100:]), **options)
        said = lb.predict(model, x[100:], samples=1, mean_only=True)
        errors[tune] = float((said.mean - y[100:]).square().mean().sqrt())
    assert errors[True] < 0.115  # 0.1 is the noise of the targets
    assert errors[False] > 1.2 * errors[True]


def test_a_run_that_does_not_start_leaves_the_noise_as_it_was():
    model, (x, y) = line()
    lb.bayesianize_(model, lb.Dropout(0.05))
    wrong = torch.full_like(x, math.nan)
    with pytest.raises(DataError, match="nan"):
        lb.fit(model, (wrong, y), val=(x, y), task="regression", epochs=1, progress=False)
    assert model[2].mask.rate == 0.05


def test_a_resumed_regression_has_the_noise_of_its_start(tmp_path):
    runs = []
    for epochs, file in ((3, None), (1, "run"), (3, "run")):
        model, (x, y) = line()
        lb.bayesianize_(model, lb.Dropout(0.05))
        own = {} if file is None else {"checkpoint": tmp_path / file, "resume": True}
        options = {"task": "regression", "val": (x[100:], y[100:]), "batch_size": 20, "progress": False}
        lb.fit(model, (x[:100], y[:100]), epochs=epochs, **options, **own)
        runs.append(model)
    assert same(state(runs[0]), state(runs[2]))
    assert runs[0][2].method == runs[2][2].method


def test_a_model_whose_noise_was_tuned_resumes_from_where_it_began(tmp_path):
    """The same cell run again: the model has other weights, and another rate, than the run began with."""
    for task, make in (("regression", line), ("classification", None)):
        runs = []
        for repeated in (False, True):
            model, (x, y) = make() if make else (network(), problem())
            lb.bayesianize_(model, lb.Dropout(0.05))
            scale_noise_(model, 3.0)  # a run that does not begin at the rate of the method
            own = {"checkpoint": tmp_path / f"{task}{repeated}", "resume": True, "task": task}
            options = {"val": (x[100:], y[100:]), "batch_size": 20, "progress": False, **own}
            if repeated:
                lb.fit(model, (x[:100], y[:100]), epochs=1, **options)
                scale_noise_(model, 5.0)
            lb.fit(model, (x[:100], y[:100]), epochs=3, **options)
            runs.append(model)
        assert same(state(runs[0]), state(runs[1]))
        assert conversions(runs[0]) == conversions(runs[1])


def test_a_resumed_run_ends_with_the_same_noise(tmp_path):
    x, y = problem()
    options = {"val": (x[200:], y[200:]), "batch_size": 50, "progress": False}
    whole, parts = converted(lb.Dropout()), converted(lb.Dropout())
    lb.fit(whole, (x[:200], y[:200]), epochs=3, **options)
    lb.fit(parts, (x[:200], y[:200]), epochs=1, checkpoint=tmp_path / "run", **options)
    resumed = converted(lb.Dropout())
    lb.fit(resumed, (x[:200], y[:200]), epochs=3, checkpoint=tmp_path / "run", resume=True, **options)
    assert same(state(whole), state(resumed))
    assert whole[3].method == resumed[3].method


def test_statistics_of_members_are_their_own():
    model = converted(lb.Ensemble(3, init="perturb"))
    x, y = problem()
    lb.fit(model, (x, y), epochs=3, batch_size=50, progress=False)
    scale_noise_(model, 3.0)
    lb.recalibrate_(model, (x,), passes=3)
    for member, norm in zip(ensemble_layers(model)[0].members, ensemble_layers(model)[1].members, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(norm.running_mean, member(x).mean(0), atol=0.1, rtol=0.1)


def test_bad_input_is_refused():
    x, y = problem(20)
    with pytest.raises(ConfigError, match="noise to tune"):
        lb.tune_noise_(network(), (x, y), task="classification")
    with pytest.raises(ConfigError, match="pass task"):
        lb.tune_noise_(converted(lb.MeanField()), (x, y))
    with pytest.raises(DataError):
        lb.tune_noise_(converted(lb.MeanField()), [], task="classification")
    with pytest.raises(ConfigError, match="samples"):
        lb.tune_noise_(converted(lb.MeanField()), (x, y), task="classification", samples=0)
    with pytest.raises(ConfigError, match="factor"):
        scale_noise_(converted(lb.MeanField()), 0.0)


class Jittered(Dataset):
    """Draws from the generators that `torch.manual_seed` does not seed."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        x = torch.full((4,), index / 32 - 1 + random.random() + float(np.random.rand()))
        return x, x.sum(0, keepdim=True)


def test_the_amount_does_not_depend_on_generators_that_nobody_seeded():
    def tuned(seed):
        model, train_data = line()
        sampler = WeightedRandomSampler([1.0] * 64, 32, generator=torch.Generator().manual_seed(1))
        val = DataLoader(Jittered(), 16, sampler=sampler)
        random.seed(seed)
        np.random.seed(seed)
        lb.bayesianize_(model, lb.Dropout(0.3))
        told = lb.fit(model, train_data, val=val, epochs=1, task="regression", progress=False)
        return told.tuning.tried, model.state_dict()

    (first, one), (second, other) = tuned(1), tuned(2)
    assert first == second
    assert all(torch.equal(one[name], other[name]) for name in one)
