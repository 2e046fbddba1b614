"""Old names of modules that have moved, which still import with a DeprecationWarning. No torch here."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ROOMS = {"cost": "costs", "evaluate": "evaluation", "predict": "prediction", "train": "training"}
"""Packages by their old names; all modules in them have moved along."""

MODULES = {
    "compress.slicing": "convert.slicing",
    "compress.zero_means": "methods.variance.zero_means",
    "evaluate.asking": "evaluation.stages",
    "evaluate.corruption": "evaluation.corruption_sweep",
    "evaluate.feed": "feed",
    "evaluate.findings": "evaluation.summary",
    "evaluate.several": "evaluation.several_models",
    "evaluate.stages": "evaluation.resume",
    "evaluation.corruption": "evaluation.corruption_sweep",
    "layers.channel_noise": "methods.structured_pruning.layer",
    "layers.dropout": "methods.dropout.layer",
    "layers.ensemble": "methods.ensemble.layer",
    "layers.fixed": "layers.bayes",
    "layers.folded": "methods.patch.folded",
    "layers.narrow": "methods.nested.narrow",
    "layers.ordered": "methods.nested.layer",
    "layers.patched": "methods.patch.layer",
    "methods.allocation": "methods.sparse.allocation",
    "methods.base": "method",
    "methods.drop_connect": "methods.patch.config",
    "methods.family": "methods.patch.implementation",
    "methods.nested_dropout": "methods.nested.config",
    "methods.nested_rules": "methods.nested.rules",
    "methods.ordered": "methods.nested.config",
    "methods.point": "methods.patch.config",
    "methods.rigl": "methods.sparse.config",
    "methods.sparse.alternation": "methods.sparse.mask_updates",
    "methods.sparse_subspace": "methods.sparse.config",
    "methods.sparse_training": "methods.sparse.config",
    "models.auto": "models.for_data",
    "posteriors.assignment": "methods.patch.assignment",
    "posteriors.criteria": "methods.sparse.criteria",
    "posteriors.log_normal": "methods.structured_pruning.posterior",
    "posteriors.mixture": "methods.patch.mixture",
    "predict.procedures": "prediction.phase_transition",
    "predict.worth": "evaluation.sample_efficiency",
    "recipes.figures.sparse": "recipes.figures.charts",
    "report.again": "report.reproduce_command",
    "report.words": "report.summary",
    "report.words_compared": "report.summary",
    "report.words_one": "report.summary",
    "train.coordinate": "methods.patch.coordinate",
    "train.growth": "methods.sparse.growth",
    "train.mixing": "methods.patch.mixing",
    "train.slots": "methods.sparse.optimizer_state",
    "train.subspace": "methods.sparse.mask_updates",
    "train.transition": "methods.variance.transition",
    "undisturbed": "eval_mode",
}
"""Modules that have moved by themselves, by their old names."""

NAMES = {"posteriors.sparse:SparseGaussian": "methods.sparse.posterior"}
"""Classes and functions that have moved out of a module that stays; pickles of models name them too."""

_PACKAGE = __name__.partition(".")[0]


def new_name(old: str) -> str | None:
    """Where a module stands now, by its full old name; None if it has not moved.

    >>> new_name("leanbayes.predict.stacking"), new_name("leanbayes.layers.patched"), new_name("leanbayes.kl")
    ('leanbayes.prediction.stacking', 'leanbayes.methods.patch.layer', None)
    """
    package, _, inner = old.partition(".")
    if package != _PACKAGE:
        return None
    if inner in MODULES:
        return f"{package}.{MODULES[inner]}"
    room, dot, rest = inner.partition(".")
    return f"{package}.{ROOMS[room]}{dot}{rest}" if room in ROOMS else None


def attribute(module: str, name: str) -> Any:
    """A name that has moved out of a module, for the ``__getattr__`` of that module."""
    home = NAMES.get(f"{module.partition('.')[2]}:{name}")
    if home is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    warnings.warn(f"{module}.{name} has moved: import it from {_PACKAGE}.{home}", DeprecationWarning, stacklevel=3)
    return vars(import_module(f"{_PACKAGE}.{home}"))[name]


class _OldRoom(ModuleType):
    """A package under its old name: a module of its own, since a module in it may have taken another's name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        inner = f"{self.__name__}.{name}"
        if inner.removeprefix(f"{_PACKAGE}.") in MODULES:
            return import_module(inner)
        return getattr(import_module(new_name(self.__name__) or ""), name)


class _Loader(Loader):
    """Gives the module that stands elsewhere now."""

    def __init__(self, new: str) -> None:
        self.new = new
        self.spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module itself, not a copy: its classes and its state are one."""
        warnings.warn(f"{spec.name} has moved: import {self.new}", DeprecationWarning, stacklevel=2)
        module = import_module(self.new)
        if spec.submodule_search_locations is not None:
            return _OldRoom(spec.name, module.__doc__)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing but to undo what the import machinery has written on a module that was there before."""
        if self.spec is not None:
            module.__spec__ = self.spec


class _Finder(MetaPathFinder):
    """Finds the old names; the last to be asked, so that whatever exists under a name wins."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of a module that has moved."""
        new = new_name(name)
        if new is None:
            return None
        return ModuleSpec(name, _Loader(new), is_package=name.partition(".")[2] in ROOMS)


def install() -> None:
    """Make the old names importable."""
    if not any(type(finder).__name__ == _Finder.__name__ for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
