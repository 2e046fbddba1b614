"""One network on the compiled path and on the dense path: what came out, and where the two differ."""

from __future__ import annotations

import copy
import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.errors import LeanBayesError
from leanbayes.kernels import library
from leanbayes.layers.sparse import dense_path

from .program import Program

Record = dict[str, Any]
TOLERANCE = 1e-5
"""Of the largest number of a tensor."""
ROUNDING = 5e-7
"""The size of the rounding errors that a network must be able to bear, likewise."""
ONLY_DENSE = ("modified by an inplace operation", "view size is not compatible")
"""Errors of the dense path about its memory, which another layout of memory need not have."""
kernel_calls = 0


@functools.cache
def count_kernel_calls() -> None:
    """From now on, `kernel_calls` counts the calls into the compiled library."""
    real = library.call

    def counted(*arguments: Any) -> None:
        global kernel_calls
        kernel_calls += 1
        real(*arguments)

    for name, module in list(sys.modules.items()):
        if name.startswith("leanbayes") and getattr(module, "call", None) is real:
            vars(module)["call"] = counted


def sparse(program: Program) -> nn.Module:
    """The program's network with sparse layers, without hooks."""
    net = program.build()
    layers = {n: m for n, m in net.named_children() if isinstance(m, (nn.Conv2d, nn.Linear)) and n not in program.dense}
    options = {"keep_weights": True} | ({"std": 0.3} if program.method == "SparseSubspace" else {})
    rules = {}
    for name, module in layers.items():
        # above these densities the compiled path is not taken
        count, share = module.weight.numel(), 0.5 if isinstance(module, nn.Conv2d) else 0.2
        rules[name] = getattr(lb, program.method)(density=max(int(share * count), 1) / count, **options)
    lb.bayesianize_(net, rules)
    return net


def run(net: nn.Module, program: Program, call: int) -> Record:
    """Outputs, gradients, buffers and what hooks saw in one call; under "error" what it raised."""
    record: Record = {}
    net.seen.clear(), net.kept.clear()
    net.zero_grad(set_to_none=True)
    net.train(program.training)
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    inputs = program.arguments(call)
    generator = torch.Generator().manual_seed(program.seed)
    try:
        with getattr(torch, program.grad)():
            outputs = net(*inputs)
            record |= {f"output {name}": plain(t) for name, t in zip(program.returned, outputs, strict=True)}
        terms = [(t * torch.randn(t.shape, generator=generator)).sum() for t in outputs]
        if any(term.requires_grad for term in terms):
            sum(terms).backward()
    except Exception as error:
        record["error"] = error
        return record
    named = [*zip(("x", "t"), inputs, strict=True), *net.named_parameters()]
    record |= {f"gradient {name}": plain(t.grad) for name, t in named}
    record |= {f"gradient kept {k}": plain(t.grad) for k, t in net.kept.items()}
    record |= {f"buffer {name}": plain(t) for name, t in net.named_buffers()}
    record |= {f"seen {k}.{i}": plain(t) for k, values in net.seen.items() for i, t in enumerate(values)}
    return record


def plain(value: Any) -> Any:
    """A copy as an ordinary tensor; numbers and lists as they are."""
    with torch.no_grad():
        return torch.empty(value.shape, dtype=value.dtype).copy_(value) if isinstance(value, Tensor) else value


def both(program: Program, mode: str) -> list[tuple[Record, Record, Callable[[], list[Record]]]]:
    """Every call of a program on the compiled path, on the dense path, and dense with rounding errors if asked for."""
    context = {"estimator": "weight"} if mode == "weight" else {"mean_only": True}
    ours, theirs, rounded = (copy.deepcopy(net) for net in [sparse(program)] * 3)
    start = copy.deepcopy(ours.state_dict())
    noise = torch.Generator().manual_seed(program.seed)

    def with_errors(t: Tensor) -> Tensor:
        return t + ROUNDING * float(t.detach().abs().max()) * torch.randn(t.shape, generator=noise)

    def roughened(module: nn.Module, inputs: Any, out: Any) -> Any:
        if isinstance(out, tuple):
            return tuple(roughened(module, inputs, t) for t in out)
        if not isinstance(out, Tensor) or not out.is_floating_point() or out.numel() == 0:
            return out
        out = with_errors(out)
        if out.requires_grad:  # gradients too: a small one may be the sum of many large ones
            out.register_hook(with_errors)
        return out

    for module in rounded.modules():
        module.register_forward_hook(roughened)
    for net in (ours, theirs, rounded):
        program.hook(net)

    def result(net: nn.Module, call: int) -> Record:
        net.load_state_dict(start)
        torch.manual_seed(program.seed)
        with lb.using(**context), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(net, program, call)

    found = []
    for call in range(len(program.calls)):
        compiled = result(ours, call)
        with dense_path():
            dense = result(theirs, call)

        def rough(call: int = call) -> list[Record]:
            with dense_path():
                return [result(rounded, call) for _ in range(8)]

        found.append((compiled, dense, rough))
    return found


def difference(ours: Record, theirs: Record, rough: Callable[[], list[Record]]) -> str | None:
    """What differs, most important first; None where nothing does. "refused": a LeanBayesError of the compiled path."""
    mine, other = ours.get("error"), theirs.get("error")
    if isinstance(mine, LeanBayesError):
        return None if other is not None else "refused"
    if mine is not None and other is None:
        return f"raises {type(mine).__name__}: {_line(mine)}"
    if mine is not None:
        same = isinstance(mine, type(other)) or isinstance(other, type(mine))
        return None if same else f"raises {type(mine).__name__} instead of {type(other).__name__}: {_line(mine)}"
    if other is not None:
        known = any(text in str(other) for text in ONLY_DENSE)
        return None if known else f"no error, expected {type(other).__name__}: {_line(other)}"
    if ours.keys() != theirs.keys():
        return f"records on one path only: {sorted(ours.keys() ^ theirs.keys())}"
    wrong = {name for name in theirs if not close(ours[name], theirs[name])}
    if wrong:
        responses = [other for other in rough() if "error" not in other]
        wrong = {n for n in wrong if not close(ours[n], theirs[n], [r[n] for r in responses if n in r])}
    order = [name for name in theirs if name in wrong]
    return f"{order[0].split()[0]} differs: {', '.join(order[:6])}" if order else None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def close(mine: Any, other: Any, rough: list[Any] | None = None) -> bool:
    """Equal up to rounding, which is what the dense path itself answers to rounding errors where this is known."""
    if not isinstance(other, Tensor):
        if isinstance(other, float):
            return close(torch.tensor(mine), torch.tensor(other), [torch.tensor(r) for r in rough or []])
        return bool(mine == other) or any(r == mine for r in rough or [])
    if not isinstance(mine, Tensor) or mine.shape != other.shape or mine.dtype != other.dtype:
        return False
    if other.numel() == 0 or torch.equal(mine, other):
        return True
    mine, other = mine.double(), other.double()
    finite = other[other.isfinite()]
    allowed = TOLERANCE * float(finite.abs().max()) if len(finite) else 0.0
    steps = [(r.double() - other).abs().nan_to_num() for r in rough or [] if r.shape == other.shape]
    allowed += 4 * max((float(step.max()) for step in steps), default=0.0)
    return bool(torch.isclose(mine, other, rtol=0, atol=allowed, equal_nan=True).all())
