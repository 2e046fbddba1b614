"""Likelihoods p(y | output), shared by `ELBO`, `fit` and `predict`.

Every log-likelihood is per datum: summed over whatever one datum has (output dimensions, pixels), never averaged, so
that it is commensurate with the KL. Targets are checked and aligned, and nothing broadcasts by accident.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import checks
from ..errors import ConfigError
from .base import Likelihood as Likelihood
from .classification import Categorical as Categorical, Classification as Classification, Segmentation as Segmentation
from .custom import Custom as Custom
from .dirichlet import Dirichlet as Dirichlet
from .images import Bernoulli as Bernoulli, DiscretizedLogistic as DiscretizedLogistic
from .regression import Noise as Noise, Regression as Regression

_KINDS: dict[str, type[Likelihood]] = {
    c.__name__: c for c in (Classification, Segmentation, Regression, Bernoulli, DiscretizedLogistic, Dirichlet)
}
TASKS: tuple[str, ...] = tuple(dict.fromkeys(c.task for c in _KINDS.values()))


def likelihood(task: Any) -> Likelihood:
    """The likelihood of a task: a name, a Likelihood, its dictionary or a function of (outputs, targets).

    >>> likelihood("regression")
    Regression(noise='learned', std=1.0)
    """
    if isinstance(task, Likelihood):
        return task
    if isinstance(task, Mapping):
        return from_dict(task)
    if isinstance(task, str) and task in TASKS:
        return next(c for c in _KINDS.values() if c.task == task)()
    if callable(task) and not isinstance(task, type):
        return Custom(task)
    raise ConfigError(
        f"task: expected {', '.join(map(repr, TASKS))}, a Likelihood or a function of (outputs, targets), "
        f"received {checks.short(task)}"
    )


def from_dict(data: Any) -> Likelihood:
    """The likelihood that `Likelihood.to_dict` described.

    >>> from_dict({"kind": "Segmentation", "version": 1, "ignore_index": 255})
    Segmentation(ignore_index=255, reduction='sum')
    >>> from_dict(Classification(temperature=1.5).to_dict())
    Classification(temperature=1.5)
    """
    if not isinstance(data, Mapping) or data.get("kind") not in _KINDS:
        raise ConfigError(f"expected the dictionary of one of {', '.join(_KINDS)}, received {checks.short(data)}")
    version = data.get("version", 1)
    if version != 1:
        raise ConfigError(
            f"{data['kind']}: expected version 1, received {checks.short(version)}; a newer leanbayes wrote it"
        )
    fields = {k: v for k, v in data.items() if k not in ("kind", "version")}
    try:
        return _KINDS[data["kind"]](**fields)
    except TypeError as error:
        raise ConfigError(f"{data['kind']}: {error}") from error
