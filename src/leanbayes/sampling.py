"""The one context that all randomness comes from.

A plain module-level object rather than a ContextVar: a ContextVar inside `forward` breaks full-graph compilation.
A *site* is any module with ``noise(generator=None)``; in training it draws afresh, in `predict` its noise is handed
over here, so that a seed repeats a prediction and `torch.func.vmap` can run over the noise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from . import checks
from .turns import Turn, check_forward

Estimator = Literal["local", "weight", "flipout"]
ESTIMATORS: tuple[str, ...] = get_args(Estimator)


class _Context:
    """What the layers look at when they run."""

    estimator: str | None = None
    mean_only: bool = False
    draws: Mapping[int, Tensor] | None = None
    watch: Callable[[nn.Module], None] | None = None  # told of every draw; see `watching`


context = _Context()


@contextlib.contextmanager
def using(
    *, estimator: Estimator | None = None, mean_only: bool = False, draws: Mapping[int, Tensor] | None = None
) -> Iterator[None]:
    """Run a block with another estimator, at the means, or with given noise.

    estimator: "local" (noise on the pre-activations), "weight" (one whole draw) or "flipout"; None leaves it to
        the layer.
    draws: noise by ``id(site)``, as `noise_of` makes it.

    It holds for the whole process: blocks of other threads, and their predictions, wait until it ends. It is not held
    across an ``await``: there its settings end, and the block raises a PredictionError at its end.

    >>> import leanbayes as lb
    >>> model = nn.Linear(3, 2)
    >>> _ = lb.bayesianize_(wrapped := nn.Sequential(model), lb.MeanField())
    >>> x = torch.ones(1, 3)
    >>> with lb.using(mean_only=True):
    ...     bool((wrapped(x) == wrapped(x)).all())
    True
    """
    if torch.compiler.is_compiling():  # dynamo cannot enter a lock
        before = (context.estimator, context.mean_only, context.draws)
        context.estimator, context.mean_only, context.draws = estimator, mean_only, draws
        try:
            yield
        finally:
            context.estimator, context.mean_only, context.draws = before
        return
    checks.one_of("estimator", estimator, (*ESTIMATORS, None))
    checks.flag("mean_only", mean_only)
    if draws is not None:
        checks.instance("draws", draws, Mapping, "noise by id(site)")
    turn = Turn()
    with turn:
        turn.undo = partial(_set, context.estimator, context.mean_only, context.draws)
        _set(estimator, mean_only, draws)
        yield


def _set(estimator: str | None, mean_only: bool, draws: Mapping[int, Tensor] | None) -> None:
    context.estimator, context.mean_only, context.draws = estimator, mean_only, draws


@contextlib.contextmanager
def watching(watch: Callable[[nn.Module], None]) -> Iterator[None]:
    """Be told of every draw of a block; sites whose shapes depend on the input take note of them meanwhile."""
    before, context.watch = context.watch, watch
    try:
        yield
    finally:
        context.watch = before


def draw(site: Any) -> Tensor:
    """The noise of a site: what the context hands over, or a fresh draw."""
    check_forward(site)
    if context.watch is not None:
        context.watch(site)
    if context.draws is not None and (given := context.draws.get(id(site))) is not None:
        return given
    return site.noise()


def sites(model: nn.Module) -> dict[str, nn.Module]:
    """Every random site of a model by name, each once; the order numbers them."""
    return {name: module for name, module in model.named_modules() if getattr(module, "is_site", False)}


def taking_part(model: nn.Module) -> Iterator[nn.Module]:
    """The modules of a model that a draw concerns: all but the members of an ensemble whose turn it is not."""
    resting = [member for layer in model.modules() for member in getattr(layer, "resting_members", ())]
    out = {id(part) for member in resting for part in member.modules()}
    return (module for module in model.modules() if id(module) not in out)


def laid_out(model: nn.Module, seed: int, sample: int) -> dict[int, Tensor]:
    """What the sites that are laid out over the samples get in one of them; the others are left to draw."""
    numbered = enumerate(sites(model).values())
    return {id(site): noise_of(site, seed, i, sample) for i, site in numbered if hasattr(site, "of_sample")}


def noise_of(site: Any, seed: int, number: int, sample: int) -> Tensor:
    """The noise of one site in one sample: a function of (seed, site number, sample) and of nothing else.

    Drawn on the CPU, so that a seed means the same on every device.
    """
    if hasattr(site, "of_sample"):  # laid out over the samples rather than drawn
        return site.of_sample(seed, number, sample)
    return independent(site, seed, number, sample)


def independent(site: Any, seed: int, number: int, sample: int) -> Tensor:
    """The noise of one site in one sample, drawn by itself, laid out or not."""
    generator = torch.Generator().manual_seed(mix(seed, number, sample))
    return site.noise(generator).to(site.device)


def mix(*words: int) -> int:
    """Fold integers into one well-spread 63-bit seed (splitmix64), so that nearby keys give unrelated streams."""
    state = 0x243F6A8885A308D3
    for word in words:
        state = (state ^ (word & 0xFFFFFFFFFFFFFFFF)) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ state >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1
