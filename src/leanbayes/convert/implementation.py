"""`Implementation`: the interface of a method; finding the implementation of a config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar

from torch import nn

from ..errors import ConversionError
from ..layers.contract import BayesianLayer
from ..layers.operations import refusal
from ..method import Method
from ..registry import methods
from .conversion import Conversion

C = TypeVar("C", bound=Method)
D = TypeVar("D", bound="type[Implementation[Any]]")
Part = tuple[Method, Callable[[nn.Module], bool]]
_IMPLEMENTATIONS: dict[type[Method], type[Implementation[Any]]] = {}


class Implementation(Generic[C]):
    """Base class of implementations, registered with `implements`; config is the method with its options."""

    def __init__(self, config: C) -> None:
        self.config = config

    def reason_unsupported(self, module: nn.Module) -> str | None:
        """Why the method cannot convert a module, or None if it can; by default if it has a weight."""
        return refusal(module)

    def selects(self, module: nn.Module, model: nn.Module) -> bool:
        """Whether the method, given without rules, converts this module of the model."""
        return self.reason_unsupported(module) is None

    def parts(self, conversion: Conversion) -> list[Part]:
        """The rules of the method given alone: (method, predicate of a module); the first that matches applies."""
        model = conversion.model
        assert model is not None
        return [(self.config, lambda module: self.selects(module, model))]

    def prepare(self, modules: Mapping[str, nn.Module], conversion: Conversion) -> None:
        """Called with all modules of the method, by name, before the first `convert`."""

    def note(self, module: nn.Module, conversion: Conversion) -> str:
        """A remark on a module for the plan, beside the rule that chose it; may be empty."""
        return ""

    def convert(self, module: nn.Module, conversion: Conversion) -> BayesianLayer:
        """The Bayesian layer for a module, which is not changed."""
        raise NotImplementedError

    def attach(self, model: nn.Module) -> None:
        """Called when all layers of the method are in the model."""

    def detach(self, model: nn.Module) -> None:
        """Called when they have been removed again."""

    def callbacks(self, model: nn.Module) -> list[Any]:
        """The callbacks that training needs (see `leanbayes.training.callbacks`)."""
        return []

    def rebuilds(self, layer: BayesianLayer) -> Method | None:
        """The config under which `convert` makes a layer like this from a plain module, or None.

        `extract` needs it to save and load layers that stay Bayesian.
        """
        return None


def implements(config: type[Method]) -> Callable[[D], D]:
    """Register a class as the implementation of a method."""

    def decorate(cls: D) -> D:
        _IMPLEMENTATIONS[config] = cls
        return cls

    return decorate


def implementation(method: Method) -> Implementation[Any]:
    """The implementation of a method, whose module is imported at the first call.

    >>> import leanbayes as lb
    >>> implementation(lb.MeanField()).reason_unsupported(nn.LSTM(2, 3))
    'no operation for LSTM'
    """
    here = type(method).__name__
    for kind in type(method).__mro__:
        if kind not in _IMPLEMENTATIONS and issubclass(kind, Method) and kind is not Method:
            home = f"{kind.__module__.rpartition('.')[0]}.implementation"
            try:
                import_module(home)
            except ModuleNotFoundError as error:
                if error.name is None or not f"{home}.".startswith(f"{error.name}."):
                    raise
        if kind in _IMPLEMENTATIONS:
            return _IMPLEMENTATIONS[kind](method)
    raise ConversionError(
        f"{here}: expected an implementation, found none; register one with @implements({here}) in a module "
        "'implementation' beside its config"
    )


def rebuilding(layer: BayesianLayer) -> Method | None:
    """The method that makes a layer like this one from a plain module, or None."""
    found = (implementation(cls()).rebuilds(layer) for cls in methods().values())
    return next((method for method in found if method is not None), None)
