"""The stages of a cascade: the widths of a nested network, several models, or one model with more and more samples."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

from torch import nn

from .. import checks, sampling
from ..errors import ConfigError, ConversionError, LeanBayesWarning
from ..training.recalibrate import has_statistics, recalibrate_
from .extract import extract
from .width import set_width_, widths as possible

Samples = tuple[int | None, ...]


def stages_of(
    model: Any, widths: Any, samples: Any, loader: Any, fold_batchnorm: bool
) -> tuple[list[nn.Module], Samples]:
    """The networks of all stages, cheapest first, and how many samples each takes; arguments as of `Cascade`."""
    several = isinstance(model, nn.ModuleList) or not isinstance(model, nn.Module)
    numbers = _numbers(samples)
    if several:
        if widths is not None or loader is not None or fold_batchnorm:
            raise ConfigError("widths, loader, fold_batchnorm: expected with one nested model, received several models")
        found = checks.iterable_of("model", model, "models", checks.module)
    elif widths is not None:
        found = _of_widths(model, _ascending(widths), numbers, loader, fold_batchnorm)
    elif loader is not None or fold_batchnorm:
        raise ConfigError("loader, fold_batchnorm: expected with widths=(0.25, 0.5, 1.0), received no widths")
    else:
        if not isinstance(numbers, tuple):
            raise ConversionError(
                f"expected widths=(0.25, 0.5, 1.0) of a nested network, several models, or samples=(1, 4, 16) of a "
                f"Bayesian one, received a {type(model).__name__} alone"
            )
        if not sampling.sites(model):
            raise ConversionError(
                f"samples: expected a model with random weights, this {type(model).__name__} has none, so that more "
                "samples say the same"
            )
        found = [model] * len(numbers)
    if len(found) < 2:
        raise ConfigError(
            f"model: expected two stages or more, received {len(found)}; give widths=(0.25, 0.5, 1.0) of a nested "
            "network, several models, or samples=(1, 4, 16)"
        )
    each: Samples = numbers if isinstance(numbers, tuple) else (numbers,) * len(found)
    if len(each) != len(found):
        raise ConfigError(f"samples: expected {len(found)} numbers, one a stage, received {len(each)}")
    return found, each


def _numbers(samples: Any) -> tuple[int, ...] | int | None:
    if samples is None or not isinstance(samples, Sequence):
        return None if samples is None else checks.samples(samples)
    found = tuple(checks.iterable_of("samples", samples, "numbers", checks.whole_number))
    if list(found) != sorted(found):
        checks.refuse("samples", "numbers that do not fall from stage to stage", samples)
    return found


def _ascending(widths: Any) -> list[float]:
    each = lambda name, value: checks.number(name, value, above=0, at_most=1, error=ConversionError)  # noqa: E731
    found = checks.iterable_of("widths", widths, "widths", each, error=ConversionError, hint="try (0.25, 0.5, 1.0)")
    if found != sorted(found):
        checks.refuse("widths", "widths in ascending order", widths, ConversionError)
    return found


def _of_widths(model: nn.Module, widths: list[float], samples: Any, loader: Any, fold: bool) -> list[nn.Module]:
    """A network cut out at each width, smaller ones first; equal widths are one network."""
    made: dict[float, nn.Module] = {}
    random = samples is not None
    possible(model)  # raises where there are no widths
    if has_statistics(model) and loader is None:
        warnings.warn(
            "the BatchNorm statistics of a nested network are averages over widths, which costs each of them accuracy; "
            "give loader=train_loader to collect those of every width",
            LeanBayesWarning,
            stacklevel=4,
        )
    for width in widths:
        if width not in made:
            part = copy.deepcopy(model)
            set_width_(part, width)
            if loader is not None and has_statistics(part):
                recalibrate_(part, loader, at="samples" if random else "means", data=DATA)
            made[width] = extract(part, stochastic=random, fold_batchnorm=fold)
    return [made[width] for width in widths]


DATA = 5000
"""How many data BatchNorm's statistics are collected from at each width."""
