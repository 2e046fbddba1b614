"""Loading a model: a file is checked before the model is changed, and no code in it is run."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .. import config, container, likelihoods
from ..conformal.config import Conformal
from ..convert import record
from ..convert.apply import bayesianize_
from ..convert.folding import folded, replace_
from ..convert.slicing import resize_, sizes
from ..convert.staged import Staged
from ..errors import ArtifactError
from ..files import name_of
from ..method import Method
from ..posteriors.base import Posterior
from ..training.stored_sizes import completed, sparse_weights
from .fit import check_counts, check_finite, check_fit, check_size
from .saving import bare_model, tensors_of
from .training import check_training


def load(path: str | os.PathLike[str], *, into: nn.Module, allow_nonfinite: bool = False) -> nn.Module:
    """Make a model the one that was saved, in place, and return it.

    into: a plain model of the same architecture, which is converted as the saved one was, or one that already is. Where
        `extract` has cut channels out, an architecture of the whole size is cut likewise.
    allow_nonfinite: load NaN and infinite weights too, which are refused otherwise. What may be the logarithm of 0 may
        be -inf in any case, and so may what is -inf in the model itself, such as a mask.

    All or nothing: a file that is damaged, foreign, newer than this version, or does not fit raises an ArtifactError
    and leaves the model as it was; that takes the memory of a second model while it runs. No code in a file is run.

    >>> load("no.safetensors", into=nn.Linear(4, 2))
    Traceback (most recent call last):
    leanbayes.errors.ArtifactError: no.safetensors: expected a readable file ...
    """
    bare = bare_model(into)
    where = name_of(path)
    tensors, document = container.read(path)
    methods = _methods(document, where)
    likelihood = _likelihood(document, where)
    temperatures = _temperatures(document, where)
    conformal = _conformal(document, where)
    classes = _classes(document, where)
    aliases = _ties(document, tensors, where)
    check_training(document, {name: {"shape": tensor.shape} for name, tensor in tensors.items()}, where)
    check_counts(methods, [*tensors, *aliases], where)
    present = tensors_of(bare)
    if isinstance(bare, Staged) != ("stages" in document):
        wanted = "a cascade" if "stages" in document else "a single model"
        raise ArtifactError(f"{where}: holds {wanted}; load a cascade into lb.Cascade([...]) of as many networks")
    with _undone_on_error(bare, present, where):
        _resize(bare, document, where)
        _fold(bare, document, where)
        _convert(bare, methods, sum(tensor.numel() for tensor in tensors.values()), where)
        full = completed(bare, {**tensors, **{name: tensors[first] for name, first in aliases.items()}})
        _add_masks(bare, full)
        for weight, count in sparse_weights(bare, full).values():
            weight.have_slots(count)
        check_fit(have := tensors_of(bare), full, aliases, where)
        if not allow_nonfinite:
            check_finite(have, full, where)
        bare.load_state_dict(full, strict=True)
        if likelihood is not None or classes or record.get(bare) is not None:
            known = record.ensure(bare)
            known.likelihood, known.temperatures = likelihood, temperatures
            known.conformal, known.classes = conformal, classes
        if isinstance(bare, Staged):
            bare.adopt_(document["stages"])
    return into


def inspect(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The header of a file; the tensors are not read, so damage to them is not noticed.

    >>> import tempfile
    >>> import leanbayes as lb
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     header = inspect(lb.save(nn.Linear(4, 2), folder + "/a.safetensors"))
    >>> header["format"], header["conversions"], header["tensors"]["weight"]
    ('leanbayes', {}, {'dtype': 'F32', 'shape': [2, 4]})
    """
    document, tensors = container.read_header(path)
    check_training(document, tensors, name_of(path))
    return {**document, "tensors": tensors}


def _methods(document: dict[str, Any], where: str) -> dict[str, Any]:
    methods = {}
    for name, data in _mapping(document, "conversions", where).items():
        try:
            methods[name] = config.from_dict(data)
        except Exception as error:  # whatever an ill-made config stumbles over
            raise ArtifactError(f"{where}: layer {name!r}: {error}; import what registers the method") from error
        if not isinstance(methods[name], Method):
            raise ArtifactError(f"{where}: layer {name!r}: expected a method, received {data['kind']!r}")
    return methods


def _ties(document: dict[str, Any], tensors: dict[str, Tensor], where: str) -> dict[str, str]:
    aliases = _mapping(document, "aliases", where)
    for name, first in aliases.items():
        if name in tensors or not isinstance(first, str) or first not in tensors:
            raise ArtifactError(f"{where}: expected {name!r} to be tied to a stored tensor, received {first!r:.60}")
    return aliases


def _mapping(document: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    if not isinstance(data := document.get(key), dict):
        raise ArtifactError(f"{where}: expected a mapping as {key!r}, received {data!r:.60}")
    return data


def _likelihood(document: dict[str, Any], where: str) -> dict[str, Any] | None:
    if (data := document.get("likelihood")) is not None:
        try:
            likelihoods.from_dict(data)
        except Exception as error:
            raise ArtifactError(f"{where}: likelihood: {error}") from error
    return data


def _temperatures(document: dict[str, Any], where: str) -> dict[str, float]:
    """Those of calibrated widths; files without nested networks have none."""
    data = document.get("temperatures", {})
    fine = isinstance(data, dict) and all(isinstance(t, (int, float)) and 0 < t < math.inf for t in data.values())
    if not fine:
        raise ArtifactError(f"{where}: expected a mapping of temperatures above 0, received {data!r:.60}")
    return {name: float(value) for name, value in data.items()}


def _conformal(document: dict[str, Any], where: str) -> Conformal | None:
    if (data := document.get("conformal")) is None:
        return None
    try:
        found = config.from_dict(data)
    except Exception as error:  # whatever an ill-made config stumbles over
        raise ArtifactError(f"{where}: conformal: {error}") from error
    if not isinstance(found, Conformal):
        raise ArtifactError(f"{where}: conformal: expected what conformalize_ found, received {data['kind']!r:.60}")
    return found


def _classes(document: dict[str, Any], where: str) -> tuple[str, ...]:
    """The names of the classes; files without them give none."""
    data = document.get("classes", [])
    if not isinstance(data, list) or not all(isinstance(name, str) for name in data):
        raise ArtifactError(f"{where}: expected a list of names as 'classes', received {data!r:.60}")
    return tuple(data)


def _convert(model: nn.Module, methods: dict[str, Any], elements: int, where: str) -> None:
    """Convert the named layers, unless they already are and by these methods; elements: numbers in the file."""
    have = record.conversions(model)
    if have == methods:
        return
    if have:
        odd = next(name for name in [*have, *methods] if have.get(name) != methods.get(name))
        raise ArtifactError(
            f"{where}: layer {odd!r}: expected {methods.get(odd, 'a plain layer')}, the model has "
            f"{have.get(odd, 'a plain layer')}; load into a fresh plain model, or restore_ this one first"
        )
    modules = dict(model.named_modules())
    if unknown := next((name for name in methods if name not in modules), None):
        raise ArtifactError(
            f"{where}: expected a layer {unknown!r} in the model, found none; build the architecture that was saved"
        )
    rules = {modules[name]: method for name, method in methods.items()}
    with torch.random.fork_rng(devices=[]):  # methods may initialise afresh; what they draw is overwritten
        check_size(model, rules, elements, where)
        bayesianize_(model, rules)


def _resize(model: nn.Module, document: dict[str, Any], where: str) -> None:
    """Cut modules to the sizes that `extract` had left them, unless they have these."""
    have = sizes(model)
    for name, options in _mapping({"sliced": {}, **document}, "sliced", where).items():
        if have.get(name) == options:
            continue
        try:
            resize_(model.get_submodule(name), options)
        except Exception as error:  # whatever ill-made sizes stumble over
            raise ArtifactError(f"{where}: module {name!r}: {error}") from error


def _fold(model: nn.Module, document: dict[str, Any], where: str) -> None:
    """Take out the norms that `extract` had folded into other layers, unless they are out."""
    have = folded(model)
    for norm, layer in _mapping({"folded": {}, **document}, "folded", where).items():
        if have.get(norm) == layer:
            continue
        try:
            replace_(model, layer, norm)
        except Exception as error:  # whatever ill-made names stumble over
            raise ArtifactError(f"{where}: module {norm!r}: {error}") from error


def _add_masks(model: nn.Module, full: dict[str, Tensor]) -> None:
    """Give every posterior that was pruned when saved a mask for `load_state_dict` to fill."""
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Posterior) and module.keep is None and f"{name}.keep" in full:
            module.keep = torch.ones(module.shape, dtype=torch.bool, device=module.device)


@contextlib.contextmanager
def _undone_on_error(model: nn.Module, present: dict[str, Tensor], where: str) -> Iterator[None]:
    """Restore structure and values of a model if the block fails, and raise an ArtifactError."""
    structure = [(m, dict(vars(m)), dict(m._modules), dict(m._buffers)) for m in model.modules()]
    own = {id(tensor): tensor.detach() for tensor in present.values()}.values()
    values = [(tensor, tensor.clone()) for tensor in own]
    try:
        yield
    except BaseException as error:
        for module, attributes, children, buffers in structure:
            vars(module).clear()
            vars(module).update(attributes)
            module._modules.update(children)
            module._buffers.update(buffers)
        with torch.no_grad():
            for tensor, value in values:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)
        if isinstance(error, ArtifactError) or not isinstance(error, Exception):
            raise
        raise ArtifactError(f"{where}: does not fit the model, which is unchanged: {error}") from error
