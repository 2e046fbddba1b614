"""The network of a command: one of the library's that fits the data, or what a factory of the user returns."""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import batches, feed, models
from ..data import DataSet
from ..errors import ConfigError
from ..models.for_data import fitting
from ..training.arguments import default_kl_weight
from ..training.data import count
from ..training.schedules import warmup


def describe(name: str, data: DataSet, outputs: int | None = None, options: str = "") -> dict[str, Any]:
    """The name and options of a network, as a model file stores them.

    name: "auto", a name that `leanbayes.models.build` knows, or "package.module:factory".
    options: of the network, over those that fit the data, as "name=value,name=value".
    """
    given = parsed(options)
    if ":" not in name:
        fits = fitting(name, data, outputs)
        return {**fits, "options": {**fits["options"], **given}}
    if given:
        raise ConfigError(f"--options: expected a network of the library, received {name}; set them in the factory")
    return {"name": name, "options": {}}


def parsed(options: str) -> dict[str, Any]:
    """Options as Python values: numbers, booleans, strings and lists of them.

    >>> parsed("width=16,batch_norm=true,activation=abs,widths=[8,16]")
    {'width': 16, 'batch_norm': True, 'activation': 'abs', 'widths': [8, 16]}
    """
    apart = re.split(r",(?![^\[]*\])", options)  # at commas outside of lists
    pairs = [part.strip().partition("=") for part in apart if part.strip()]
    for name, equals, value in pairs:
        if not (name.isidentifier() and equals and value):
            raise ConfigError(f"--options: expected name=value,name=value, received {options!r}; try width=16")
    values: dict[str, Any] = {}
    for name, _, value in pairs:
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return values


def make(description: dict[str, Any]) -> nn.Module:
    """The network of a description."""
    if ":" in description["name"]:
        return network_of(description["name"])
    return models.build(description["name"], **description["options"])


def check(model: nn.Module, data: DataSet, outputs: int) -> None:
    """Refuse a network that does not accept the data, or does not return ``outputs`` numbers for a datum."""
    inputs = batches.rows(first_batch(data.train)[0], 0, 2)
    count = batches.size(inputs)
    try:
        with torch.no_grad():
            trial = copy.deepcopy(model).eval()  # a copy, since a forward pass may change buffers
            shape = tuple(batches.output_tensor(batches.call(trial, inputs)).shape)
    except Exception as error:  # a user's network may raise anything
        raise ConfigError(
            f"model: expected a network for inputs of shape {data.input_shape}, but it raised {_told(error)}"
        ) from error
    if data.task == "segmentation":
        fine = [(count, channels, *data.input_shape[1:]) for channels in {outputs, 1 if outputs == 2 else outputs}]
        if shape not in fine:
            raise ConfigError(
                f"model: expected outputs of shape {(outputs, *data.input_shape[1:])} for each image of {data.name}, "
                f"received {shape[1:]}; change its last layer"
            )
        return
    single = (count,) if data.task == "regression" else (count, 1)  # one number a datum; one logit for two classes
    fine = [(count, outputs), single] if outputs == (data.num_classes or 1) <= 2 else [(count, outputs)]
    if shape not in fine:
        raise ConfigError(
            f"model: expected {outputs} outputs for each datum of {data.name} ({data.task}), received outputs of shape "
            f"{shape[1:]}; change its last layer"
        )


def first_batch(part: Any) -> tuple[Any, Any]:
    """The inputs and targets of the first batch of a part of a data set."""
    (inputs, targets), _ = feed.peek(batches.accept(part, name="data"))
    return inputs, targets


def network_of(path: str) -> nn.Module:
    """The network that package.module:factory is or returns."""
    model = imported(path, "model", "a function without arguments that returns an nn.Module", nn.Module)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model: expected {path} to return an nn.Module, received {type(model).__name__}")
    return model


def kl_weight(given: float | None, steps: int, model: nn.Module, train: Any) -> Any:
    """The weight of the KL for `fit`: None for its default, or a schedule that rises to it in so many steps."""
    if not steps:
        return given
    return warmup(0, default_kl_weight(model, count(train)) if given is None else given, steps=steps)


def imported(path: str, option: str, wanted: str, ready: type | tuple[()] = ()) -> Any:
    """The result of package.module:function; an attribute of class ``ready`` is returned without a call."""
    module, _, attribute = path.partition(":")
    sys.path.insert(0, "")  # a module in the current folder is found, as python -m would
    try:
        found = getattr(importlib.import_module(module), attribute)
        return found if isinstance(found, ready) else found()
    except Exception as error:  # a user's module may raise anything
        raise ConfigError(
            f"{option}: expected package.module:function, {wanted}; {path!r} raised {_told(error)}"
        ) from error
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove("")


def _told(error: Exception) -> str:
    """An error of the user's code as text, with the last line of that code in its traceback."""
    ours = str(Path(__file__).parents[1])
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((ours, "<"))]
    own = [f for f in frames if f"lib{os.sep}python" not in f.filename]  # neither installed nor Python's own
    where = f" ({os.path.relpath(own[-1].filename)}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}{where}"
