"""How close the moments of every layer are to those of sampled networks."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ... import batches, checks, sampling
from ...errors import PredictionError
from ...eval_mode import undisturbed
from .carried import Carried, settle
from .engine import OnePass
from .law import Moments
from .walk import Walk


@dataclass(frozen=True)
class LayerMoments:
    """One layer's moments beside those of samples, over all of its outputs.

    layer: the name of the module. mean_error: root mean square error of the means, in root mean square standard
    deviations. variance_ratio: of the average variances, 1 where they agree. correlation: of the standard deviations.
    floor: the mean_error that exact means would have, for the number of samples: 1 / sqrt(samples).
    """

    layer: str
    mean_error: float
    variance_ratio: float
    correlation: float
    floor: float


def check_moments(model: nn.Module, inputs: Any, samples: int = 1000, seed: int = 0) -> list[LayerMoments]:
    """The moments that `predict(..., estimator="moments")` carries, compared with those of samples, layer by layer.

    inputs: one batch, as `predict` takes it; a few dozen data are enough. Layers behind one that has no rule, or that
    give something else than one tensor, are left out.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> _ = lb.bayesianize_(model, lb.MeanField())
    >>> found = check_moments(model, torch.randn(20, 4), samples=400)
    >>> [row.layer for row in found], all(0.8 < row.variance_ratio < 1.25 for row in found)
    (['0', '1', '2'], True)
    """
    checks.module("model", model, error=PredictionError)
    samples = checks.whole_number("samples", samples, at_least=2, error=PredictionError)
    engine = OnePass(model, 1, checks.seed(seed, error=PredictionError))
    inputs = batches.accept(inputs, model, name="inputs", arguments=True)
    laws: dict[str, Moments] = {}
    sums: dict[str, tuple[Tensor, Tensor]] = {}

    def take_law(name: str, out: Any) -> None:
        if isinstance(out, Carried):
            settle([out])
            if isinstance(out.law, Moments):
                laws[name] = Moments(out.law.mean.clone(), out.law.variance.clone())

    def take_sample(name: str, out: Any) -> None:
        if name not in laws or not isinstance(out, Tensor):
            return
        off = (out - laws[name].mean).double()  # about the mean that is checked: no cancellation
        first, second = sums.get(name, (torch.zeros_like(off), torch.zeros_like(off)))
        sums[name] = first + off, second.addcmul_(off, off)

    with undisturbed(model):
        with _watched(model, take_law):
            Walk(model, 1, seed, engine._noise)(inputs)
        with _watched(model, take_sample):
            for sample in range(samples):
                with sampling.using(estimator="weight", draws=engine.sampler._noise(sample)):
                    batches.call(model, inputs)
    return [_compared(name, laws[name], *found, samples) for name, found in sums.items()]


def _compared(name: str, law: Moments, first: Tensor, second: Tensor, samples: int) -> LayerMoments:
    off = first / samples
    variance = ((second - samples * off.square()) / (samples - 1)).clamp_min(0)
    pair = torch.stack([law.variance.double().clamp_min(0).sqrt().flatten(), variance.sqrt().flatten()])
    return LayerMoments(
        name,
        float((off.square().mean() / variance.mean()).sqrt()),
        float(law.variance.double().mean() / variance.mean()),
        float(torch.corrcoef(pair)[0, 1]),
        samples**-0.5,
    )


@contextlib.contextmanager
def _watched(model: nn.Module, take: Callable[[str, Any], None]) -> Iterator[None]:
    """A block in which the outputs of all modules are looked at; a module that is called again counts its calls."""

    calls: Counter[str] = Counter()

    def hook(name: str) -> Any:
        def look(module: nn.Module, args: Any, output: Any) -> None:
            calls[name] += 1
            take(name if calls[name] == 1 else f"{name} ({calls[name]})", output)

        return look

    handles = [m.register_forward_hook(hook(name)) for name, m in model.named_modules() if name]
    handles.append(model.register_forward_pre_hook(lambda module, args: calls.clear()))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
