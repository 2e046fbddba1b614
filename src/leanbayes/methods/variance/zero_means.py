"""`zero_means_`: set the means of variance layers to zero."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn

from ...checks import module
from ...convert.record import conversions
from ...errors import ConversionError
from ...posteriors import Posterior, ZeroMeanGaussian
from ...posteriors.base import above_zero


def zero_means_(model: nn.Module) -> list[str]:
    """Replace N(mu, sigma^2) by N(0, sigma^2) in every layer under `Variance`, in place (variance networks, eq. 11).

    If predictions stay the same, everything learned is in the variances. Returns the names of the layers; those that
    have no mean already, and those of other methods, are not changed. This cannot be undone: work on a copy.

    >>> import copy
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8))
    >>> _ = lb.bayesianize_(model, lb.Variance(log_alpha=7.0))
    >>> swapped = copy.deepcopy(model)
    >>> zero_means_(swapped)
    ['0']
    >>> bool(swapped[0].posteriors["weight"].mean.any())
    False
    """
    module("model", model, error=ConversionError)
    # by name: a class in a reloaded module is another one
    found = {name: method for name, method in conversions(model).items() if type(method).__name__ == "Variance"}
    if not found:
        raise ConversionError(
            "expected a model with layers under Variance, found none; "
            'make some with lb.bayesianize_(model, {"dense1": lb.Variance()})'
        )
    swapped: dict[int, Posterior] = {}  # by identity, so that tied posteriors stay tied
    names = []
    for name, method in found.items():
        layer: Any = model.get_submodule(name)
        posteriors = layer.posteriors
        for parameter, q in list(posteriors.items()):
            if not q.has_mean:
                continue
            if id(q) not in swapped:
                # above zero, so that a weight of exactly 0 keeps a valid std
                whole = q.whole()
                zero = ZeroMeanGaussian.from_tensor(whole.mean, above_zero(whole.std.detach()))
                zero.keep = q.keep
                swapped[id(q)] = zero
            posteriors[parameter] = swapped[id(q)]
            names.append(name)
        layer.method = dataclasses.replace(method, parameterisation="zero")  # type: ignore[call-arg]
    return names
