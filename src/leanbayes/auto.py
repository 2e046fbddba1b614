"""`auto`: train several methods on one network within a budget, and choose by held-out data."""

from __future__ import annotations

import copy
import math
import re
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from . import batches, checks
from .batches import accept, stream
from .convert.apply import bayesianize_
from .costs import Cost, cost
from .errors import ConfigError, ConversionError, DataError, LeanBayesError, LeanBayesWarning
from .evaluation.progress import Bar
from .evaluation.temperature import calibrate_
from .likelihoods import Categorical
from .method import Method
from .methods.dropout import Dropout
from .methods.ensemble import Ensemble
from .methods.mean_field import MeanField
from .methods.patch import Patch
from .methods.variance import Variance
from .methods.variational_dropout import VariationalDropout
from .prediction import resolve_task
from .prediction.api import predict
from .report.table import as_text, table
from .training.fit import fit

PLAIN, SCALED = "plain", "plain, temperature"
CANDIDATES: tuple[Method, ...] = (MeanField(), Variance(), VariationalDropout(), Dropout(), Patch(), Ensemble())
ERRORS = 2.0
"""How many standard errors better a method has to be: the best of several often is by one, by chance."""
MEASURES = ("parameters", "training", "prediction")


@dataclass(frozen=True)
class Tried:
    """One candidate: its costs in multiples of the plain network, and its likelihood on the validation data.

    nll: the mean negative log-likelihood, with its standard error; None if it was not trained.
    gain: how far it is below the plain network's (paired), with its standard error.
    note: why it was not trained, if it was not.
    """

    name: str
    method: Method | None
    parameters: float = 1.0
    training: float = 1.0
    prediction: float = 1.0
    seconds: float = 0.0
    nll: float | None = None
    nll_error: float | None = None
    gain: float = 0.0
    gain_error: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Selection:
    """The result of `auto`: the trained model, its name and method, and all candidates, the best first.

    Printing it gives the table.
    """

    model: nn.Module
    name: str
    method: Method | None
    tried: tuple[Tried, ...] = field(default_factory=tuple)

    def __str__(self) -> str:
        header = ["", "val NLL", "better than plain by", "parameters", "training", "prediction", "seconds", ""]
        rows = []
        for t in self.tried:
            costs = [f"{value:.3g}x" for value in (t.parameters, t.training, t.prediction)]
            nll = "-" if t.nll is None else f"{t.nll:.4f} ± {t.nll_error:.4f}"
            gain = "-" if t.nll is None or t.name == PLAIN else f"{t.gain:+.4f} ± {t.gain_error:.4f}"
            chosen = "chosen" if t.name == self.name else t.note
            rows.append([t.name, nll, gain, *costs, f"{t.seconds:.1f}", chosen])
        return as_text(table(header, rows))


def auto(
    model: nn.Module,
    train: Any,
    val: Any,
    *,
    budget: str | float | Mapping[str, float] = "2x",
    methods: Iterable[Method] = CANDIDATES,
    task: Any = "classification",
    samples: int = 16,
    seed: int = 0,
    progress: bool = True,
    **options: Any,
) -> Selection:
    """Train the network plainly and under several methods, and choose by the likelihood of held-out data.

    The plain network, trained in the same way, is always a candidate; so is, for a classifier, that network at a
    temperature fitted to ``val`` (`calibrate_`), which costs nothing. Another candidate replaces the plain network only
    if its NLL on ``val`` is lower by more than two standard errors of the paired difference; of those, the lowest.
    The given model is not changed: candidates are copies that start at its weights.

    train, val: inputs and targets, as in `fit`. val tunes the noise of each candidate (see `fit`) and chooses among
    them, so metrics on it are slightly too good afterwards.
    budget: the most that a candidate may cost in multiples of the plain network, "2x" or 2 for parameters and training;
        or by name of "parameters", "training" and "prediction". Operations are counted, not timed. A budget of
        prediction lowers samples to fit. Candidates over budget are not trained, and are in the table with the reason.
    methods: the candidates beside the plain network. samples: networks drawn for a prediction.
    options: further arguments of `fit`: epochs, lr, batch_size, ...

    >>> import leanbayes as lb
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(200, 2)
    >>> y = (x.sum(1) + torch.randn(200) > 0).long()
    >>> net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> found = lb.auto(net, (x[:150], y[:150]), (x[150:], y[150:]), methods=[lb.MeanField()], epochs=2, progress=False)
    >>> sorted(one.name for one in found.tried), lb.predict(found.model, x[:3]).probs.shape
    (['MeanField', 'plain', 'plain, temperature'], torch.Size([3, 2]))
    """
    checks.module("model", model)
    limits = _limits(budget)
    samples, seed = checks.samples(samples), checks.seed(seed)
    checks.flag("progress", progress)
    if val is None:
        raise DataError("val: expected held-out data to choose by, received None; keep some data from training")
    named = _named(checks.iterable_of("methods", methods, "methods such as lb.MeanField()", _method))
    train, val = accept(train, model, name="train"), accept(val, model, name="val")
    example = _example(val)
    plain_cost = cost(model, example)
    tried: list[Tried] = []
    models: dict[str, nn.Module] = {}
    log_probs: dict[str, Tensor] = {}
    with Bar(shown=progress) as bar, torch.random.fork_rng(devices=[]):
        bar.expect(1 + len(named))
        for name, method in {PLAIN: None, **named}.items():
            bar.stage(name)
            torch.manual_seed(seed)
            candidate, one, draws = _prepared(name, method, model, example, plain_cost, limits, samples)
            if candidate is not None:
                began = time.perf_counter()
                try:
                    fit(candidate, train, val=val, task=task, seed=seed, progress=False, **options)
                    found = _log_probs(candidate, val, draws, seed)
                except LeanBayesError as error:
                    if method is None:
                        raise
                    one = replace(one, note=f"{type(error).__name__}: {error}")
                else:
                    models[name], log_probs[name] = candidate, found
                    one = _measured(one, found, log_probs[PLAIN], time.perf_counter() - began)
            tried.append(one)
            if method is None and isinstance(resolve_task(models[PLAIN], None), Categorical):
                scaled, one = _scaled(models[PLAIN], val)
                if scaled is not None:
                    models[SCALED], found = scaled, _log_probs(scaled, val, 1, seed)
                    one = _measured(one, found, log_probs[PLAIN], 0.0)
                tried.append(one)
            bar.advance(1)
    better = [one for one in tried if one.nll is not None and one.gain > ERRORS * one.gain_error]
    chosen = min(better, key=lambda one: one.nll or 0.0, default=tried[0])
    ranked = sorted(tried, key=lambda one: math.inf if one.nll is None else one.nll)
    return Selection(models[chosen.name], chosen.name, chosen.method, tuple(ranked))


def _prepared(
    name: str,
    method: Method | None,
    model: nn.Module,
    example: Any,
    plain: Cost,
    limits: dict[str, float],
    samples: int,
) -> tuple[nn.Module | None, Tried, int]:
    """A copy of the model under a method with its costs and sample count, or None and the reason."""
    candidate = copy.deepcopy(model)
    if method is None:
        return candidate, Tried(name, None), 1
    try:
        bayesianize_(candidate, method)
    except ConversionError as error:
        return None, Tried(name, method, note=str(error)), 0
    bill = cost(candidate, example)
    macs = bill.macs / max(plain.macs, 1)
    if "prediction" in limits:
        samples = max(1, min(samples, int(limits["prediction"] / max(macs, 1e-9))))
    ratios = {
        "parameters": bill.parameters / max(plain.parameters, 1),
        "training": bill.training_flops() / max(plain.training_flops(), 1),
        "prediction": samples * macs,
    }
    over = [f"{ratios[what]:.3g}x {what}" for what in limits if ratios[what] > limits[what] * (1 + 1e-9)]
    note = f"over budget: {', '.join(over)}" if over else ""
    return None if over else candidate, Tried(name, method, **ratios, note=note), samples


def _scaled(plain: nn.Module, val: Any) -> tuple[nn.Module | None, Tried]:
    """A copy of the trained plain network at a temperature fitted to ``val``, or None and the reason."""
    model, one = copy.deepcopy(plain), Tried(SCALED, None)
    try:
        with warnings.catch_warnings():
            # if held-out data do not determine a temperature it stays at 1
            warnings.simplefilter("ignore", LeanBayesWarning)
            calibrate_(model, val, samples=1, progress=False)
    except LeanBayesError as error:
        return None, replace(one, note=f"{type(error).__name__}: {error}")
    return model, one


def _measured(one: Tried, found: Tensor, plain: Tensor, seconds: float) -> Tried:
    gain, nll = found - plain, -float(found.mean())
    errors: Any = {"nll_error": _error(found), "gain_error": _error(gain)}
    return replace(one, seconds=round(seconds, 1), nll=nll, gain=float(gain.mean()), **errors)


def _error(values: Tensor) -> float:
    return float(values.std() / len(values) ** 0.5) if len(values) > 1 else 0.0


def _log_probs(model: nn.Module, val: Any, samples: int, seed: int) -> Tensor:
    """The log-likelihood log p(y | x) of every datum."""
    found = []
    for batch in stream(val):
        inputs, targets = batches.split(batch)
        values = predict(model, inputs, samples=samples, seed=seed).log_prob(targets).detach().double().cpu()
        found.append(values.flatten(1).sum(1) if values.ndim > 1 else values)
    return torch.cat(found)


def _example(val: Any) -> Any:
    """The inputs of the first batch, at most two data."""
    for batch in stream(val):
        inputs, targets = batches.split(batch)
        if targets is None:
            raise DataError("val: expected inputs and targets, received inputs alone; pass (x, y)")
        return batches.rows(inputs, 0, min(2, batches.size(inputs)))
    raise DataError("val: expected at least one batch, received none")


def _limits(budget: Any) -> dict[str, float]:
    """The budget by name; one number is for parameters and training."""
    hint = 'pass "2x", 2.0 or {"parameters": 2, "training": 3, "prediction": 16}'
    if isinstance(budget, Mapping):
        unknown = [name for name in budget if name not in MEASURES]
        if unknown or not budget:
            checks.refuse("budget", f"some of {', '.join(MEASURES)}", list(budget), hint=hint)
        return {name: checks.number(f"budget[{name!r}]", value, at_least=1) for name, value in budget.items()}
    if isinstance(budget, str):
        found = re.fullmatch(r"(\d+(?:\.\d+)?)x", budget)
        if found is None:
            checks.refuse("budget", "a number of times the plain network", budget, hint=hint)
        budget = float(found[1])
    limit = checks.number("budget", budget, at_least=1, hint=hint)
    return {"parameters": limit, "training": limit}


def _method(name: str, value: Any) -> Method:
    if not isinstance(value, Method) or type(value) is Method:
        raise ConfigError(f"{name}: expected a method such as lb.MeanField(), received {checks.short(value)}")
    return value


def _named(methods: list[Method]) -> dict[str, Method]:
    """Methods by the name of their class, or by their repr if a class occurs twice."""
    kinds = [type(method).__name__ for method in methods]
    return {kind if kinds.count(kind) == 1 else str(m): m for kind, m in zip(kinds, methods, strict=True)}
