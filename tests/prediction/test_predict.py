import copy
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes.errors import LeanBayesWarning, PredictionError

from ..snapshots import snapshot
from .networks import Prefixed, close, images, mlp, prefixed

MODELS = {
    "prefix": (prefixed, images),
    "mlp": (mlp, lambda n=7: torch.randn(n, 4)),
    "dropout": (lambda: mlp(lb.Dropout(0.5)), lambda n=7: torch.randn(n, 4)),
    "variational dropout": (lambda: mlp(lb.VariationalDropout(log_alpha=-1.0)), lambda n=7: torch.randn(n, 4)),
}


@pytest.mark.parametrize("case", MODELS)
def test_a_seed_repeats_an_answer_whatever_the_chunk_strategy_or_loader(case):
    make, inputs = MODELS[case]
    model, x = make(), inputs()
    reference = lb.predict(model, x, samples=10, seed=3, task="classification", strategy="loop", keep_samples=True)
    for chunk in (1, 3, 16, None):
        for strategy in ("loop", "vmap", "auto"):
            other = lb.predict(
                model, x, samples=10, seed=3, chunk=chunk, task="classification", strategy=strategy, keep_samples=True
            )
            assert close(reference, other)
            assert torch.allclose(reference.samples, other.samples, atol=1e-6)
            assert other.engine == (strategy if strategy != "auto" else other.engine)
    loader = DataLoader(TensorDataset(x, torch.zeros(len(x))), batch_size=3)
    assert close(reference, lb.predict(model, loader, samples=10, seed=3, task="classification"))
    assert not close(reference, lb.predict(model, x, samples=10, seed=4, task="classification"))


@pytest.mark.parametrize("case", MODELS)
def test_the_mode_does_not_matter_and_nothing_is_touched(case):
    make, inputs = MODELS[case]
    model, x = make(), inputs()
    model.train()
    answers = []
    for mode in (True, False):
        model.train(mode)
        for module in list(model.modules())[1:3]:
            module.training = not mode
        before = snapshot(model)
        answers += [
            lb.predict(model, x, samples=4, task="classification"),
            lb.predict(model, x, samples=4, task="classification", strategy="vmap"),
            lb.predict(model, x, samples=4, task="classification", estimator="local"),
            lb.predict(model, x, mean_only=True, task="classification"),
        ]
        assert snapshot(model) == before
    assert all(close(a, b) for a, b in zip(answers[:4], answers[4:], strict=True))
    assert not answers[0].mean.requires_grad


def test_flags_and_random_state_survive_an_error():
    model = prefixed().train()
    before = snapshot(model)
    with pytest.raises(RuntimeError):
        lb.predict(model, torch.ones(2, 5), task="classification")
    assert snapshot(model) == before
    assert torch.backends.mha.get_fastpath_enabled()


def test_no_seed_takes_one_from_the_global_generator():
    model, x = mlp(), torch.randn(3, 4)
    answers = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        answers.append(lb.predict(model, x, samples=3, seed=None, task="classification"))
    assert close(answers[0], answers[1])
    assert not close(answers[0], answers[2])


def test_other_estimators_repeat_and_draw_anew_for_every_batch():
    model = mlp()
    x = torch.ones(1, 4).expand(8, 4)
    for estimator in ("local", "flipout"):
        first, second = (lb.predict(model, x, samples=5, task="classification", estimator=estimator) for _ in range(2))
        assert close(first, second)
        loader = DataLoader(TensorDataset(x), batch_size=1)
        rows = lb.predict(model, loader, samples=5, task="classification", estimator=estimator).probs
        assert len(rows.unique(dim=0)) == 8


def test_the_deterministic_prefix_runs_once_however_many_samples():
    model, x, rows = prefixed(), images(5), []
    model.features.register_forward_hook(lambda m, a, y: rows.append(y.shape[0]))
    pred = lb.predict(model, x, samples=50, task="classification")
    assert pred.engine == "vmap"
    # one datum to count the arithmetic, one to try vmap, and then every datum once
    assert rows == [1, 1, 5]


@pytest.mark.parametrize("strategy", ["vmap", "loop"])
@pytest.mark.parametrize("chunk", [1, 3, 10])
def test_memory_is_bounded_by_the_chunk(strategy, chunk):
    model, x = prefixed(), images(6)
    seen = []

    def pairs(module, arguments, output):
        levels = torch._C._functorch
        batched = levels.is_batchedtensor(output)
        seen.append((levels.get_unwrapped(output) if batched else output).numel() // 3)

    model.head.register_forward_hook(pairs)
    lb.predict(model, x, samples=4, chunk=chunk, strategy=strategy, task="classification")
    assert max(seen[2:]) <= chunk  # after the counting and the trial


def test_auto_takes_the_loop_where_vmap_does_not_pay():
    heavy = nn.Sequential(nn.Conv2d(3, 64, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 2))
    lb.bayesianize_(heavy, lb.MeanField())
    assert lb.predict(heavy, torch.randn(16, 3, 32, 32), samples=2, task="classification").engine == "loop"
    assert lb.predict(mlp(), torch.randn(3, 4), samples=4, task="classification").engine == "vmap"  # all overhead
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    lb.bayesianize_(net, lb.Dropout(0.5))  # the convolution is before the first mask
    assert lb.predict(net, images(), samples=8, task="classification").engine == "vmap"


class Refusing(Prefixed):
    def forward(self, x):
        y = super().forward(x)
        return y if y.sum().item() < math.inf else -y


def test_a_model_that_vmap_refuses_warns_and_runs_in_a_loop():
    model, x = Refusing(), images()
    lb.bayesianize_(model, {"head": lb.MeanField(std=0.3)})
    with pytest.warns(LeanBayesWarning, match="cannot vectorise"):
        pred = lb.predict(model, x, samples=5, task="classification")
    assert pred.engine == "loop"
    assert close(pred, lb.predict(model, x, samples=5, task="classification", strategy="loop"))


def test_asking_for_vmap_where_it_is_refused_always_warns():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            y = self.fc(x)
            return y if y.sum().item() < math.inf else -y

    model = Net()
    lb.bayesianize_(model, lb.MeanField())
    with pytest.warns(LeanBayesWarning, match="cannot vectorise"):
        lb.predict(model, torch.ones(2, 4), samples=3, strategy="vmap", task="classification")


def test_draws_have_the_law_of_the_posterior():
    model = nn.Sequential(nn.Linear(3, 2))
    lb.bayesianize_(model, lb.MeanField(std=0.4))
    x, n = torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, 1.0]]), 4000
    pred = lb.predict(model, x, samples=n, task="regression", chunk=10_000)
    q = model[0].posteriors
    mean = x @ q["weight"].mean.T + q["bias"].mean
    variance = x.square() @ q["weight"].variance.T + q["bias"].variance
    assert ((pred.mean - mean).abs() < 4.5 * (variance / n).sqrt()).all()
    assert ((pred.epistemic / variance - 1).abs() < 4.5 * math.sqrt(2 / n)).all()
    # whole networks: two data share their weights
    joint = pred.samples - pred.samples.mean(0)
    covariance = (joint[:, 0] * joint[:, 1]).mean(0)
    expected = (x[0] * x[1]) @ q["weight"].variance.T + q["bias"].variance
    spread = ((variance[0] * variance[1] + expected.square()) / n).sqrt()
    assert ((covariance - expected).abs() < 4.5 * spread).all()


def test_samples_of_different_numbers_sites_and_seeds_are_unrelated():
    model = nn.Sequential(nn.Linear(1, 40, bias=False), nn.Linear(40, 1, bias=False))
    lb.bayesianize_(model, lb.MeanField())
    from leanbayes.sampling import noise_of, sites

    draws = [
        noise_of(s, seed, i, k).flatten()
        for i, s in enumerate(sites(model).values())
        for seed in (0, 1, -1)
        for k in range(8)
    ]
    correlation = torch.corrcoef(torch.stack(draws)) - torch.eye(len(draws))
    assert correlation.abs().max() < 5 / math.sqrt(40)


def test_dropout_masks_in_predict_have_the_law_of_the_rate():
    model = nn.Sequential(nn.Linear(1, 50), nn.Dropout(0.25))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.zero_()
    lb.bayesianize_(model, lb.Dropout())
    pred = lb.predict(model, torch.ones(3, 1), samples=400, task="regression")
    assert torch.equal(pred.samples[:, 0], pred.samples[:, 2])  # a network, not a datum, has a mask
    kept = (pred.samples[:, 0] > 0).double().mean().item()
    assert abs(kept - 0.75) < 4.5 * math.sqrt(0.75 * 0.25 / 20_000)
    assert pred.samples.max().item() == pytest.approx(1 / 0.75)


class SharedDropout(nn.Module):
    """One dropout module at three places, with inputs of two shapes; and one that is never called."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.drop, self.unused = nn.Dropout(0.5), nn.Dropout(0.5)

    def forward(self, x):
        x = self.drop(x)
        return self.c(self.drop(self.b(self.drop(self.a(x)))))


def test_a_shared_dropout_module_of_run_time_shapes():
    model, x = SharedDropout(), torch.randn(5, 4)
    lb.bayesianize_(model, lb.Dropout())
    found = [
        lb.predict(model, x, samples=6, task="classification", chunk=chunk, strategy=strategy)
        for chunk in (1, 3, None)
        for strategy in ("loop", "vmap")
    ]
    assert all(close(found[0], other) for other in found)
    assert found[0].variance.min() > 0


def test_batches_of_different_lengths_have_masks_of_their_own_shapes():
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Flatten(0, 0))
    lb.bayesianize_(model, lb.Dropout())
    batches = [torch.randn(2, t, 4) for t in (3, 5)]
    for x in batches:
        assert lb.predict(model, x, samples=3, task="regression").mean.shape == (2, x.shape[1], 3)
    assert lb.predict(model, batches[0], samples=3, task="regression").variance.min() > 0


def test_mean_only_is_the_deterministic_procedure():
    model, x = prefixed(), images()
    model(images(20))  # BatchNorm has statistics now
    pred = lb.predict(model, x, mean_only=True, task="classification")
    plain = lb.restore_(copy.deepcopy(model)).eval()
    assert torch.allclose(pred.probs, plain(x).softmax(-1))
    assert (pred.engine, pred.counts.tolist()) == ("mean", [1] * 7)
    assert pred.mutual_information.max() < 1e-6


def test_mean_only_is_refused_where_the_mean_is_zero_by_construction():
    from leanbayes.layers import BayesLayer
    from leanbayes.posteriors import ZeroMeanGaussian

    module = nn.Linear(3, 2, bias=False)
    layer = BayesLayer(module, {"weight": ZeroMeanGaussian.from_tensor(module.weight)}, {"weight": lb.LogUniform()})
    model = nn.Sequential(layer)
    with pytest.raises(PredictionError, match="meaningless"):
        lb.predict(model, torch.ones(1, 3), mean_only=True, task="classification")
    assert lb.predict(model, torch.ones(1, 3), samples=4, task="classification").probs.shape == (1, 2)


def test_a_plain_model_is_asked_once():
    model, x, calls = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), torch.randn(5, 4), []
    model.register_forward_hook(lambda *_: calls.append(1))
    pred = lb.predict(model, x, samples=32, task="classification")
    assert (pred.engine, len(calls)) == ("deterministic", 1)
    assert torch.allclose(pred.probs, model[0](x).softmax(-1))


def test_settled_data_take_no_more_samples_whatever_the_chunk():
    model = mlp(lb.MeanField(std=0.05), outputs=1)
    x = torch.cat([torch.randn(4, 4) * 0.1, torch.randn(4, 4) * 30])
    found = [
        lb.predict(model, x, samples=64, task="regression", settle=0.1, chunk=chunk, strategy=strategy)
        for chunk in (1, 3, None)
        for strategy in ("loop", "vmap")
    ]
    counts = found[0].counts
    assert counts.min() == 8
    assert counts.max() > counts.min()
    assert (counts % 8 == 0).all()
    for other in found:
        assert torch.equal(other.counts, counts)
        assert close(found[0], other)
        assert other.samples.shape == found[0].samples.shape
        assert torch.allclose(other.quantile(0.9), found[0].quantile(0.9), atol=1e-5)
    full = lb.predict(model, x, samples=64, task="regression")
    error = (full.mean - found[0].mean).abs() / full.variance.sqrt()
    assert error.max() < 0.1 * 4.5
    few = lb.predict(model, x[:1], samples=64, task="regression", settle=10.0)
    assert few.samples.shape == (8, 1, 1)


def test_double_precision_stays_double():
    model = mlp().double()
    pred = lb.predict(model, torch.randn(3, 4, dtype=torch.float64), samples=4, task="classification")
    assert pred.probs.dtype == torch.float64
    assert torch.allclose(pred.probs.sum(1), torch.ones(3, dtype=torch.float64), atol=1e-12)


def test_bfloat16_is_averaged_in_single_precision():
    model = mlp().bfloat16()
    pred = lb.predict(model, torch.randn(3, 4, dtype=torch.bfloat16), samples=4, task="classification")
    assert pred.probs.dtype == torch.float32
