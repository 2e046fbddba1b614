"""Random calls of the public functions, from valid arguments to nonsense: each is right or a clear error.

A seed draws a function, valid arguments, and replaces some of them. A call may return, raise a LeanBayesError, or a
ValueError or TypeError that leanbayes (or scikit-learn's validation) itself raises with a message. What the caller's
own data, functions and networks raise passes through. A call that failed has changed nothing: values, modes, hooks and
modules of the model, the random states, the sampling context.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import random
import resource
import signal
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import leanbayes as lb
from leanbayes import sampling, turns
from leanbayes.convert import record

from .calls_targets import DATA, Target, chosen, templates
from .calls_values import HOPELESS, NEARLY_DATA, NONSENSE, NUMBERS, Hostile, HostileError, UserError
from .outcome import Outcome

CASES = 10_000
MEMORY = 12 * 2**30
SECONDS, HUGE = 20, 2**31
"""For a call; one that was asked for more than HUGE of something gets a tenth of it, and may take longer."""
RUNS_THEN_FAILS = ("fit", "BayesClassifier", "distill")
"""Training that fails at a batch has trained on those before."""
EXCUSES = ("mean-only", "how many steps training takes", "balanced:", "settle", "temperature", "bins", "draws networks")
"""What a network or two valid options together may be refused for."""
OPTIMIZERS = ("NaturalGradientSGD", "SGD")
"""Torch checks their parameters, as those of every optimiser."""
Call = tuple[Target, dict[str, Any], dict[str, bool], str | None]


class SlowError(BaseException):
    """The call took longer than it may."""


def generate(seed: int) -> Call:
    """Target, arguments, which of them were replaced (True: by something hopeless), and the model's template."""
    rng = random.Random(seed)
    target = chosen(rng)
    names = list(target.valid)
    given = [name for name in names if name in target.always or rng.random() < 1.5 / max(len(names), 1)]
    arguments = {name: rng.choice(target.valid[name])() for name in given if target.valid[name]}
    replaced: dict[str, bool] = {}
    for _ in range(rng.choice([0, 1, 1, 1, 1, 2])):
        name = rng.choice([*names, *target.always, *([target.model] if target.model else [])] or [""])
        if not name:
            continue
        pool = rng.choice([NONSENSE, NONSENSE, NUMBERS, HOPELESS, *([NEARLY_DATA] * 4 if name in DATA else [])])
        maker = rng.choice(pool)
        arguments[name] = maker()
        replaced[name] = maker in HOPELESS
    template = None
    if target.model and target.model not in arguments:
        template = rng.choice(sorted(templates()))
    return target, arguments, replaced, template


def case(seed: int) -> Outcome:
    """Make the call of a seed and judge it."""
    torch.set_num_threads(1)
    torch.manual_seed(seed), np.random.seed(seed % 2**32), random.seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target, arguments, replaced, template = generate(seed)
        model = None
        if template is not None:
            model = copy.deepcopy(templates()[template])
            model.train(seed % 2 == 0)
            arguments[target.model or ""] = model
        return _judged(target, arguments, replaced, model)


def _judged(target: Target, arguments: dict[str, Any], replaced: dict[str, bool], model: nn.Module | None) -> Outcome:
    templates()
    before = state(model)
    error = _raised(target, arguments)
    where = f"{target.name}({', '.join(replaced)})"
    if error is None:
        if target.name == "main":
            return Outcome(None, ("returned",))
        deaf = [name for name, hopeless in replaced.items() if hopeless and not _may_be_data(name, arguments[name])]
        return Outcome(f"accepted nonsense: {where}" if deaf else None, ("returned",))
    if (fault := wrong(error, target, replaced)) is not None:
        return Outcome(f"{fault}: {where} {type(error).__name__}: {' '.join(str(error).split())[:160]}", ("raised",))
    after = state(model)
    started = target.name in RUNS_THEN_FAILS and not isinstance(error, lb.LeanBayesError | TypeError)
    differing = [part for part in before if not same(before[part], after[part])]
    if any(isinstance(value, DataLoader) for value in arguments.values()):
        differing = [part for part in differing if part != "torch's random state"]  # a loader draws its own seed
    if started or (target.name in RUNS_THEN_FAILS and _in_training(error)):
        differing = [part for part in differing if part not in ("values", "gradients")]
    if differing:
        return Outcome(f"changed by a call that failed: {', '.join(differing)} of {where} {error!r:.100}", ("raised",))
    if not replaced and not _may_fail(target, error):
        return Outcome(f"valid arguments refused: {target.name} {error!r:.160}", ("raised",))
    return Outcome(None, ("raised",))


def _may_be_data(name: str, value: Any) -> bool:
    """An object that can be iterated over may hold data, which are not looked at where they are not needed."""
    return isinstance(value, Hostile) and name in (*DATA, "example_input")


def _raised(target: Target, arguments: dict[str, Any]) -> BaseException | None:
    def stop(*_: Any) -> None:
        raise SlowError

    memory = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, memory[1]))
    before = signal.signal(signal.SIGALRM, stop)
    left = signal.alarm(SECONDS // 10 if _is_huge(arguments) else SECONDS)
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # text may be taken for a path
            target.function(**arguments)
    except SlowError as error:
        return None if _is_huge(arguments) else error
    except BaseException as error:
        return error
    finally:
        signal.alarm(left)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, memory)
    return None


def _is_huge(arguments: dict[str, Any]) -> bool:
    return any(isinstance(value, int) and value >= HUGE for value in arguments.values())


def wrong(error: BaseException, target: Target, replaced: Mapping[str, bool]) -> str | None:
    """Why an error is not one that a caller may expect; None where it is."""
    if isinstance(error, SlowError):
        return "slow"
    if isinstance(error, lb.LeanBayesError):
        return None if str(error) else "error without a message"
    if isinstance(error, UserError):
        return None
    if "/sklearn/" in str(traceback.extract_tb(error.__traceback__)) and {"X", "y", "random_state"} & {*replaced}:
        return None  # what scikit-learn's validation raises, as for every estimator
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, HostileError):
        return None if any(name in DATA for name in replaced) else "hostile object asked"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate memory" in str(error)):
        return None
    modules = [i for i, frame in enumerate(frames) if frame.name == "_call_impl"]
    if modules:  # the network's own error, for inputs that do not fit it
        return None
    theirs = "/sklearn/" if target.name == "BayesClassifier" else "/torch/optim/" if target.name in OPTIMIZERS else None
    own = "/leanbayes/" in frames[-1].filename or (theirs is not None and theirs in frames[-1].filename)
    if isinstance(error, (ValueError, TypeError)) and own and str(error) and "raise" in (frames[-1].line or ""):
        return None
    known = ("required", "unexpected keyword", "takes no arguments")  # Python's, of a call that does not fit a function
    if isinstance(error, TypeError) and any(text in str(error) for text in known):
        return None
    return "raw error"


def _in_training(error: BaseException) -> bool:
    return any(frame.name in ("_step", "_epoch", "validate") for frame in traceback.extract_tb(error.__traceback__))


def _may_fail(target: Target, error: BaseException) -> bool:
    """Some networks have no means, no Gaussian weights or no ordered channels: a function that needs them says so."""
    if target.name in ("predict", "evaluate", "fit", "calibrate_", "conformalize_", "fit_weights", "evaluate_each"):
        return any(text in str(error) for text in EXCUSES)
    return isinstance(error, lb.LeanBayesError)


def state(model: nn.Module | None) -> dict[str, Any]:
    """What a call that fails must leave alone."""
    found: dict[str, Any] = {
        "torch's random state": torch.get_rng_state(),
        "numpy's random state": np.random.get_state()[1].copy(),
        "python's random state": hash(random.getstate()),
        "context": (sampling.context.estimator, sampling.context.mean_only, sampling.context.draws is None),
        "turns": len(turns._turns),
    }
    if model is None:
        return found
    kept = record.get(model)
    return found | {
        "modules": [(name, id(module), type(module)) for name, module in model.named_modules()],
        "modes": [module.training for module in model.modules()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()],
        "values": {k: v.clone() if isinstance(v, Tensor) else v for k, v in model.state_dict().items()},
        "parameters": [(name, id(p), p.requires_grad) for name, p in model.named_parameters()],
        "gradients": [p.grad is None for p in model.parameters()],
        "likelihood": None if kept is None else copy.deepcopy(kept.likelihood),
    }


def same(one: Any, other: Any) -> bool:
    """Equal values, tensors and arrays bit by bit."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.shape == other.shape and torch.allclose(one, other, 0, 0, True)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    return bool(one == other)


def show(seed: int, outcome: Outcome) -> str:
    """The call of a seed, and the traceback of what it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target, arguments, replaced, template = generate(seed)
        text = ", ".join(f"{name}={_shown(value)}" for name, value in arguments.items())
        if template is not None:
            arguments[target.model or ""] = copy.deepcopy(templates()[template]).train(seed % 2 == 0)
        error = _raised(target, arguments)
    lines = traceback.format_exception(error) if error is not None else ["returned\n"]
    return f"{target.name}({text}), {template}, replaced {list(replaced)}\n{''.join(lines)}"


def _shown(value: Any) -> str:
    from leanbayes.checks import short

    return short(value) if not inspect.isgenerator(value) else "a generator"


def weakness(total: int, notes: Counter[str]) -> str | None:
    """Why the calls would mean little, if so: hardly any returns, or hardly any fails."""
    for note in ("returned", "raised"):
        if notes[note] < 0.1 * total:
            return f"{notes[note]} of {total} calls {note}"
    return None
