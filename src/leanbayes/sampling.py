"""The sampling context, which decides how every random site draws.

A plain module-level object rather than a ContextVar: a ContextVar inside `forward` breaks full-graph compilation.
A `Site` draws afresh in training; in `predict` its noise is handed over here, so that a seed repeats a prediction and
`torch.func.vmap` can run over the noise.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from . import checks
from .turns import Turn, check_forward
from .walk import modules

Estimator = Literal["local", "weight", "flipout"]
ESTIMATORS: tuple[str, ...] = get_args(Estimator)


class Site(nn.Module):
    """A random site: a module that draws noise. Base of posteriors, masks and other random modules.

    is_site: False where another module draws for it, as the assignment of a mixture does.
    has_mean: False where a pass at the means is meaningless; no_mean then says why, for an error message.
    gaussian: whether its values are independent Gaussians, so that the negative of its noise is as likely.
    is_laid_out: whether `of_sample` lays its values out over the samples instead of drawing each by itself.
    single_index: whether its noise is one whole number, so that samples with the same number can be computed together.
    folds: whether samples with values of their own cost what one larger batch costs.
    in_pieces: whether the model goes through the data in pieces from there on, so that only its output is whole.
    learns_shape: whether the shape of its noise is known only once it has seen an input; ``shapes`` are those it knows.

    A subclass gives `noise` and ``device``, where that noise is needed.
    """

    is_site: bool = True
    has_mean: bool = True
    no_mean: str = ""
    gaussian: bool = False
    is_laid_out: bool = False
    single_index: bool = False
    folds: bool = False
    in_pieces: bool = False
    learns_shape: bool = False
    shapes: list[tuple[int, ...]]
    device: Any

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        """The random numbers that one draw needs; on the device of the generator, if there is one."""
        raise NotImplementedError

    def of_sample(self, seed: int, number: int, sample: int) -> Tensor:
        """The noise in one sample: a function of (seed, number of the site, sample) alone."""
        return independent(self, seed, number, sample)

    def of_samples(self, seed: int, number: int, samples: Sequence[int], balanced: bool | None = None) -> Tensor:
        """The noise in several samples, (samples, ...).

        balanced: None as `of_sample` gives it; True mirrors the Gaussian noise of every second sample.
        """
        if not (balanced and self.gaussian):
            return torch.stack([noise_of(self, seed, number, sample) for sample in samples])
        pairs = [(noise_of(self, seed, number, sample - sample % 2), sample % 2) for sample in samples]
        return torch.stack([-first if second else first for first, second in pairs])

    def noise_kind(self) -> tuple[Any, ...] | None:
        """(distribution, shape, ...): everything its noise depends on besides (seed, number, sample), or None.

        Noise of a known kind is kept from one prediction to the next.
        """
        return None

    def cycle(self, balanced: bool | None = None, alone: bool = True) -> int | None:
        """The number of samples after which they repeat, or None. alone: whether the model has no other site."""
        return None

    def states(self) -> tuple[int, float]:
        """How many random numbers it takes, and the logarithm to base 10 of how many values it has."""
        return self.noise(torch.Generator()).numel(), math.log10(self.cycle() or math.inf)


class _Context:
    """The settings that layers read when they run."""

    estimator: str | None = None
    mean_only: bool = False
    draws: Mapping[int, Tensor] | None = None
    watch: Callable[[Site], None] | None = None  # told of every draw; see `watching`
    scales: dict[int, Tensor] | None = None  # standard deviations by id(rho); see `kept_scales`
    values: Callable[[Site], Tensor | None] | None = None  # draws that were made beforehand; see `prepared`


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
def watching(watch: Callable[[Site], None]) -> Iterator[None]:
    """Call ``watch`` at every draw of a block; sites whose shapes depend on the input record them meanwhile."""
    before, context.watch = context.watch, watch
    try:
        yield
    finally:
        context.watch = before


@contextlib.contextmanager
def kept_scales() -> Iterator[None]:
    """Compute each standard deviation once in a block of passes through one model, unless there are gradients."""
    before, context.scales = context.scales, None if torch.is_grad_enabled() else {}
    try:
        yield
    finally:
        context.scales = before


@contextlib.contextmanager
def prepared(values: Callable[[Site], Tensor | None]) -> Iterator[None]:
    """Take draws of posteriors from a function in a block; if it returns None they are made from noise as usual."""
    before, context.values = context.values, values
    try:
        yield
    finally:
        context.values = before


def value(posterior: Any) -> Tensor:
    """A draw of a posterior: one that was prepared, or one made of its noise."""
    if context.values is not None and (found := context.values(posterior)) is not None:
        return found
    return posterior.sample(draw(posterior))  # type: ignore[no-any-return]


def handed_over(site: Site) -> Tensor | None:
    """The noise of a site in the context, or None if the site has to draw."""
    check_forward(site)
    if context.watch is not None:
        context.watch(site)
    return None if context.draws is None else context.draws.get(id(site))


def draw(site: Site) -> Tensor:
    """The noise of a site: what the context hands over, or a fresh draw."""
    given = handed_over(site)
    return site.noise() if given is None else given


def sites(model: nn.Module) -> dict[str, Site]:
    """Every random site of a model by name, each once; the order numbers them."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Site) and module.is_site}


def is_random(model: nn.Module) -> bool:
    """Whether a model has random sites.

    >>> is_random(nn.Linear(2, 2))
    False
    """
    return any(isinstance(module, Site) and module.is_site for module in modules(model))


def has_means(model: nn.Module) -> bool:
    """Whether a pass at the means of a model is one of a network."""
    return all(module.has_mean for module in modules(model) if isinstance(module, Site))


def taking_part(model: nn.Module) -> Iterator[nn.Module]:
    """The modules that a pass of a model uses: all except the resting members of an ensemble."""
    found = modules(model)
    resting = [member for layer in _with(found, "resting_members") for member in layer.resting_members]
    out = {id(part) for member in resting for part in modules(member)}
    return (module for module in found if id(module) not in out)


def with_method(model: nn.Module, name: str) -> Iterator[Any]:
    """The modules of a model that a draw concerns and that have a method, or another attribute of their class."""
    return _with(taking_part(model), name)


def _with(found: Iterable[nn.Module], name: str) -> Iterator[Any]:
    # of the class first: that a module has none takes torch a microsecond to say, and there are hundreds in a step
    return (module for module in found if hasattr(type(module), name) or name in module.__dict__)


def laid_out(model: nn.Module, seed: int, sample: int) -> dict[int, Tensor]:
    """The noise of the sites that are laid out over the samples, in one of them, by ``id(site)``."""
    numbered = enumerate(sites(model).values())
    return {id(site): site.of_sample(seed, i, sample) for i, site in numbered if site.is_laid_out}


def noise_of(site: Site, seed: int, number: int, sample: int) -> Tensor:
    """The noise of one site in one sample: a function of (seed, site number, sample) alone."""
    return site.of_sample(seed, number, sample)


def independent(site: Site, seed: int, number: int, sample: int) -> Tensor:
    """The noise of one site in one sample, independent of other samples, laid out or not.

    Drawn on the CPU, so that a seed means the same on every device.
    """
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
