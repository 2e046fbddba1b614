"""Attacks: closed forms of linear models, gradients through all samples at once, bounds, keys, and what is refused."""

import itertools
import json

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes import config as configs, sampling
from leanbayes.data import load
from leanbayes.errors import ConfigError, DataError, EvaluationError, PredictionError
from leanbayes.evaluation.attack import Attack, attack, perturb, summary
from leanbayes.evaluation.pixels import Pixels
from leanbayes.likelihoods import Custom

from ..snapshots import snapshot
from .attacked import PLAIN, run, trained


@pytest.fixture(scope="module")
def digits():
    """The test part of the digits, and how its pixels became inputs."""
    found = load("digits")
    x, y = found.test.tensors
    return x, y, Pixels(mean=tuple(found.mean.tolist()), std=tuple(found.std.tolist()))


@pytest.fixture(scope="module")
def plain():
    return trained()


@pytest.fixture(scope="module")
def bayes():
    return trained(lb.MeanField())


def test_a_seed_repeats_and_the_batch_size_does_not_matter(digits):
    x, y, pixels = digits
    x, y = x[:12].double(), y[:12]
    model = trained(lb.MeanField()).double()
    options = {"targeted": True, "epsilon": 60.0, "random_start": True, "seed": 5}
    whole, again = run(model, x, y, pixels, **options), run(model, x, y, pixels, **options)
    assert torch.equal(whole.adversarial, again.adversarial)
    parts = [run(model, x[a:b], y[a:b], pixels, start=a, **options) for a, b in ((0, 1), (1, 6), (6, 12))]
    assert torch.equal(torch.cat([p.targets for p in parts]), whole.targets)
    assert torch.allclose(torch.cat([p.adversarial for p in parts]), whole.adversarial, atol=1e-9)
    assert torch.allclose(torch.cat([p.entropy for p in parts], 1), whole.entropy, atol=1e-9)
    other = run(model, x, y, pixels, **(options | {"seed": 6}))
    assert not torch.equal(other.adversarial, whole.adversarial)
    assert not torch.equal(other.targets, whole.targets)


def test_a_longer_attack_begins_like_a_shorter_one(bayes, digits):
    x, y, pixels = digits
    short, long = (run(bayes, x[:16], y[:16], pixels, iterations=t) for t in (2, 4))
    assert torch.equal(short.success, long.success[:3])
    assert torch.equal(short.entropy, long.entropy[:3])


@pytest.mark.parametrize("targeted", [True, False])
def test_pixels_stay_within_epsilon_and_range(bayes, digits, targeted):
    x, y, pixels = digits
    clean = pixels.to_pixels(x[:40])
    for epsilon, start in ((20.0, False), (20.0, True), (None, False)):
        options = {"targeted": targeted, "step": 12.0, "epsilon": epsilon, "random_start": start}
        found = pixels.to_pixels(run(bayes, x[:40], y[:40], pixels, **options).adversarial)
        assert float(found.min()) > -1e-6
        assert float(found.max()) < 1 + 1e-6
        reach = 60.0 if epsilon is None else epsilon  # five steps of twelve, or the ball
        assert (found - clean).abs().max() * 255 == pytest.approx(reach, abs=1e-3)


def test_a_random_start_is_uniform_within_the_ball(plain):
    x = torch.full((50, 1, 8, 8), 0.5)
    y = torch.zeros(50, dtype=torch.long)
    options = {"targeted": False, "step": 1e-9, "iterations": 1, "epsilon": 0.25, "scale": 1.0, "random_start": True}
    noise = (run(plain, x, y, PLAIN, **options).adversarial - 0.5) / 0.25
    assert noise.abs().max() <= 1 + 1e-6
    assert noise.mean() == pytest.approx(0, abs=4 / (3 * noise.numel()) ** 0.5)
    assert noise.var() == pytest.approx(1 / 3, abs=0.03)


@pytest.mark.parametrize("targeted", [True, False])
@pytest.mark.parametrize("name", ["plain", "bayes"])
def test_success_rises(request, digits, name, targeted):
    x, y, pixels = digits
    model = request.getfixturevalue(name)
    found = attack(
        model,
        (x, y),
        Attack(targeted=targeted, step=8.0, iterations=12, samples=4),
        pixels=pixels,
        task="classification",
    )
    success = found.curve["success"]
    assert success[0] < 0.1
    assert success[-1] > 0.9
    assert all(b >= a - 0.01 for a, b in itertools.pairwise(success))
    if not targeted:
        assert [s + a for s, a in zip(success, found.curve["accuracy"], strict=True)] == pytest.approx([1.0] * 13)


@pytest.mark.parametrize("mean_only", [False, True])
def test_what_is_measured_is_what_predict_says(bayes, digits, mean_only):
    x, y, pixels = digits
    x, y = x[:64], y[:64]
    options = {"evaluate_samples": 6, "seed": 3, "mean_only": mean_only}
    trace = run(bayes, x, y, pixels, **options)
    for row, inputs in ((0, x), (-1, trace.adversarial)):
        said = lb.predict(bayes, inputs, 6, 3, task="classification", mean_only=mean_only)
        assert torch.equal(trace.entropy[row], said.entropy)
        assert torch.equal(trace.correct[row], said.labels == y)
        assert torch.equal(trace.success[row], said.labels == trace.targets)


def test_no_iterations_leave_everything_as_it_is(bayes, digits):
    x, y, pixels = digits
    said = lb.predict(bayes, x, 3, 0, task="classification")
    trace = run(bayes, x, y, pixels, iterations=0, epsilon=8.0, random_start=True)
    assert torch.equal(trace.adversarial, x)
    metrics, curve = summary([trace], Attack(iterations=0))
    assert metrics["attack.accuracy"] == pytest.approx(float((said.labels == y).float().mean()))
    assert metrics["attack.entropy"] == metrics["attack.clean_entropy"] == pytest.approx(float(said.entropy.mean()))
    assert len(curve["success"]) == 1


def test_the_networks_that_are_asked_are_not_those_that_gave_gradients(digits, monkeypatch):
    x, y, pixels = digits
    model, keys = trained(lb.MeanField()), {True: set(), False: set()}
    real = sampling.noise_of

    def spy(site, seed, number, sample):
        keys[torch.is_grad_enabled()].add((seed, sample))
        return real(site, seed, number, sample)

    monkeypatch.setattr(sampling, "noise_of", spy)
    run(model, x[:4], y[:4], pixels, iterations=3, samples=2)
    assert len(keys[True]) == 6  # two networks an iteration, new ones in each
    assert not keys[True] & keys[False]


def test_the_model_is_as_it_was(digits):
    x, y, pixels = digits
    model = trained(lb.MeanField()).train()
    model[4].posteriors["bias"].loc.requires_grad_(False)
    model[1].posteriors["weight"].loc.grad = torch.ones_like(model[1].posteriors["weight"].loc)
    before = snapshot(model)
    run(model, x[:8], y[:8], pixels)
    assert snapshot(model) == before
    grads = {name for name, p in model.named_parameters() if p.grad is not None}
    assert len(grads) == 1
    assert bool((model[1].posteriors["weight"].loc.grad == 1).all())
    with pytest.raises(EvaluationError):
        run(model, x[:8], y[:8] + 10, pixels)
    assert snapshot(model) == before


@pytest.mark.parametrize(
    "method",
    [
        lb.Dropout(rate=0.2),
        lb.VariationalDropout(),
        lb.Ensemble(members=2, method=lb.MeanField()),
        {"1": lb.Variance(parameterisation="zero"), "4": lb.MeanField()},
    ],
    ids=["dropout", "variational dropout", "ensemble", "zero mean"],
)
def test_any_method(digits, method):
    x, y, pixels = digits
    trace = run(trained(method), x[:64], y[:64], pixels, targeted=False, step=24.0, evaluate_samples=16)
    assert trace.correct[-1].float().mean() < trace.correct[0].float().mean() / 2


def test_a_model_without_means_is_not_attacked_at_its_means(digits):
    x, y, pixels = digits
    model = trained({"1": lb.Variance(parameterisation="zero")})
    with pytest.raises(PredictionError, match="mean is zero by construction"):
        run(model, x[:4], y[:4], pixels, mean_only=True)


def test_dropout_of_the_models_own_learns_its_shapes(digits):
    x, y, pixels = digits
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, 10))
    lb.bayesianize_(model, lb.Dropout())
    trace = run(model, x[:8], y[:8], pixels, samples=4)
    assert trace.success.shape == trace.correct.shape == trace.entropy.shape == (6, 8)


def test_one_logit_is_two_classes():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 1))
    x, y = torch.rand(20, 1, 3, 3), torch.arange(20) % 2
    trace = run(model, x, y, PLAIN, step=64.0, iterations=5)
    assert torch.equal(trace.targets, 1 - y)
    assert bool(trace.success[-1].all())


def test_half_precision_does_not_swallow_small_steps(digits):
    x, y, pixels = digits
    model = trained().bfloat16()
    trace = run(model, x[:16].bfloat16(), y[:16], pixels, step=0.2, iterations=40, targeted=False)
    assert trace.adversarial.dtype is torch.bfloat16
    moved = pixels.to_pixels(trace.adversarial.float()) - pixels.to_pixels(x[:16])
    assert float(moved.abs().mean()) * 255 > 2


def test_targets_are_other_classes_and_evenly_so(plain, digits):
    x, y, pixels = digits
    targets = run(plain, x, y, pixels, iterations=0).targets
    assert not bool((targets == y).any())
    counts = torch.bincount((targets - y) % 10, minlength=10)[1:].double()
    expected = len(y) / 9
    assert float(((counts - expected) ** 2 / expected).sum()) < 26  # chi-square of 8 degrees: one in a thousand


def test_the_least_likely_class_is_never_the_true_one(plain, digits):
    x, _, pixels = digits
    wrong = (lb.predict(plain, x, 1, task="classification").probs.argmin(1) + torch.arange(len(x)) % 2) % 10
    targets = run(plain, x, wrong, pixels, iterations=0, target="least_likely").targets
    assert not bool((targets == wrong).any())
    probs = lb.predict(plain, x, 1, task="classification").probs
    others = probs.clone()
    others[torch.arange(len(x)), wrong] = 9.0
    assert torch.equal(targets, others.argmin(1))


def test_summary_averages_over_data_not_batches(plain, digits):
    x, y, pixels = digits
    config = Attack(step=16.0, iterations=5, samples=3)
    traces = [run(plain, x[a:b], y[a:b], pixels, start=a) for a, b in ((0, 50), (50, 57))]
    metrics, curve = summary(iter(traces), config)
    success = torch.cat([t.success for t in traces], 1).double().mean(1)
    assert curve["success"] == pytest.approx(success.tolist())
    assert metrics["attack.success"] == curve["success"][-1]
    assert curve["count"] == 57
    assert curve["iterations"] == 5
    assert (curve["step"], curve["samples"], curve["scale"]) == (16.0, 3, 255.0)


def test_attack_takes_a_loader_up_to_a_limit_and_its_result_is_plain(plain, digits):
    x, y, pixels = digits
    config = Attack(step=16.0, iterations=3, limit=70)
    loader = DataLoader(TensorDataset(x, y), batch_size=32)
    results = [attack(plain, data, config, pixels=pixels, task="classification") for data in (loader, (x, y))]
    assert results[0].metrics == pytest.approx(results[1].metrics)
    assert results[0].count == 70
    plainly = json.loads(json.dumps(results[0].to_dict(), allow_nan=False))
    assert configs.from_dict(plainly["config"]) == config
    assert set(plainly["metrics"]) == {"attack.success", "attack.accuracy", "attack.entropy", "attack.clean_entropy"}
    with pytest.raises(EvaluationError, match="at least one datum"):
        attack(plain, [], config, pixels=pixels, task="classification")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"step": 0}, "Attack.step: expected a finite number above 0, received 0"),
        ({"step": float("nan")}, "Attack.step: expected a finite number"),
        ({"iterations": -1}, "Attack.iterations: expected a whole number of at least 0, received -1"),
        ({"iterations": 2.5}, "Attack.iterations"),
        ({"samples": 0}, "Attack.samples"),
        ({"evaluate_samples": 0}, "Attack.evaluate_samples: expected a whole number of at least 1"),
        ({"limit": True}, "Attack.limit"),
        ({"epsilon": -1.0}, "Attack.epsilon"),
        ({"scale": 0.0}, "Attack.scale"),
        ({"targeted": "yes"}, "Attack.targeted: expected True or False"),
        ({"objective": "loss"}, "Attack.objective"),
        ({"target": 3}, "Attack.target"),
        ({"random_start": True}, "expected an epsilon to start within"),
        ({"seed": 0.5}, "Attack.seed"),
    ],
)
def test_bad_settings(fields, message):
    with pytest.raises(ConfigError, match=message):
        Attack(**fields)


def test_bad_data_is_named_by_its_index(plain, digits):
    x, y, pixels = digits
    x, y = x[:5], y[:5].clone()
    with pytest.raises(DataError, match=r"inputs\[100\]: expected pixels in \[0, 1\].*Pixels\(mean="):
        run(plain, x, y, PLAIN, start=100)
    with pytest.raises(DataError, match="expected a mean for each of 1 channels"):
        run(plain, x, y, Pixels(mean=(0.1, 0.2, 0.3), std=(1.0,)))
    with pytest.raises(EvaluationError, match=r"targets\[103\]: expected a label in 0..9, received 10"):
        run(plain, x, torch.tensor([0, 1, 2, 10, 4]), pixels, start=100)
    with pytest.raises(EvaluationError, match=r"targets\[1\]: expected another class than the label"):
        run(plain, x, y, pixels, targets=torch.stack([(y[0] + 1) % 10, *y[1:]]))
    with pytest.raises(EvaluationError, match="expected none for an untargeted attack"):
        run(plain, x, y, pixels, targets=(y + 1) % 10, targeted=False)
    spoilt = x.clone()
    spoilt[2, 0, 1, 1] = torch.nan
    with pytest.raises(EvaluationError, match=r"inputs\[2, 0, 1, 1\]: expected a finite number"):
        run(plain, spoilt, y, pixels)
    with pytest.raises(DataError, match="expected a floating-point tensor"):
        run(plain, x.long(), y, pixels)
    with pytest.raises(DataError, match=r"expected images \(N, C, H, W\)"):
        run(plain, x.flatten(1), y, pixels)
    with pytest.raises(EvaluationError, match="at least one datum"):
        run(plain, x[:0], y[:0], pixels)


def test_models_that_cannot_be_attacked(digits):
    x, y, pixels = digits
    x, y = x[:3], y[:3]

    class Detached(nn.Module):
        def forward(self, x):
            return x.detach().flatten(1)[:, :10]

    with pytest.raises(EvaluationError, match="can be differentiated with respect to the inputs"):
        run(Detached(), x, y, pixels)

    class Spiky(nn.Module):
        def forward(self, x):
            return (x.flatten(1)[:, :10] * 0).sqrt()

    with pytest.raises(EvaluationError, match=r"gradient\[7, 0, 0, 0\]: expected a finite number, received nan"):
        run(Spiky(), x, y, pixels, start=7)
    likelihood = Custom(lambda f, y: -f.sum(1), mean_and_noise=lambda f: (f, f.square()))
    with pytest.raises(EvaluationError, match="expected a task of classification, received 'regression'"):
        perturb(nn.Flatten(), x, y, config=Attack(), pixels=pixels, likelihood=likelihood)
