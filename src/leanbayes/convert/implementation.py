"""`Implementation`: the interface of a method, and how the implementation of a config is found."""

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
    """Base of what is registered with `implements`; config is the method as the user has set it."""

    def __init__(self, config: C) -> None:
        self.config = config

    def reason_unsupported(self, module: nn.Module) -> str | None:
        """Why the method cannot convert a module, or None if it can: by default, whether it has a weight to use."""
        return refusal(module)

    def selects(self, module: nn.Module, model: nn.Module) -> bool:
        """Whether the method on its own, without rules, takes this module of the model."""
        return self.reason_unsupported(module) is None

    def parts(self, conversion: Conversion) -> list[Part]:
        """The rules of the method given alone: (method, whether it takes a module); the first that matches wins."""
        model = conversion.model
        assert model is not None
        return [(self.config, lambda module: self.selects(module, model))]

    def prepare(self, modules: Mapping[str, nn.Module], conversion: Conversion) -> None:
        """Called with all modules of the method, by name, before the first `convert`."""

    def note(self, module: nn.Module, conversion: Conversion) -> str:
        """A remark on a module for the plan, beside the rule that chose it; may be empty."""
        return ""

    def convert(self, module: nn.Module, conversion: Conversion) -> BayesianLayer:
        """The module's replacement; the module itself is left as it is."""
        raise NotImplementedError

    def attach(self, model: nn.Module) -> None:
        """Called once all layers of the method are in the model."""

    def detach(self, model: nn.Module) -> None:
        """Called once they have been removed again."""

    def callbacks(self, model: nn.Module) -> list[Any]:
        """The callbacks that training needs (see `leanbayes.training.callbacks`)."""
        return []

    def rebuilds(self, layer: BayesianLayer) -> Method | None:
        """The config under which `convert` makes a layer like this from a plain module; None if there is none.

        `extract` asks for layers that stay Bayesian in form, so that they can be saved and loaded.
        """
        return None


def implements(config: type[Method]) -> Callable[[D], D]:
    """Register a class as the implementation of a method."""

    def decorate(cls: D) -> D:
        _IMPLEMENTATIONS[config] = cls
        return cls

    return decorate


def implementation(method: Method) -> Implementation[Any]:
    """The implementation of a method; the module that registers it is imported if it has not been.

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
    """The method under which a plain module becomes a layer like this one, whichever method knows how."""
    found = (implementation(cls()).rebuilds(layer) for cls in methods().values())
    return next((method for method in found if method is not None), None)
