"""Table 3 of variational nested dropout: what training and prediction cost, beside a Bayesian network and FN3.

All take turns in one process. train: seconds of a whole training step with Adam. test: seconds for 500 images, each
network as it is used (BN3 and IBNN by their samples, DT-BN3 at its means, FN3 in one pass), at full width. x IBNN:
how many times as long as a Bayesian network of full width takes. "skipping" leaves dropped channels out of the
arithmetic, which learned tails do not allow: they need to know what a dropped channel would have said. The paper's
hours are in its own units; its ratios are 2.0 in training (14.9 h against 7.5 h) and 1.06 at test (DT-BN3, 1.78 s
against IBNN's 1.68 s).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from ..methods import NestedDropout
from . import workload
from .base import Jobs, Metrics, Row, recipe
from .nested import SETTINGS, Setting, fresh
from .timing import in_turns, times_as_long

PAPER: dict[str, dict[str, float]] = {
    "BN3": {"train x IBNN": 14.9 / 7.5},
    "DT-BN3": {"test x IBNN": 1.78 / 1.68},
    "FN3": {"train x IBNN": 5.6 / 7.5, "test x IBNN": 1.82 / 1.68},
}
TURNS = {"smoke": 2, "cpu": 9, "paper": 9}
IMAGES = 500


@recipe(
    "nested-cost",
    "nested posteriors, table 3: time of a training step and of a prediction beside IBNN and FN3",
    seeds=dict.fromkeys(SETTINGS, 1),
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row a method, for every network."""
    for setting in SETTINGS[preset]:
        key = {**setting.key("BN3", 0, 1.0), "measured": "nested-cost", "turns": TURNS[preset]}
        found = jobs(key, partial(measured, setting, TURNS[preset]), label=f"cost on {setting.run.data}")
        for name in ("plain network", "IBNN", "BN3", "DT-BN3", "FN3", "FN3, skipping"):
            own = {k.partition(": ")[2]: v for k, v in found.items() if k.partition(": ")[0] == name}
            yield Row(setting.run.data, name, setting.run.batch_size, [own], paper=PAPER.get(name, {}))


def measured(setting: Setting, turns: int) -> Metrics:
    """All networks in turns, by "name: metric"."""
    models = {name: _model(setting, name) for name in ("plain network", "IBNN", "BN3", "FN3", "FN3, skipping")}
    training = in_turns({name: _step(setting, model) for name, model in models.items()}, turns)
    asked = {name: _prediction(setting, model, name) for name, model in models.items()}
    asked["DT-BN3"] = _prediction(setting, models["BN3"], "DT-BN3")
    testing = in_turns(asked, turns)
    found: Metrics = {}
    for what, seconds in (("train", training), ("test", testing)):
        for name, own in seconds.items():
            found[f"{name}: {what}"] = statistics.median(own)
            found[f"{name}: {what} x IBNN"] = times_as_long(own, seconds["IBNN"])
    return found


def _model(setting: Setting, name: str) -> Any:
    import leanbayes as lb

    model = fresh(setting, 0)
    if name == "plain network":
        return model
    rules = setting.methods(name.partition(",")[0])
    if name == "FN3, skipping":
        rules = {k: replace(m, skip=True) if isinstance(m, NestedDropout) else m for k, m in rules.items()}
    lb.bayesianize_(model, rules)  # type: ignore[arg-type]
    return model


def _step(setting: Setting, model: Any) -> Callable[[], None]:
    """A whole training step."""
    import leanbayes as lb

    data = workload.load(setting.run)
    x, y = (part[: setting.run.batch_size] for part in data.train.tensors)
    elbo = lb.ELBO("classification", num_data=len(data.train))
    chosen = workload.optimizer(model, setting.run)

    def step() -> None:
        model.train()
        chosen.zero_grad(set_to_none=True)
        elbo(model, model(x), y).loss.backward()
        chosen.step()

    return step


def _prediction(setting: Setting, model: Any, name: str) -> Callable[[], None]:
    """A prediction at full width."""
    import leanbayes as lb

    inputs = workload.load(setting.run).test.tensors[0][:IMAGES]
    options: dict[str, Any] = {"mean_only": True} if name == "DT-BN3" else {"samples": setting.samples}

    def ask() -> None:
        if name.startswith(("BN3", "FN3", "DT")):
            lb.set_width_(model, 1.0)
        lb.predict(model, inputs, task="classification", **options)

    return ask
