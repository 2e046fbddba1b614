"""The likelihood and the methods of a model, stored on the model as plain data.

The method of a layer is ``layer.method``; the rest is in a `Record`. Neither is a parameter or a buffer: they are not
in the state_dict, but `leanbayes.save` writes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ..conformal.config import Conformal
from ..layers.contract import BayesianLayer
from ..method import Method
from ..walk import modules, unwrapped
from .implementation import implementation

_KEY = "_leanbayes"


@dataclass
class Record:
    """Facts about a model that `leanbayes.save` writes.

    likelihood: that of the task it was fitted for, in JSON form (see `leanbayes.likelihoods`).
    temperatures: those of calibrated widths (see `leanbayes.compress.width`).
    conformal: the thresholds of prediction sets or intervals (see `leanbayes.conformalize_`).
    classes: the names of the classes.
    """

    likelihood: dict[str, Any] | None = None
    temperatures: dict[str, float] = field(default_factory=dict)
    conformal: Conformal | None = None
    classes: tuple[str, ...] = ()

    def trained(self, likelihood: dict[str, Any] | None, classes: tuple[str, ...] = ()) -> None:
        """Set the likelihood after training; conformal thresholds of before are dropped."""
        self.likelihood, self.conformal, self.classes = likelihood, None, classes or self.classes

    def callbacks(self, model: nn.Module) -> list[Any]:
        """The callbacks of every method in the model, each method once."""
        methods = dict.fromkeys(conversions(model).values())
        return [callback for method in methods for callback in implementation(method).callbacks(model)]


def get(model: nn.Module) -> Record | None:
    """The record of a model, also inside wrappers such as DistributedDataParallel; None if it has none."""
    found = (m.__dict__[_KEY] for m in ([model] if _KEY in model.__dict__ else modules(model)) if _KEY in m.__dict__)
    return next(found, None)


def ensure(model: nn.Module) -> Record:
    """The record of a model, made if there is none, on the model inside wrappers."""
    record = get(model)
    if record is None:
        record = unwrapped(model).__dict__[_KEY] = Record()
    return record


def put(model: nn.Module, record: Record) -> None:
    """Set the record of a model, whatever those of its parts."""
    model.__dict__[_KEY] = record


def conversions(model: nn.Module) -> dict[str, Method]:
    """The converted layers of a model by name, each with the method that made it; a tied layer once.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> _ = lb.bayesianize_(model, lb.Dropout(0.5))
    >>> conversions(model)
    {'0': Dropout(rate=0.5, elsewhere=0.05)}
    """
    found = ((name, m.method) for name, m in model.named_modules() if isinstance(m, BayesianLayer))
    return {name: method for name, method in found if method is not None}
