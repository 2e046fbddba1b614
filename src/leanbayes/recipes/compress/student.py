"""Table 4 of variational nested dropout: students of a nested teacher (SN3), a quarter of its channels, one pass.

The paper's data are Tiny-ImageNet, for VGG11 and ResNeXt; here CIFAR-10 and Fashion-MNIST stand for it, with a small
VGG whose convolutions and hidden layer are all nested, so that a quarter of the channels are about a sixteenth of the
parameters.

BN3: the teacher, full width, averaged over samples. Students start from the first quarter of its channels at their
means, and are trained as long as one another, on the same images, by the same optimiser; of all of them the epoch with
the lowest NLL on images that were held out is kept. cut: without any training, BatchNorm's statistics collected anew.
labels: trained on labels alone. labels, scratch: the same from a new initialisation. kd, kl, mmd: by `distill`, from
samples of the teacher that are drawn once; mmd is the paper's loss, "mmd and mean" has the cross-entropy of the means
beside it, "mmd and labels" that of the labels, both with a weight of 5. All students answer in one pass.

AUROC: of data from another domain, by entropy and by mutual information; a network that says no more than
probabilities has no mutual information.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import nn

import leanbayes as lb

from ...compress.taught import Loss
from ...convert import record
from ...data import DataSet, load
from ...evaluation.metrics import calibration, classification
from ...evaluation.metrics.ood import auroc
from ...methods.nested import WEIGHTS
from ..experiment import Cell, Experiment
from ..jobs import Jobs
from ..nested.networks import NestedTraining
from ..paper import printed
from ..results import Metrics
from ..training import ROWS, Training, linear_decay, reset_, trained_network

STUDENTS = ("cut", "labels", "labels, scratch", "kd", "kl", "mmd", "mmd and mean", "mmd and labels")


@dataclass(frozen=True)
class Setup:
    """A teacher on its data, and how students are made of it.

    other: data of another domain. width: of the students. epochs: of the students. held_out: images to choose the
    epoch by. samples: of the teacher, in distillation and in its own evaluation.
    """

    training: Training
    other: str
    width: float = 0.25
    groups: int = 16
    epochs: int = 20
    lr: float = 2e-3
    held_out: int = 2000
    samples: int = 10
    seeds: int = 2

    @property
    def teacher(self) -> NestedTraining:
        """The training of BN3, all channels ordered, with the weights of the KL of the other nested experiments."""
        weights = replace(WEIGHTS, log_alpha=-3.0)
        nested = lb.Nested(groups=self.groups, base_groups=1, tail_weight=0.02, weights=weights)
        fields: dict[str, Any] = {**vars(self.training), "methods": {"*": nested}}
        return NestedTraining(**fields, trained="BN3", kl_weight=0.1)

    def cell(self, name: str) -> Cell:
        """A row: the teacher, or a student."""
        own = {"width": self.width, "epochs": self.epochs, "lr": self.lr, "held_out": self.held_out}
        key = {"teacher": self.teacher.key(), "other": self.other, "samples": self.samples, "name": name}
        made = f"1/{1 / self.width:g} of the channels"
        return Cell(
            self.training.data,
            name,
            "all channels" if name == "BN3" else made,
            key if name == "BN3" else {**key, **own},
            partial(measured, self, name),
            self.seeds,
        )


FASHION = Setup(
    Training("fashion-mnist", "vgg_small", epochs=10, batch_size=100, limit=10_000, test_limit=5000), "mnist"
)
CIFAR = Setup(replace(FASHION.training, data="cifar10"), "svhn")
DIGITS = Setup(
    Training("digits", "vgg_small", {"width": 0.5, "hidden": 16}, epochs=2, lr=3e-3, batch_size=50, limit=600),
    "not-digits/letters",
    groups=4,
    epochs=2,
    held_out=200,
    samples=4,
    seeds=1,
)
SETUPS: dict[str, tuple[Setup, ...]] = {
    "smoke": (DIGITS,),
    "cpu": (FASHION, CIFAR),
    "paper": (
        replace(
            CIFAR,
            training=Training("cifar10", "vgg11_bn", epochs=200, batch_size=128, augment=True, limit=45_000),
            groups=32,
            epochs=200,
            held_out=5000,
        ),
    ),
}


def cells(preset: str) -> Iterator[Cell]:
    """The teacher and its students; what the paper prints, of another data set, stands in lines of its own."""
    for setup in SETUPS[preset]:
        yield from (setup.cell(name) for name in ("BN3", *STUDENTS))
    if preset != "smoke":
        for name, rows in printed("student").items():
            for setting, figures in rows.items():
                yield Cell("tiny-imagenet", name, setting, seeds=0, paper=figures)


def measured(setup: Setup, name: str, jobs: Jobs, seed: int) -> Metrics:
    """Quality, size and passes of the teacher, or of a student that is trained now."""
    data = setup.teacher.load()
    model = _teacher(setup, jobs, seed, data)
    if name == "BN3":
        whole = lb.extract(model, width=1.0, sparse=False)
        return quality(setup, model, data, seed, samples=setup.samples) | {"parameters": _size(whole)}
    student = lb.extract(model, width=setup.width, sparse=False)
    size = _size(student)
    student = trained_student(setup, name, seed, student, model, data)
    return quality(setup, student, data, seed, samples=1) | {"parameters": size}


def trained_student(
    setup: Setup, name: str, seed: int, student: nn.Module, teacher: nn.Module, data: DataSet
) -> nn.Module:
    """A student, from the cut network."""
    if name == "cut":
        lb.recalibrate_(student, data.train, data=5000)
        record.ensure(student).trained(lb.Classification().to_dict())
        return student
    best = lb.EarlyStopping(patience=setup.epochs, restore_best=True)
    options: dict[str, Any] = {
        "epochs": setup.epochs,
        "lr": setup.lr,
        "batch_size": setup.training.batch_size,
        "scheduler": partial(linear_decay, epochs=setup.epochs),
        "val": setup.training.held_out_images(setup.held_out),
        "early_stopping": best,
        "seed": seed,
        "progress": False,
    }
    if name.startswith("labels"):
        torch.manual_seed(seed)
        student = reset_(student) if name == "labels, scratch" else student
        lb.fit(student.train(), setup.teacher.examples(data), **options)
        return student
    cache: Any = False if setup.training.augment else answers(setup, seed, teacher, data)
    examples, loss = setup.teacher.examples(data), cast(Loss, name.split()[0])
    options |= {"mean_weight": 5.0 * (name == "mmd and mean"), "label_weight": 5.0 * (name == "mmd and labels")}
    options |= {"samples": setup.samples, "cache": cache}
    return lb.distill(teacher, examples, student.train(), loss=loss, **options)


def _teacher(setup: Setup, jobs: Jobs, seed: int, data: DataSet) -> nn.Module:
    """The teacher at full width, BatchNorm's statistics collected there under noise."""
    model = trained_network(jobs, setup.teacher, seed, data)
    lb.set_width_(model, 1.0)
    return lb.recalibrate_(model, data.train, data=5000)


def answers(setup: Setup, seed: int, teacher: nn.Module, data: DataSet) -> lb.Predictive:
    """What the teacher says of the training images: the same for all students of a seed, of whom the last is kept."""
    key = repr((setup, seed))
    if key not in _answers:
        images, chunk = data.train.tensors[0], ROWS * setup.samples
        _answers.clear()
        _answers[key] = lb.predict(teacher, images, setup.samples, seed, keep_samples=True, chunk=chunk)
    return _answers[key]


_answers: dict[str, lb.Predictive] = {}


def quality(setup: Setup, model: nn.Module, data: DataSet, seed: int, samples: int) -> Metrics:
    """Accuracy, loss and calibration on the test part, and how well doubt detects the other domain."""
    inputs, targets = data.test.tensors
    other = load(setup.other, parts="test", normalise=data).test.tensors[0][: len(inputs)]
    inside, outside = (lb.predict(model, x, samples, seed, chunk=ROWS * samples) for x in (inputs, other))
    found = {
        "accuracy": classification.accuracy(inside.probs, targets),
        "nll": classification.nll(inside.probs, targets),
        "ece": calibration.ece(inside.probs, targets, bins=15, min_count=0),
        "AUROC, entropy": auroc(inside.entropy, outside.entropy),
    }
    if float(inside.mutual_information.max()) > 1e-6:
        found["AUROC, mutual information"] = auroc(inside.mutual_information, outside.mutual_information)
    return {**found, "passes": float(inside.counts.max())}


def _size(model: nn.Module) -> float:
    return float(sum(p.numel() for p in model.parameters()))


EXPERIMENT = Experiment("student", cells)
