"""A teacher of `distill`: what it is asked, at which width, and its answers beside the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from .. import batches
from ..errors import ConfigError
from ..likelihoods import Likelihood
from ..ordering.unit import OrderingUnit, units
from ..prediction.api import predict
from ..prediction.predictive import Predictive


@dataclass
class Teacher:
    """The teacher, and what it is asked.

    labels: whether the student learns from the labels of the data too.
    tied: ordering units of the student, whose widths those of the teacher follow.
    """

    model: nn.Module
    meaning: Likelihood
    samples: int
    labels: bool = False
    tied: tuple[OrderingUnit, ...] = ()

    def __call__(self, inputs: Any, seed: int) -> Predictive:
        """What it says of the inputs."""
        regression = self.meaning.task == "regression"
        ask = partial(predict, self.model, inputs, self.samples, seed, task=self.meaning, keep_samples=not regression)
        if not self.tied:
            return ask()
        with _at_widths(units(self.model), self.tied), _batch_statistics(self.model):
            return ask(strategy="loop")  # one block: statistics of the whole batch

    def targets(self, said: Predictive) -> Tensor:
        """What `FromTeacher` compares with: (batch, S, classes), or (batch, 2, ...) of a regression."""
        if said.task == "regression":
            return torch.stack([said.mean, said.variance], 1)
        return said.samples.movedim(0, 1)

    def follow(self, student: nn.Module) -> None:
        """Have the widths follow those of a student, where both are nested."""
        if not units(self.model) or not (found := units(student)):
            return
        if any(unit.per_sample for unit in found):
            raise ConfigError("student: expected one width a batch, which the teacher can follow; use per_sample=False")
        self.tied = tuple(found)

    def teach(self, student: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any], output: Any) -> Any:
        """A hook of the student: in training, its output is compared with what the teacher says of the same inputs."""
        if not (student.training and torch.is_grad_enabled()):
            return None
        inputs = dict(named) if named else args[0] if len(args) == 1 else args
        seed = int(torch.randint(2**62, (1,)))  # of the generator that checkpoints keep
        said = batches.output_tensor(output)
        return batches.TaughtOutput(said, self.targets(self(inputs, seed)).to(said.device), self.labels)


@contextmanager
def _at_widths(teacher: list[OrderingUnit], student: tuple[OrderingUnit, ...]) -> Iterator[None]:
    """Run the teacher at the part of its channels that the last pass of the student kept: |v| = r |v'| (21)."""
    before = [(unit, unit.width) for unit in teacher]
    drawn = {unit.name: unit.fraction(_kept(unit)) for unit in student}
    average = sum(drawn.values()) / len(drawn)
    try:
        for unit in teacher:
            unit.width = unit.nodes_at(drawn.get(unit.name, average))
        yield
    finally:
        for unit, width in before:
            unit.width = width


def _kept(unit: OrderingUnit) -> int:
    noise = unit.draw.current
    return unit.kept or (unit.limit if noise is None else unit.drawn(noise.detach()))


@contextmanager
def _batch_statistics(model: nn.Module) -> Iterator[None]:
    """Have BatchNorm use the statistics of the batch in evaluation mode: those that are stored are of other widths."""
    norms = (module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats)
    found = [(norm, norm.running_mean, norm.running_var) for norm in norms]
    try:
        for module, _, _ in found:
            module.running_mean = module.running_var = None
        yield
    finally:
        for module, mean, var in found:
            module.running_mean, module.running_var = mean, var


class Answered(Dataset):
    """Data with the teacher's answers in the place of their labels, or beside them."""

    def __init__(self, data: Dataset, answers: Tensor, labels: bool) -> None:
        self.data, self.answers, self.labels = data, answers, labels

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, index: int) -> Any:
        inputs, label = batches.split(self.data[index])
        answers = self.answers[index]
        if self.labels:
            answers = batches.with_labels(answers.unsqueeze(0), torch.as_tensor(label).reshape(1)).squeeze(0)
        return inputs, answers


def answered(loader: Any, teacher: Teacher, seed: int, said: Predictive | None) -> Any:
    """The data with what the teacher says of each, asked once; said: by the caller."""
    if teacher.tied:
        raise ConfigError("cache: expected False where teacher and student vary their widths together")
    if isinstance(loader, TensorDataset):
        loader = loader.tensors
    if not batches.is_table(loader) and (not isinstance(loader, Dataset) or isinstance(loader, IterableDataset)):
        raise ConfigError(
            f"cache: expected tensors or a map-style Dataset, whose data stay the same, received "
            f"{type(loader).__name__}; pass loader.dataset, or cache=False"
        )
    whole = isinstance(loader, Dataset)
    inputs, labels = (loader, None) if whole else batches.split(loader)
    said = teacher(inputs, seed) if said is None else said
    answers = teacher.targets(said).cpu()
    if len(answers) != batches.length(inputs):
        raise ConfigError(
            f"cache: expected what the teacher says of the {batches.length(inputs)} data of the loader, received a "
            f"prediction of {len(answers)}"
        )
    if whole:
        return Answered(loader, answers, teacher.labels)
    if teacher.labels:
        answers = batches.with_labels(answers, labels)
    if isinstance(inputs, Mapping):
        return {**inputs, "targets": answers}
    return (*inputs, answers) if isinstance(inputs, tuple) else (inputs, answers)
