"""`StandIn`: a layer in the place of a module with a weight, with its options and attributes."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from .contract import BayesianLayer, option
from .operations import Operation, operation_of


class StandIn(BayesianLayer):
    """Base of layers that take the place of a module with a weight.

    shell: a copy of that module without its parameters. It is no submodule (it has nothing to train or save); options
    and attributes such as ``in_features`` or ``stride`` are read through it, and `restored` fills it again.
    """

    def __init__(self, module: nn.Module, taken: tuple[str, ...] = ()) -> None:
        super().__init__()
        bare = copy.copy(module)
        bare._parameters = dict.fromkeys(module._parameters)
        object.__setattr__(self, "shell", bare)
        for name, parameter in module._parameters.items():
            if name not in taken:
                self.register_parameter(name, parameter)
        self.training = module.training

    @property
    def operation(self) -> Operation:
        """The operation of the module with its weight; norm layers have none."""
        return operation_of(self.shell)

    def value(self, name: str) -> nn.Parameter | None:
        """The parameter that `restored` sets."""
        return self._parameters.get(name)

    def restored(self) -> nn.Module:
        """The plain module of the original class and options, with the means as its parameters."""
        plain = copy.copy(self.shell)
        plain._parameters = {name: self.value(name) for name in self.shell._parameters}
        plain.training = self.training
        return plain

    def total(self, name: str, terms: Tensor) -> Tensor:
        """The sum of the terms of a parameter's elements, in at least single precision, without padding."""
        terms = self.except_padding(name, terms)
        return terms.sum(dtype=torch.promote_types(terms.dtype, torch.float32))

    def has_padding(self, name: str) -> bool:
        """Whether a row of a parameter is the padding of an Embedding."""
        return name == "weight" and isinstance(self.shell, nn.Embedding) and self.shell.padding_idx is not None

    def except_padding(self, name: str, values: Tensor, otherwise: Tensor | float = 0.0) -> Tensor:
        """The values of a parameter, others in the padding row of an Embedding, which is not a random variable."""
        if not self.has_padding(name):
            return values
        row: Any = self.shell.padding_idx
        is_padding = torch.arange(values.shape[0], device=values.device).eq(row).unsqueeze(1)
        return torch.where(is_padding, otherwise, values)

    def read(self, name: str) -> Tensor | None:
        """The value of a random parameter that is read from outside: ``layer.weight``."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        posteriors = self.__dict__.get("_modules", {}).get("posteriors")
        if posteriors is not None and name in posteriors:
            return self.read(name)
        try:
            return super().__getattr__(name)
        except AttributeError:
            shell = self.__dict__.get("shell")
            if shell is not None and name in shell.__dict__:
                return shell.__dict__[name]
            raise

    def __setattr__(self, name: str, value: Any) -> None:
        """Set options on the shell, where they are read: ``layer.momentum = 0.01``."""
        shell = self.__dict__.get("shell")
        if name in (option(shell, "__constants__") or ()):  # what torch's own classes call their options
            setattr(shell, name, value)
        else:
            super().__setattr__(name, value)

    def extra_repr(self) -> str:
        """The class that it replaces."""
        return f"{type(self.shell).__name__}({self.shell.extra_repr()})"
