"""A sample of the random calls; `python -m tests.soak calls` makes many more."""

from __future__ import annotations

from collections import Counter

from torch import nn

import leanbayes as lb
from tests.soak import calls
from tests.soak.calls_targets import targets
from tests.soak.worker import outcomes

CASES = 150
NOT_CALLED = {"__version__", "BayesRegressor", "Callback", "Comparison", "Evaluation", "LeanBayesError"} | {
    "Benchmark", "Scaling"} | {
    "Generation", "LeanBayesWarning", "Plan", "Predictive", "PruningCurve", "Selection", "WidthCorrelation"} | {
    "Tuning", "HFTrainerMixin", "LightningCallback", "MLflowTracker", "TensorBoardTracker", "WandbTracker"} | {
    "from_hub", "push_to_hub"}  # fmt: skip
"""Errors, what only results are made of, the twin of an estimator that is called, and what talks to other programs."""


def test_every_call_is_right_or_a_clear_error():
    notes, failures = Counter[str](), []
    for seed, outcome in outcomes("calls", range(CASES)):
        notes.update(outcome.notes)
        if outcome.failure is not None:
            failures.append(f"python -m tests.soak calls --case {seed} --show   # {outcome.failure}")
    assert not failures, f"{len(failures)} of {CASES} calls:\n" + "\n".join(failures)
    assert calls.weakness(CASES, notes) is None


def test_everything_public_is_called():
    names = {target.name.split(".")[0].split(" ")[0] for target in targets()}
    assert set(lb.__all__) - NOT_CALLED <= names


def test_raw_errors_and_changed_models_are_noticed(monkeypatch):
    """The judge has power: a verb that divides by zero, or that leaves a model in another mode, fails its calls."""
    target = next(target for target in targets() if target.name == "predict")

    def judged(function):
        broken = calls.Target("predict", function, target.valid, target.always, model="model")
        monkeypatch.setattr(calls, "chosen", lambda rng: broken)
        return [calls.case(seed).failure or "" for seed in range(12)]

    def raises(**arguments):
        return 1 // 0

    def changes(model=None, **arguments):
        if isinstance(model, nn.Module):
            model.train(not model.training)
        raise lb.LeanBayesError("expected something else")

    assert all(failure.startswith("raw error") for failure in judged(raises))
    assert sum("modes" in failure for failure in judged(changes)) >= 8
    assert sum("accepted nonsense" in failure for failure in judged(lambda **arguments: None)) >= 1


def test_a_seed_repeats_a_call():
    first, again = (calls.generate(5) for _ in range(2))
    assert (first[0], list(first[1]), first[2], first[3]) == (again[0], list(again[1]), again[2], again[3])
