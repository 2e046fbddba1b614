"""Checks of arguments: what passes, and one form of message."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import checks
from leanbayes.errors import ConfigError, PredictionError


class Hostile:
    """Raises whatever is asked of it."""

    def __repr__(self):
        raise RuntimeError("no repr")

    def __iter__(self):
        raise RuntimeError("no iteration")

    __eq__ = __bool__ = __len__ = __index__ = __float__ = __repr__
    __hash__ = object.__hash__


GOOD = [
    (checks.whole_number("n", np.int64(3)), 3),
    (checks.whole_number("n", -3, at_least=None), -3),
    (checks.number("n", np.float32(0.5), above=0), 0.5),
    (checks.number("n", 2), 2.0),
    (checks.seed(-1), -1),
    (checks.seed(np.int32(7)), 7),
    (checks.probability("p", 1), 1.0),
    (checks.one_of("m", None, ("a", None)), None),
    (checks.iterable_of("v", np.array([0.5, 1.0]), "numbers", checks.number), [0.5, 1.0]),
    (checks.path("f", "a/b"), Path("a/b")),
]


def test_what_passes_comes_back_as_a_plain_value():
    for found, expected in GOOD:
        assert found == expected
        assert type(found) is type(expected)


BAD = [
    (lambda v: checks.whole_number("n", v), "a whole number of at least 1", [0, True, 1.0, "3", None, math.nan]),
    (lambda v: checks.whole_number("n", v, at_least=2, at_most=5), "a whole number from 2 to 5", [1, 6, 10**400]),
    (lambda v: checks.number("n", v), "a finite number", [math.inf, math.nan, "1", True, None, 1j, 10**400]),
    (lambda v: checks.number("n", v, above=0, at_most=1), "a finite number above 0 and of at most 1", [0, 1.1]),
    (lambda v: checks.flag("n", v), "True or False", [1, 0, "yes", None, np.True_]),
    (lambda v: checks.one_of("n", v, ("a", "b")), "one of 'a', 'b'", ["c", None, 1, ["a"]]),
    (lambda v: checks.seed(v, "n"), "a whole number of 64 bits", [0.5, None, True, 2**64, -(2**63) - 1]),
    (lambda v: checks.iterable_of("n", v, "numbers", checks.number), "several numbers", [1, "ab", b"a", {}]),
    (lambda v: checks.module("n", v), "an nn.Module", [None, nn.Linear]),
    (lambda v: checks.path("n", v), "a path", [None, 3, b"x", "", "a\0b"]),
]


@pytest.mark.parametrize(("check", "wanted", "values"), BAD)
def test_what_does_not_pass_is_refused_in_one_form(check, wanted, values):
    for value in [*values, Hostile(), torch.zeros(()), object]:
        with pytest.raises(ConfigError) as caught:
            check(value)
        assert str(caught.value) == f"n: expected {wanted}, received {checks.short(value)}"


def test_values_are_described_shortly():
    assert checks.short(torch.zeros(3, 2)) == "a Tensor of shape (3, 2)"
    assert checks.short(Hostile()) == "a Hostile"
    assert checks.short(nn.Sequential(nn.ReLU())) == "a Sequential"
    assert len(checks.short("x" * 1000)) == 60


def test_numbers_of_numpy_become_plain_in_configs():
    assert lb.MeanField(std=np.float32(0.5)) == lb.MeanField(std=0.5)
    assert type(lb.Patch(np.int64(3)).components) is int


X, Y = torch.zeros(8, 4), torch.arange(8) % 3
MODEL_CALLS = [
    lambda m, bad: lb.calibrate_(m, (X, Y), task="classification", seed=bad, progress=False),
    lambda m, bad: lb.kappa(m, (X, Y), task="classification", seed=bad, progress=False),
    lambda m, bad: lb.recalibrate_(m, (X, Y), seed=bad),
    lambda m, bad: lb.tune_noise_(m, (X, Y), task="classification", batch_size=bad),
    lambda m, bad: lb.fit(m, (X, Y), tune=bad, progress=False),
    lambda m, bad: lb.evaluate(m, (X, Y), task="classification", levels=bad, progress=False),
    lambda m, bad: lb.evaluate(m, (X, Y), task="classification", ood=bad, progress=False),
    lambda m, bad: lb.evaluate(m, (X, Y), task="classification", ood={"a": bad}, progress=False),
    lambda m, bad: lb.evaluate(m, (X, Y), task="classification", progress=bad),
    lambda m, bad: lb.evaluate(m, (X, Y), task="classification", history=bad, progress=False),
    lambda m, bad: lb.predict(m, X, task="classification", mean_only=bad),
    lambda m, bad: lb.predict(m, X, task="classification", keep_samples=bad),
    lambda m, bad: lb.fit(m, (X, Y), progress=bad),
    lambda m, bad: lb.fit(m, (X, Y), resume=bad, checkpoint="no.ckpt", progress=False),
    lambda m, bad: lb.using(mean_only=bad).__enter__(),
    lambda m, bad: lb.prune_(m, fraction=bad),
    lambda m, bad: lb.prune_(m, fraction=0.5, biases=bad),
]


@pytest.mark.parametrize("call", MODEL_CALLS)
@pytest.mark.parametrize("bad", [1.5, "yes", object(), Hostile()], ids=["number", "text", "object", "hostile"])
def test_bad_arguments_of_verbs_leave_the_model_alone(call, bad):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    lb.bayesianize_(model, lb.MeanField())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    # an iterable of the user's may raise what it likes
    with pytest.raises(
        (lb.LeanBayesError, RuntimeError), match="expected|no iteration" if isinstance(bad, Hostile) else "expected"
    ):
        call(model, bad)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())


def test_the_error_is_that_of_the_verb():
    with pytest.raises(PredictionError, match="seed: expected a whole number of 64 bits, received 'x'"):
        lb.predict(nn.Linear(4, 3), X, seed="x", task="classification")
