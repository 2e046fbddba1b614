"""Table 3 of variational nested dropout: what training and prediction cost, beside a Bayesian network and FN3.

All take turns in one process. train: seconds of a whole training step with Adam. test: seconds for 500 images, each
network as it is used (BN3 and IBNN by their samples, DT-BN3 at its means, FN3 in one pass), at full width. x IBNN:
how many times as long as a Bayesian network of full width takes. "skipping" leaves dropped channels out of the
arithmetic, which learned tails do not allow: they need the output of a dropped channel. The paper's
hours are in its own units; its ratios are 2.0 in training (14.9 h against 7.5 h) and 1.06 at test (DT-BN3, 1.78 s
against IBNN's 1.68 s).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

import leanbayes as lb

from ...timing import in_turns, times_as_long, training_step
from ..experiment import Cell, Experiment
from ..jobs import Jobs
from ..results import Measured
from .networks import SETUPS, NestedSetup

PAPER: dict[str, dict[str, float]] = {
    "BN3": {"train x IBNN": 14.9 / 7.5},
    "DT-BN3": {"test x IBNN": 1.78 / 1.68},
    "FN3": {"train x IBNN": 5.6 / 7.5, "test x IBNN": 1.82 / 1.68},
}
TURNS = {"smoke": 2, "cpu": 9, "paper": 9}
IMAGES = 500
NAMES = ("plain network", "IBNN", "BN3", "DT-BN3", "FN3", "FN3, skipping")


def cells(preset: str) -> Iterator[Cell]:
    """A piece for every network, which makes a row for every method."""
    for setup in SETUPS[preset]:
        training, turns = setup.of("BN3"), TURNS[preset]
        key = {**training.key(), "measured": "nested-cost", "turns": turns}
        yield Cell(training.data, "all", training.batch_size, key, partial(measured, setup, turns), paper=_paper)


def _paper(method: str, setting: Any) -> Mapping[str, float]:
    return PAPER.get(method, {})


def measured(setup: NestedSetup, turns: int, jobs: Jobs, seed: int) -> Measured:
    """A row for every network; all take turns."""
    models = {name: _model(setup, name) for name in NAMES if name != "DT-BN3"}
    training = in_turns({name: _step(setup, model) for name, model in models.items()}, turns)
    predictions = {name: _prediction(setup, model, name) for name, model in models.items()}
    predictions["DT-BN3"] = _prediction(setup, models["BN3"], "DT-BN3")
    testing = in_turns(predictions, turns)
    found: dict[str, dict[str, Any]] = {name: {"method": name} for name in NAMES}
    for what, seconds in (("train", training), ("test", testing)):
        for name, own in seconds.items():
            found[name] |= {what: statistics.median(own), f"{what} x IBNN": times_as_long(own, seconds["IBNN"])}
    return {"rows": list(found.values())}


def _model(setup: NestedSetup, name: str) -> Any:
    torch.manual_seed(0)
    model = setup.of("IBNN").network(setup.training.load())
    if name == "plain network":
        return model
    rules = setup.methods(name.partition(",")[0])
    if name == "FN3, skipping":
        rules = {k: replace(m, skip=True) if isinstance(m, lb.NestedDropout) else m for k, m in rules.items()}
    lb.bayesianize_(model, rules)  # type: ignore[arg-type]
    return model


def _step(setup: NestedSetup, model: Any) -> Callable[[], None]:
    """A whole training step."""
    data = setup.training.load()
    x, y = (part[: setup.training.batch_size] for part in data.train.tensors)
    elbo = lb.ELBO("classification", num_data=len(data.train))
    return training_step(
        model, setup.training.optimizer(model), x, y, lambda out, target: elbo(model, out, target).loss
    )


def _prediction(setup: NestedSetup, model: Any, name: str) -> Callable[[], None]:
    """A prediction at full width."""
    inputs = setup.training.load().test.tensors[0][:IMAGES]
    options: dict[str, Any] = {"mean_only": True} if name == "DT-BN3" else {"samples": setup.samples}

    def predict() -> None:
        if name.startswith(("BN3", "FN3", "DT")):
            lb.set_width_(model, 1.0)
        lb.predict(model, inputs, task="classification", **options)

    return predict


EXPERIMENT = Experiment("nested-cost", cells)
