"""The gradient that an attack follows: closed forms, and autograd through all samples at once."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from leanbayes import sampling
from leanbayes.evaluation.attack_gradients import gradient
from leanbayes.likelihoods import Classification
from leanbayes.prediction.engine import Engine

from .attacked import PIXELS, linear, run, slope


def test_fgsm_of_a_linear_model_has_a_closed_form():
    model, pixels, y = linear()
    inputs = PIXELS.to_inputs(pixels)
    trace = run(model, inputs, y, PIXELS, targeted=False, step=0.1, iterations=1, epsilon=0.1, scale=1.0)
    expected = (pixels - 0.1 * slope(model, inputs, y).sign()).clamp(0, 1)
    assert torch.allclose(PIXELS.to_pixels(trace.adversarial), expected, atol=1e-12)
    said = model(PIXELS.to_inputs(expected)).argmax(1)
    assert torch.equal(trace.correct[1], said == y)
    assert torch.equal(trace.success[1], said != y)
    assert torch.equal(trace.targets, y)


def test_the_targeted_attack_of_a_linear_model_follows_the_formula():
    model, pixels, y = linear()
    targets = (y + 1) % 4
    trace = run(model, PIXELS.to_inputs(pixels), y, PIXELS, targets=targets, step=6.0, iterations=7)
    current, said = pixels, []
    for _ in range(7):
        current = (current + 6 / 255 * slope(model, PIXELS.to_inputs(current), targets).sign()).clamp(0, 1)
        said.append(model(PIXELS.to_inputs(current)).argmax(1))
    assert torch.allclose(PIXELS.to_pixels(trace.adversarial), current, atol=1e-12)
    assert torch.equal(trace.success[1:], torch.stack(said) == targets)
    assert torch.equal(trace.correct[1:], torch.stack(said) == y)


def random_model(method):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    lb.bayesianize_(model, method)
    return model.eval()


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("scale", [1.0, 400.0], ids=["", "probabilities that underflow"])
@pytest.mark.parametrize("objective", ["predictive", "mean_log"])
def test_the_gradient_is_that_through_all_samples_at_once(objective, scale, strategy):
    model, samples = random_model(lb.Dropout(rate=0.5)), 6
    with torch.no_grad():
        model[2].weight.mul_(scale)
    x = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 1, 2, 0, 1])
    each = []
    for sample in range(samples):
        draws = {id(s): sampling.noise_of(s, 7, i, sample) for i, s in enumerate(sampling.sites(model).values())}
        with sampling.using(estimator="weight", draws=draws):
            each.append(F.log_softmax(model(x), 1).gather(1, y[:, None])[:, 0])
    logs = torch.stack(each)
    total = torch.logsumexp(logs, 0) - torch.tensor(float(samples)).log() if objective == "predictive" else logs.mean(0)
    (expected,) = torch.autograd.grad(total.sum(), x)
    found = gradient(Engine(model, samples, 7, strategy=strategy), Classification(), x, y, objective)
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-9)
    assert not found.requires_grad


def test_a_confident_network_in_single_precision_still_has_a_gradient():
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
    x = torch.tensor([[20.0, 0.0]])  # 1 - p is 2e-9: single precision would round it to 0
    found = gradient(Engine(model, 1, 0), Classification(), x, torch.tensor([0]))
    expected = torch.tensor([[1.0, -1.0]], dtype=torch.float64) / (1 + torch.tensor(20.0, dtype=torch.float64).exp())
    assert torch.allclose(found.double(), expected, rtol=1e-5, atol=0)
