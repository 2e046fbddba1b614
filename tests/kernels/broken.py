"""What the compiled kernels must refuse: arguments of working calls, changed in one way each."""

from __future__ import annotations

import contextlib
import random
from unittest import mock

import torch
from tests.kernels import gaussian_cases
from tests.kernels.cases import batch_of, convolution, nonzeros_of

from leanbayes.errors import LeanBayesError
from leanbayes.kernels import gaussian, layout, library, norm, plan as plans, sparse
from leanbayes.kernels.buffers import empty
from leanbayes.kernels.geometry import Geometry

HUGE = (0, -1, 2**31 - 1, 2**31, 2**32 + 1, 2**40, 2**62, -(2**63))


def invalid(seed):
    """Run a case that must be refused, and say which kind it was."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    kind = rng.choice([shapes, places, geometries, count_of_elements, fuzzed])
    kind(rng)
    return kind.__name__


def refused(function, *arguments):
    """Fail unless it is refused with an error of ours."""
    try:
        function(*arguments)
    except LeanBayesError:
        return
    raise AssertionError(f"not refused: {[library._about(a) for a in arguments]}")


def working_calls(rng):
    """Names and arguments of every call of one small pass forward and backward."""
    calls = []

    def record(name, *arguments):
        calls.append((name, arguments))
        library.call(name, *arguments)

    with contextlib.ExitStack() as stack:
        for module in (sparse, norm, layout, plans):
            stack.enter_context(mock.patch.object(module, "call", record))
        g, batch = convolution(rng, 6), batch_of(rng)
        index = nonzeros_of(rng, g)[:200]
        ready = plans.plan(g, index)
        x = layout.block(torch.randn(batch, g.inputs, *g.size))
        mu, sigma, bias = torch.randn(len(index)), torch.rand(len(index)), torch.randn(g.outputs)
        y, slope = sparse.both(x, mu, sigma, bias, ready, 3, batch)
        layout.unblock(y, [batch, g.outputs, *g.out_size])
        ours = norm.Norm(torch.rand(g.outputs), torch.rand(g.outputs), *norm.moments(y, batch), 1e-5, True)
        out = norm.finish(y, batch, ours, y.clone(), True)
        line, *_ = norm.gradients(y, batch, y.clone(), out, True, ours, empty(y.shape))
        order = ready.backward.rows, ready.backward.offsets, ready.backward.slots
        given = (y.clone(), x, mu, sigma, slope, order, ready.numbers(batch), [True] * 3, out, y, line, True)
        sparse.gradients(*given)
    record("leanbayes_norm_input", norm.sizes(y, batch), y, y.clone(), out, 1, line, empty(y.shape))
    p = Geometry(g.inputs, g.inputs, 1, (min(2, g.size[0]), min(3, g.size[1])), (2, 1), (0, 0), g.size)
    pooled = empty((x.shape[0], p.out_size[0] * p.out_size[1], *x.shape[2:]))
    won = torch.empty(pooled.shape, dtype=torch.int8)
    record("leanbayes_pool", p.numbers(batch), x, pooled, won, 0)
    record("leanbayes_pool_backward", p.numbers(batch), pooled, won, empty(x.shape))
    record("leanbayes_perturb", mu, sigma, mu.clone(), mu.clone(), 7)
    with mock.patch.object(gaussian, "call", record):
        gaussian_cases.calls(rng)
    given = torch.randn(3, 2, 4, 5, 6), torch.randn(3, 7, 4, 3, 2), torch.randn(3, 7), torch.empty(3, 2, 7, 5, 5)
    record("leanbayes_convolve", [3, 2, 4, 7, 3, 2, 1, 0, 5, 6], *given)
    form, rows = rng.randint(0, 3), rng.choice([n for n in (1, 2, max(len(mu), 1)) if len(mu) % n == 0])
    record("leanbayes_divergence", form, 0, 0.0, 1.0, rows, mu, sigma, torch.empty(rows))
    record(
        "leanbayes_divergence_gradients", form, 0, 0.0, 1.0, rows, mu, sigma, torch.empty(rows), mu.clone(), mu.clone()
    )
    return calls


def shapes(rng):
    """Activations and parameters of other sizes than the plan's, through the functions that layers call."""
    g, batch = convolution(rng, 6), batch_of(rng)
    index = nonzeros_of(rng, g)
    ready, n = plans.plan(g, index), len(index)
    size, wrong = list(g.size), rng.choice(["channels", "height", "batch", "mu", "sigma", "bias", "noise", "dtype"])
    channels, more = g.inputs, rng.choice([1, 3, 16, 1000])
    if wrong == "channels":
        channels = rng.choice([c for c in (channels - 1, channels + more) if c])
    if wrong == "height":
        size[0] += more
    x = layout.block(torch.randn(batch, channels, *size))
    values = {"mu": torch.randn(n), "sigma": torch.rand(n), "bias": torch.randn(g.outputs)}
    if wrong in values:
        values[wrong] = torch.rand(len(values[wrong]) + rng.choice([1, more, -1 if len(values[wrong]) else 1]))
    noise = torch.randn(x.shape[0], 1, g.outputs + 1, 16) if wrong == "noise" else 3
    batch += 16 * more if wrong == "batch" else 0
    x = x.double() if wrong == "dtype" else x
    refused(sparse.both, x, *values.values(), ready, noise, batch)


def places(rng):
    """An index that is not one of places of the weight, each once."""
    g = convolution(rng, 6)
    index, numel = nonzeros_of(rng, g), g.weights
    index = index if len(index) else torch.zeros(1, dtype=torch.int32)
    wrong = rng.choice(["beyond", "negative", "twice", "type", "matrix"])
    at = rng.randrange(len(index))
    if wrong == "beyond":
        index[at] = rng.choice([numel, numel + 1, 2**31 - 1])
    if wrong == "negative":
        index[at] = rng.choice([-1, -numel, -(2**31)])
    if wrong == "twice":
        index = torch.cat([index, index[at : at + 1]])[torch.randperm(len(index) + 1)]
    if wrong == "type":
        index = index.to(rng.choice([torch.int64, torch.float32, torch.int16]))
    refused(plans.plan, g, index[None] if wrong == "matrix" else index)


def geometries(rng):
    """A plan for what is no convolution: too small images, strides beyond the tables, groups that do not divide."""
    g = convolution(rng, 6)
    options = {name: getattr(g, name) for name in Geometry.__dataclass_fields__}
    name = rng.choice(list(options))
    if name in ("outputs", "inputs"):
        options[name] = rng.choice([0, -1, -(2**31), 2**31, 2**40])
    elif name == "groups":
        options[name] = rng.choice([0, -1, options["inputs"] + 1])
    elif name == "padding":
        options[name] = rng.choice([(-1, 0), (0, -(2**31)), (2**31, 0), (2**62, 2**62)])
    elif name == "stride":
        options[name] = rng.choice([(0, 1), (1, -1), (9, 1), (1, 2**31)])
    elif name == "kernel":
        options[name] = rng.choice([(0, 1), (1, -1), (g.size[0] + 2 * g.padding[0] + 1, 1), (1, 2**40)])
    else:
        options[name] = rng.choice([(0, 1), (1, -1), (2**31, 1), (2**40, 2**40)])
    refused(plans.plan, Geometry(**options), torch.zeros(1, dtype=torch.int32))


def count_of_elements(rng):
    """A tensor with other elements than the shape says, of another type, not side by side, or missing."""
    name, arguments = rng.choice(working_calls(rng))
    changed = list(arguments)
    tensors = [i for i, a in enumerate(arguments) if isinstance(a, torch.Tensor) and a.numel()]
    if not tensors:
        return
    at = rng.choice(tensors)
    x, flat = arguments[at], arguments[at].flatten()
    ways = [flat.double(), flat.to("meta"), flat.long(), flat.to_sparse()]
    if len(flat) > 1:
        ways.append(torch.cat([flat, flat])[::2])
    ways += [flat[:-1], torch.cat([flat, flat]), torch.cat([flat, flat[:1]]), flat.half(), 1.5, [1, 2], 3]
    if x.is_floating_point():
        ways.append(torch._neg_view(flat))
    if name == "leanbayes_plan" and at == 1:  # an index of fewer places, or of more, is another plan
        ways = ways[:4]
    changed[at] = rng.choice(ways)
    refused(library.call, name, *changed)


def fuzzed(rng):
    """Any argument replaced by any other: refused, or a call that makes sense by chance. Nothing else may happen."""
    name, arguments = rng.choice(working_calls(rng))
    changed = list(arguments)
    at = rng.randrange(len(changed))
    value = changed[at]
    if isinstance(value, list) and rng.random() < 0.9:
        changed[at] = list(value)
        for _ in range(rng.randint(1, 2)):
            i = rng.randrange(len(value))
            changed[at][i] = rng.choice([*HUGE, value[i] + 1, value[i] - 1, value[i] * 2, rng.randint(0, 20)])
    else:
        # the tables of a plan are trusted but for their seal: one is not taken for another of them
        tensors = [a for a in arguments if isinstance(a, torch.Tensor) and a.dtype != torch.int32]
        changed[at] = rng.choice([None, *HUGE, 0.5, [], [1] * 15, [1, 1, 1, 1], *tensors])
    if rng.random() < 0.2:
        changed = changed[:-1] if rng.random() < 0.5 else [*changed, changed[-1]]
    copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in changed]  # no two are the same memory
    try:
        library.call(name, *copies)
    except LeanBayesError:
        return
