"""Digests of the classes, options, hooks and code of a model, without its weights.

There is a digest for every module. The code of torch and of leanbayes is identified by their versions, other code by
its compiled form and the closures, defaults, functions and constants that it uses. A digest is the same in every
process that imports the same code.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import sys
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..fingerprint import add_tensor

_KNOWN = frozenset({"torch", "leanbayes", "numpy", *sys.stdlib_module_names}) - {"__main__"}
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_DEEPEST = 4
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, slice, range)


def structure(model: nn.Module) -> dict[str, str]:
    """A digest of every module of a model by name, without the values of parameters and buffers.

    >>> a, b = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)), nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.6))
    >>> [name for name in structure(a) if structure(a)[name] != structure(b)[name]]
    ['1']
    """
    found = {}
    for name, module in model.named_modules(remove_duplicate=False):
        digest = _Digest()
        digest.seen[id(module)] = 0, module
        digest.add_module(module)
        found[name] = digest.hash.hexdigest()
    return found


def _is_option(kind: type, key: str, value: Any) -> bool:
    """Whether an attribute of a module of torch or leanbayes is an option; other attributes follow from options."""
    if key in ("forward", "method", "estimator", "shell", "sliced") or "leanbayes.likelihoods." in kind.__module__:
        return True
    if kind.__module__.startswith("leanbayes.") and not kind.__module__.startswith("leanbayes.models."):
        return False  # the config under "method" has all options; the rest is state
    items = value if isinstance(value, (tuple, list)) else [value]
    return not key.startswith("_") and all(isinstance(v, _PLAIN) or callable(v) for v in items)


def _counts(key: str, value: Any) -> bool:
    """Whether an attribute of a user's own module counts; private objects (its trainer, for example) do not."""
    return key != "_leanbayes" and (
        not key.startswith("_") or isinstance(value, (*_PLAIN, Tensor, tuple, list, dict, types.FunctionType))
    )


def _of_library(item: Any) -> bool:
    """Whether code belongs to a library that is identified by its version."""
    return str(getattr(item, "__module__", None)).partition(".")[0] in _KNOWN


class _Digest:
    """A digest of Python objects; an object that was added before is represented by its position."""

    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=8)
        self.depth = 0  # of objects within objects
        self.seen: dict[int, tuple[int, Any]] = {}  # the object too, so that no other gets its id meanwhile

    def add_text(self, text: str) -> None:
        """Add text."""
        self.hash.update(f"{len(text)}:{text}".encode("utf-8", "surrogatepass"))

    def add(self, value: Any) -> None:
        """Add a value of any kind."""
        if isinstance(value, enum.Enum):
            self.add_text(f"{_name(type(value))}.{value.name}")
        elif isinstance(value, _PLAIN):
            self.add_text(f"{type(value).__name__} {value!r}")
        elif id(value) in self.seen:
            self.add_text(f"as {self.seen[id(value)][0]}")
        else:
            self.seen[id(value)] = len(self.seen), value
            self._add_object(value)

    def _add_object(self, value: Any) -> None:
        if isinstance(value, Tensor):
            add_tensor(self.hash, value)
        elif isinstance(value, np.ndarray):
            self.add_text(f"{value.dtype} {value.shape}")
            self.hash.update(repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes())
        elif isinstance(value, Mapping):
            self.add_all(type(value), sorted(value.items(), key=lambda item: repr(item[0])))
        elif isinstance(value, (set, frozenset)):
            self.add_all(type(value), sorted(value, key=repr))
        elif isinstance(value, (tuple, list)):
            self.add_all(type(value), value)
        elif isinstance(value, type):
            self.add_class(value)
        elif isinstance(value, types.FunctionType):
            self.add_function(value)
        elif isinstance(value, types.MethodType):
            self.add(value.__func__)
            self.add(None if _of_library(value.__func__) else value.__self__)
        elif isinstance(value, functools.partial):
            self.add_all(
                type(value), (value.func,) if _of_library(value.func) else (value.func, value.args, value.keywords)
            )
        elif isinstance(value, types.CodeType):
            self.add_code(value)
        elif isinstance(value, nn.Module):
            self.add_module(value)
            self.add({**value._parameters, **value._buffers, **value._modules})
        else:
            self.add_other(value)

    def add_module(self, module: nn.Module) -> None:
        """Add class, options, code and hooks of a module, and the buffers that are not in its state_dict."""
        self.add_class(type(module))
        if isinstance(module, torch.jit.ScriptModule):
            self.add_text(module.code if hasattr(module, "forward") else "")
            return
        of_library = _of_library(type(module))
        for key in sorted(vars(module).keys() - _OF_EVERY_MODULE):
            value = vars(module)[key]
            if _is_option(type(module), key, value) if of_library else _counts(key, value):
                self.add_text(f"{key}=")
                self.add(value)
        for key in sorted(module._non_persistent_buffers_set):
            self.add_text(f"{key}:")
            self.add(module._buffers[key])
        for kind in _HOOKS:
            for hook in vars(module).get(kind, {}).values():
                self.add_text(f"{kind}:")
                self.add(hook)

    def add_all(self, kind: type, items: Any) -> None:
        """Add a collection."""
        self.add_text(f"{_name(kind)} of {len(items)}")
        for item in items:
            self.add(item)

    def add_other(self, value: Any) -> None:
        """Add an object by its class and attributes; of a library's objects the attributes may be anything."""
        self.add_class(type(value))
        if isinstance(value, (types.ModuleType, types.BuiltinFunctionType)):
            self.add_text(_name(value))
        elif self.depth < _DEEPEST and (not _of_library(type(value)) or dataclasses.is_dataclass(value)):
            self.depth += 1
            slots = [s for c in type(value).__mro__ for s in _texts(vars(c).get("__slots__", ())) if hasattr(value, s)]
            self.add({**{s: getattr(value, s) for s in slots}, **getattr(value, "__dict__", {})})
            self.depth -= 1

    def add_class(self, kind: type) -> None:
        """Add a class by its name, and the code that its author and not a library wrote."""
        self.add_text(_name(kind))
        for part in kind.__mro__:
            if not _of_library(part) and id(part) not in self.seen:
                self.seen[id(part)] = len(self.seen), part
                for key, value in sorted(vars(part).items()):
                    if key not in ("__module__", "__doc__", "__dict__", "__weakref__", "__qualname__"):
                        self.add_text(key)
                        self._add_member(value)

    def _add_member(self, value: Any) -> None:
        if isinstance(value, (staticmethod, classmethod)):
            self.add(value.__func__)
        elif isinstance(value, property):
            self.add_all(property, [f for f in (value.fget, value.fset) if f is not None])
        elif isinstance(value, (types.FunctionType, *_PLAIN, tuple, list, dict, set, frozenset)):
            self.add(value)

    def add_function(self, function: types.FunctionType) -> None:
        """Add a function, and the functions and constants of its file that it names."""
        self.add_text(_name(function))
        if _of_library(function):
            return
        self.add_code(function.__code__)
        self.add((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:  # a cell that is not filled yet
                self.add_text("empty")
        for name in sorted(_names(function.__code__)):
            value = function.__globals__.get(name)
            if (
                isinstance(value, (types.FunctionType, *_PLAIN, tuple, Tensor, functools.partial))
                and name != "__name__"
            ):
                self.add_text(name)
                self.add(value)

    def add_code(self, code: types.CodeType) -> None:
        """Add what a code object does; where it stands in its file does not matter."""
        self.hash.update(code.co_code)
        self.add((code.co_names, code.co_varnames, code.co_freevars, code.co_flags))
        self.add_all(tuple, code.co_consts)


def _names(code: types.CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _name(item: Any) -> str:
    return f"{getattr(item, '__module__', '')}.{getattr(item, '__qualname__', getattr(item, '__name__', ''))}"


def _texts(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
