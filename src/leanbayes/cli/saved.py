"""Models that `leanbayes train` wrote, with the metadata of their training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import artifacts, config
from ..compress.cascade import Cascade
from ..data import DataSet, Preparation, load, read
from ..data.sources import is_source
from ..errors import ArtifactError, ConfigError, DataError
from .networks import make
from .own_data import from_function, is_function

MOST_STAGES = 100


@dataclass(frozen=True)
class Training:
    """The metadata of the training in a model file, JSON only; the defaults are for a file without it.

    data, split: the data set. network: name and options. input_shape: of one datum. classes: their names.
    mean, std: inputs are (x - mean) / std by channel or feature. y_mean, y_std: the same of a regression's target.
    preparation: how data of the user's own become inputs, as JSON. val_fraction, test_fraction: how they were split.
    """

    data: str | None = None
    split: int = 0
    network: dict[str, Any] | None = None
    seed: int = 0
    input_shape: list[int] | None = None
    classes: list[str] | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    y_mean: float = 0.0
    y_std: float = 1.0
    preparation: dict[str, Any] | None = None
    val_fraction: float = 0.1
    test_fraction: float = 0.2

    @property
    def prepared_by(self) -> Preparation | None:
        """How data of the user's own are prepared."""
        return None if self.preparation is None else config.from_dict(self.preparation)  # type: ignore[no-any-return]

    def read_again(self, part: str) -> DataSet:
        """The data that the model was trained on, from the same file or folder."""
        known = self.prepared_by
        assert known is not None
        assert self.data is not None
        options: dict[str, Any] = {"val_fraction": self.val_fraction, "test_fraction": self.test_fraction}
        options |= {"drop": known.drop, "missing": known.missing, "size": known.size, "task": known.task}
        found = read(self.data, known.target or None, **options)
        if found.preparation != known:
            raise DataError(
                f"{self.data} is not what it was when the model was trained, so that its test part is not known; "
                "test on other data: --data FILE takes all of it"
            )
        if part not in found.parts:
            raise DataError(
                f"{self.data}: nothing was held out as {part} when the model was trained, and to test on training data "
                "would flatter it; test on other data: --data FILE"
            )
        return found

    def data_name(self, given: str | None, file: Path) -> str:
        """The name of the data: the given one, or what the model was trained on."""
        if (name := given or self.data) is None:
            raise ConfigError(f"{file} does not say what it was trained on; add --data NAME")
        if given is None and is_function(name):  # only the user may have a function called that a file names
            raise ConfigError(f"{file} was trained on data of a function of yours; to call it, add --data {name}")
        return name

    def load(self, name: str, like: DataSet | None = None, part: str | tuple[str, ...] = "test") -> DataSet:
        """Parts of a data set, scaled as the training data were (or ``like`` another), if they fit the model."""
        if is_function(name):
            return from_function(name)
        if is_source(name):
            if (known := self.prepared_by) is None:
                raise DataError(
                    f"{name}: expected a model that was trained on data of your own, which says how to scale them"
                )
            first = part if isinstance(part, str) else part[0]
            return self.read_again(first) if name == self.data else read(name, like=known)
        shape = None if self.input_shape is None else tuple(self.input_shape)
        if self.mean is not None and self.std is not None:
            scale = torch.tensor(self.mean), torch.tensor(self.std)
            like = DataSet(self.data or "", "", {}, shape or (), (), *scale, self.y_mean, self.y_std)
        if shape is not None and name != self.data:  # looked at unscaled, since the scaling may not fit either
            found = load(name, parts="test", split=self.split, normalise=False).input_shape
            if found != shape:
                raise DataError(
                    f"{name}: expected data of shape {shape}, as the model takes, received {found}; "
                    f"choose a set like {self.data}"
                )
        return load(name, parts=part, split=self.split, normalise=True if like is None else like)


def open_model(path: Path, network: str | None) -> tuple[nn.Module, Training]:
    """The model in a file and its training.

    network: a factory of the user. A file may name one, but only the user can allow its import.
    """
    header = artifacts.inspect(path)
    training = training_of(header.get("metadata"), path)
    description = training.network
    if network is not None and ":" not in network:
        raise ConfigError(f"--model: expected package.module:factory, received {network!r}; leave it out otherwise")
    if network is not None:
        description = {"name": network, "options": {}}
    elif description is None:
        raise ArtifactError(f"{path} does not say which network it holds; add --model package.module:factory")
    elif ":" in description["name"]:
        raise ArtifactError(f"{path} holds a network of your own; to import it, add --model {description['name']}")
    return artifacts.load(path, into=_networks(description, header)), training


def _networks(description: dict[str, Any], header: dict[str, Any]) -> nn.Module:
    """The network to load a file into; for a cascade all stages, those with tied weights as one network."""
    stages, tied = header.get("stages"), header.get("aliases")
    count = len(stages["samples"]) if isinstance(stages, dict) and isinstance(stages.get("samples"), list) else 0
    if not 1 < count <= MOST_STAGES:
        return make(description)
    found = [make(description)]
    for number in range(1, count):
        same = isinstance(tied, dict) and any(name.startswith(f"stages.{number}.") for name in tied)
        found.append(found[-1] if same else make(description))
    return Cascade(found)


def training_of(metadata: Any, path: Path) -> Training:
    """The training in the metadata of a file, which anybody may have written: refused if it is not valid."""
    stored = metadata.get("training") if isinstance(metadata, dict) else None
    if stored is None:
        return Training()
    try:
        training = Training(**stored)
        known = training.network is None or {*training.network} == {"name", "options"}
        float(training.y_mean), float(training.y_std), int(training.split)
    except (TypeError, ValueError) as error:
        raise ArtifactError(f"{path}: metadata 'training': expected what leanbayes train writes ({error})") from error
    if not known:
        raise ArtifactError(f"{path}: metadata 'training': expected a network's name and options")
    return training
