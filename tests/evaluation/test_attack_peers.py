"""Attacks against foolbox's at equal budget: the same images, pixel by pixel, where both compute the same."""

import importlib
import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leanbayes.data import load
from leanbayes.evaluation.attack import Attack, perturb
from leanbayes.evaluation.pixels import Pixels
from leanbayes.likelihoods import Classification

pytestmark = pytest.mark.extra


def foolbox():
    if os.environ.get("LEANBAYES_REQUIRE_EXTRAS") == "1":
        return importlib.import_module("foolbox")
    return pytest.importorskip("foolbox")


@pytest.fixture(scope="module")
def setting():
    """A convolutional network for the digits, their test part, and how its pixels became inputs."""
    torch.manual_seed(0)
    digits = load("digits")
    layers = [nn.Conv2d(1, 12, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(108, 10)]
    model = nn.Sequential(*layers)
    x, y = digits.train.tensors
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(30):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    x, y = digits.test.tensors
    # in double: a confident network's gradient in single precision is rounding, to which each adds its own
    return model.eval().double(), x.double(), y, Pixels(tuple(digits.mean.tolist()), tuple(digits.std.tolist()))


BUDGETS = {
    "FGSM": {"targeted": False, "step": 24.0, "iterations": 1, "epsilon": 24.0},
    "iterative": {"targeted": False, "step": 3.0, "iterations": 12, "epsilon": 24.0},
    "iterative, no ball": {"targeted": False, "step": 2.0, "iterations": 15},
    "targeted": {"targeted": True, "step": 4.0, "iterations": 15, "epsilon": 40.0},
    "targeted, no ball": {"targeted": True, "step": 3.0, "iterations": 15},
}


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
def test_the_same_budget_gives_the_same_images(setting, budget):
    fb = foolbox()
    model, x, y, pixels = setting
    trace = perturb(model, x, y, config=Attack(**budget), pixels=pixels, likelihood=Classification())
    preprocessing = {"mean": list(pixels.mean), "std": list(pixels.std), "axis": -3}
    wrapped = fb.PyTorchModel(model, bounds=(0, 1), preprocessing=preprocessing, device="cpu")
    targeted = budget["targeted"]
    criterion = fb.criteria.TargetedMisclassification(trace.targets) if targeted else fb.criteria.Misclassification(y)
    peer = fb.attacks.LinfBasicIterativeAttack(
        abs_stepsize=budget["step"] / 255, steps=budget["iterations"], random_start=False
    )
    start = pixels.to_pixels(x).clamp(0, 1)
    theirs = peer.run(wrapped, start, criterion, epsilon=budget.get("epsilon", 255.0) / 255)
    ours = pixels.to_pixels(trace.adversarial)
    assert ((ours - theirs).abs() > 1e-6).float().mean() < 0.001
    said = wrapped(theirs).argmax(1)
    success = (said == trace.targets) if targeted else (said != y)
    assert trace.success[-1].float().mean() == pytest.approx(float(success.float().mean()), abs=0.003)
    assert float(success.float().mean()) > 0.3


def test_a_random_start_does_as_well(setting):
    fb = foolbox()
    model, x, y, pixels = setting
    config = Attack(targeted=False, step=3.0, iterations=12, epsilon=16.0, random_start=True)
    trace = perturb(model, x, y, config=config, pixels=pixels, likelihood=Classification())
    preprocessing = {"mean": list(pixels.mean), "std": list(pixels.std), "axis": -3}
    wrapped = fb.PyTorchModel(model, bounds=(0, 1), preprocessing=preprocessing, device="cpu")
    peer = fb.attacks.LinfPGD(abs_stepsize=3 / 255, steps=12, random_start=True)
    theirs = peer.run(wrapped, pixels.to_pixels(x).clamp(0, 1), fb.criteria.Misclassification(y), epsilon=16 / 255)
    success = float((wrapped(theirs).argmax(1) != y).float().mean())
    assert float(trace.success[-1].float().mean()) == pytest.approx(success, abs=0.02)
