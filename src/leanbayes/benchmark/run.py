"""`benchmark` and `scaling`: networks take turns, so that a slow phase of the machine affects all of them."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from .. import batches, checks
from ..convert.apply import bayesianize_
from ..costs import cost
from ..errors import ConfigError, ConversionError
from ..evaluation.progress import Bar
from ..kl import kl_sum, unscaled_sum
from ..method import Method
from ..methods.dropout import Dropout
from ..methods.ensemble import Ensemble
from ..methods.mean_field import MeanField
from ..methods.nested import Nested
from ..methods.patch import Patch
from ..methods.sparse import SparseSubspace
from ..methods.variance import Variance
from ..methods.variational_dropout import VariationalDropout
from ..prediction.api import predict
from ..timing import in_turns, ratio
from ..training.callbacks import State, callbacks, notify
from .result import MEASURES, Benchmark, Scaling, Timed

METHODS: tuple[Method, ...] = (
    MeanField(), VariationalDropout(), Variance(), Dropout(), Patch(), Ensemble(), Nested(),
    SparseSubspace(thinning=0.0),
)  # fmt: skip
"""What is timed unless told otherwise; a sparse network as it is once it has been thinned out."""
PLAIN = "plain"
FEWEST, MOST = 5, 100
"""Turns of every measurement."""
BUSY = 0.3
"""The load average above which a machine is not idle."""
NUM_DATA = 10_000  # what the KL is divided by, which does not change what it costs

Work = dict[str, dict[str, Callable[[], Any]]]
"""For every measure of `MEASURES`, what each network does."""


def benchmark(
    model: nn.Module,
    inputs: Any,
    *,
    methods: Iterable[Method] = METHODS,
    task: Any = "classification",
    samples: int = 16,
    seconds: float = 60.0,
    threads: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Benchmark:
    """Time a network under several methods, in turns, beside the plain network: what each costs here.

    A training step is forward, a stand-in for the loss (the mean square of the outputs) with the KL, backward, SGD with
    momentum, and what a method does around it. A prediction is `lb.predict` of all inputs, and of the first one, with
    ``samples`` draws; it is compared with one bare forward pass of the plain network. The given model stays as it is.

    inputs: one batch, as `lb.predict` takes it. methods: what is timed; those that cannot convert the network have the
    reason in the table. seconds: how long it may take, about; there are 5 turns at least. threads: of torch; None for
    those it has.

    >>> import leanbayes as lb
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> found = lb.benchmark(net, torch.randn(16, 4), methods=[lb.MeanField()], seconds=0.1, progress=False)
    >>> [row.name for row in found.rows], found.rows[1].step.median > 0
    (['plain', 'MeanField'], True)
    """
    inputs, samples, seed = _checked(model, inputs, samples, seconds, threads, seed, progress)
    wanted = checks.iterable_of("methods", methods, "methods such as lb.MeanField()", _method)
    names = _names(wanted)
    notes = _idle()
    with _threads(threads), torch.random.fork_rng(devices=[]), Bar(shown=progress) as bar:
        torch.manual_seed(seed)
        models, rows = _converted(model, dict(zip(names, wanted, strict=True)), inputs)
        work = _work(models, model, inputs, task, samples, seed)
        bar.expect(len(MEASURES))
        found = {}
        for name, each in work.items():
            bar.stage(MEASURES[name])
            found[name] = _timed(each, seconds / len(MEASURES))
            bar.advance(1)
        settings = {"data": batches.size(inputs), "samples": samples, **_machine()}
    for name in models:
        times = {what: ratio(all_times[name], all_times[PLAIN]) for what, all_times in found.items()}
        rows[name] = dataclasses.replace(rows[name], **times)  # type: ignore[arg-type]
    return Benchmark(tuple(rows.values()), settings, notes)


def scaling(
    model: nn.Module,
    inputs: Any,
    method: Method,
    vary: str,
    values: Iterable[float],
    *,
    task: Any = "classification",
    samples: int = 16,
    seconds: float = 60.0,
    threads: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Scaling:
    """Time a network under a method at several values of something, and find the power that the time grows with.

    vary: "batch" (so many of the inputs), "samples", "threads", or a setting of the method, such as "density".
    See `benchmark` for what is timed and for the other arguments.

    >>> import leanbayes as lb
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> options = {"seconds": 0.1, "progress": False}
    >>> found = lb.scaling(net, torch.randn(16, 4), lb.MeanField(), "samples", (1, 4), **options)
    >>> found.values, sorted(found.slopes)
    ((1, 4), ['batch', 'single', 'step'])
    """
    inputs, samples, seed = _checked(model, inputs, samples, seconds, threads, seed, progress)
    method = _method("method", method)
    chosen = tuple(checks.iterable_of("values", values, "numbers above 0", partial(checks.number, above=0)))
    if len(set(chosen)) < 2:
        raise ConfigError(f"values: expected at least two different ones, received {checks.short(values)}")
    settings_of = [field.name for field in dataclasses.fields(method)]
    checks.one_of("vary", vary, ("batch", "samples", "threads", *settings_of))
    if vary in ("batch", "samples", "threads"):
        chosen = tuple(checks.whole_number("values", int(v) if v == int(v) else v) for v in chosen)
    if vary == "batch" and max(chosen) > batches.size(inputs):
        raise ConfigError(f"values: expected batches of at most {batches.size(inputs)} data, received {max(chosen):g}")
    notes = _idle()
    found: dict[str, list[float]] = {name: [] for name in MEASURES}
    with torch.random.fork_rng(devices=[]), Bar(shown=progress) as bar:
        bar.expect(len(chosen))
        for value in chosen:
            bar.stage(f"{vary} {value:g}")
            torch.manual_seed(seed)
            part = batches.rows(inputs, 0, int(value)) if vary == "batch" else inputs
            one = dataclasses.replace(method, **{vary: value}) if vary in settings_of else method  # type: ignore[arg-type]
            draws = int(value) if vary == "samples" else samples
            with _threads(int(value) if vary == "threads" else threads):
                converted = copy.deepcopy(model)
                bayesianize_(converted, one)
                for name, each in _work({"own": converted}, model, part, task, draws, seed).items():
                    times = _timed({"own": each["own"]}, seconds / len(chosen) / len(MEASURES))
                    found[name].append(min(times["own"]))
            bar.advance(1)
        about = {"data": batches.size(inputs), "samples": samples, **_machine()}
    seconds_of = {name: tuple(times) for name, times in found.items()}
    kept = {name: value for name, value in about.items() if name != {"batch": "data"}.get(vary, vary)}
    return Scaling(type(method).__name__, vary, chosen, seconds_of, kept, notes)


def _checked(
    model: Any, inputs: Any, samples: Any, seconds: Any, threads: Any, seed: Any, progress: Any
) -> tuple[Any, int, int]:
    checks.module("model", model)
    if not any(p.requires_grad for p in model.parameters()):
        raise ConfigError("model: expected a network with parameters that are trained, received one without")
    checks.number("seconds", seconds, above=0)
    if threads is not None:
        checks.whole_number("threads", threads)
    checks.flag("progress", progress)
    given = batches.accept(inputs, model, name="inputs", arguments=True)
    return given, checks.samples(samples), checks.seed(seed)


def _method(name: str, value: Any) -> Method:
    return checks.instance(name, value, Method, "a method such as lb.MeanField()")  # type: ignore[no-any-return]


def _names(methods: list[Method]) -> list[str]:
    """The class of each method, or its repr if a class occurs twice."""
    kinds = [type(method).__name__ for method in methods]
    return [kind if kinds.count(kind) == 1 else str(m) for kind, m in zip(kinds, methods, strict=True)]


def _converted(
    model: nn.Module, methods: Mapping[str, Method], inputs: Any
) -> tuple[dict[str, nn.Module], dict[str, Timed]]:
    """Copies of the network under every method, the plain one first, and their rows, which have no times yet."""
    example = batches.rows(inputs, 0, min(2, batches.size(inputs)))
    plain = cost(model, example).active_parameters
    models, rows = {PLAIN: copy.deepcopy(model)}, {PLAIN: Timed(PLAIN)}
    for name, method in methods.items():
        converted = copy.deepcopy(model)
        try:
            bayesianize_(converted, method)
        except ConversionError as error:
            rows[name] = Timed(name, note=str(error))
            continue
        models[name] = converted
        rows[name] = Timed(name, cost(converted, example).active_parameters / max(plain, 1))
    return models, rows


def _work(models: Mapping[str, nn.Module], plain: nn.Module, inputs: Any, task: Any, samples: int, seed: int) -> Work:
    """The functions to time, by measure and network; the plain network predicts by a bare pass."""
    work: Work = {"step": {name: _step(each, inputs) for name, each in models.items()}}
    for what, data in (("batch", inputs), ("single", batches.rows(inputs, 0, 1))):
        work[what] = {
            name: partial(_pass, copy.deepcopy(plain).eval(), data)
            if name == PLAIN
            else partial(predict, each, data, task=task, samples=samples, seed=seed)
            for name, each in models.items()
        }
    return work


def _pass(model: nn.Module, inputs: Any) -> None:
    with torch.inference_mode():
        batches.call(model, inputs)


def _step(model: nn.Module, inputs: Any) -> Callable[[], None]:
    """A training step of a copy of a network, with a learning rate that hardly changes it."""
    own = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(own.parameters(), lr=1e-9, momentum=0.9)
    hooks, state = callbacks(own), State(own, optimizer, total_steps=NUM_DATA)
    notify(hooks, "fit_start", state)

    def step() -> None:
        notify(hooks, "before_step", state)
        optimizer.zero_grad(set_to_none=True)
        loss = batches.output_tensor(batches.call(own, inputs)).square().mean() + kl_sum(own) / NUM_DATA
        more = unscaled_sum(own)
        state.closure = lambda: batches.output_tensor(batches.call(own, inputs)).square().mean()
        (loss if more is None else loss + more).backward()  # type: ignore[no-untyped-call]
        notify(hooks, "after_backward", state)
        optimizer.step()
        state.step += 1
        notify(hooks, "after_step", state)

    return step


def _timed(work: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    """Seconds by turn, over as many turns as fit."""
    gc.collect()
    began = time.perf_counter()
    in_turns(work, 1)
    turn = max((time.perf_counter() - began) / 2, 1e-9)
    return in_turns(work, min(max(int(seconds / turn) - 2, FEWEST), MOST))


def _machine() -> dict[str, Any]:
    return {"threads": torch.get_num_threads(), "torch": str(torch.__version__).partition("+")[0]}


def _idle() -> tuple[str, ...]:
    """A note about a machine that is busy with other work."""
    with contextlib.suppress(OSError, AttributeError):  # not everywhere
        load = os.getloadavg()[0]
        if load > BUSY:
            cores = os.cpu_count() or 1
            return (f"the machine is not idle (load {load:.1f}, {cores} cores): trust ratios, not small differences",)
    return ()


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
