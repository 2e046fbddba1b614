"""`leanbayes distill`: a small network that answers in one pass what a saved Bayesian one says in many."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ..errors import ConfigError
from . import checks


@dataclass(frozen=True)
class Distill:
    """Teach a small network what a saved Bayesian one says, for one pass instead of many.

    Args:
        file: the teacher, a model that leanbayes train or leanbayes.save wrote.
        out: the student's file.
        loss: mmd and kl match the distribution of the teacher's probabilities by a Dirichlet, so that the student knows
            what it does not know; kd matches their mean. Of a regression: kl, which matches mean and variance.
        width: of a student that is cut from a nested teacher: the part of its channels.
        student: another network to teach instead: one of the library, or your own as package.module:factory.
        options: of a network of the library, for example width=16.
        data: inputs to teach with, where these are not the training data of the teacher: a name, a file or folder of
            your own, or package.module:function.
        samples: networks that the teacher draws for a datum.
        temperature: of kd.
        label_weight: of the cross-entropy of the labels, beside what the teacher says; 0 does not read them.
        cache: ask the teacher once for every datum instead of for every batch.
        epochs: passes through the data.
        lr: learning rate of Adam.
        batch_size: data a step.
        seed: of the student, the data order and the teacher's draws.
        checkpoint: a file to continue from if the run is interrupted.
        log: a file for one line of JSON an epoch.
        model: the teacher's network as package.module:factory, where the file does not hold one of the library's.
        json: print JSON instead of text.
    """

    file: Annotated[Path, tyro.conf.Positional]
    out: Path = Path("student.safetensors")
    loss: Literal["mmd", "kl", "kd"] = "mmd"
    width: float = 0.25
    student: str | None = None
    options: str = ""
    data: str | None = None
    samples: int = 16
    temperature: float = 1.0
    label_weight: float = 0.0
    cache: bool = False
    epochs: int = 20
    lr: float = 1e-3
    batch_size: int = 128
    seed: int = 0
    checkpoint: Path | None = None
    log: Path | None = None
    model: str | None = None
    json: bool = False

    def run(self) -> dict[str, Any]:
        """Teach and save; returns sizes and where the student is."""
        checks.counts(samples=self.samples, epochs=self.epochs, batch_size=self.batch_size)
        checks.positive(lr=self.lr, temperature=self.temperature, width=self.width)
        checks.seed(self.seed)
        checks.targets(out=self.out, checkpoint=self.checkpoint, log=self.log)
        if self.options and self.student is None:
            raise ConfigError("--options: expected --student beside it, received none; a student that is cut has none")
        if self.out.resolve() == self.file.resolve():
            raise ConfigError(f"--out: expected another file than the teacher's, received {str(self.out)!r}")

        import torch

        import leanbayes as lb

        from .networks import describe, make
        from .saved import open_model

        teacher, training = open_model(self.file, self.model)
        data = training.load(training.data_name(self.data, self.file), part=("train", "val"))
        description, student = training.network, None
        if self.student is not None:
            description = describe(self.student, data, data.num_classes or 1, self.options)
            torch.manual_seed(self.seed)
            student = make(description)
        made = lb.distill(
            teacher,
            next(iter(data.parts.values())),  # the training part, or all of other data
            student,
            loss=self.loss,
            width=self.width,
            samples=self.samples,
            temperature=self.temperature,
            label_weight=self.label_weight,
            cache=self.cache,
            val=data.parts.get("val"),
            epochs=self.epochs,
            lr=self.lr,
            batch_size=self.batch_size,
            seed=self.seed,
            checkpoint=self.checkpoint,
            resume=self.checkpoint is not None,
            log=self.log,
        )
        if self.model is not None and student is None:
            description = {"name": self.model, "options": {}}
        lb.save(made, self.out, metadata={"training": asdict(replace(training, network=description))})
        sizes = {
            "teacher": sum(p.numel() for p in teacher.parameters()),
            "student": sum(p.numel() for p in made.parameters()),
        }
        if not self.json:
            print(
                f"{sizes['student']:,} parameters where the teacher has {sizes['teacher']:,}, one pass for "
                f"{self.samples}\nwrote {self.out}; try: leanbayes evaluate {self.file} {self.out}"
            )
        return {"out": str(self.out), "loss": self.loss, "parameters": sizes}

    def go_on(self) -> str:
        """What to do after an interruption."""
        return checks.continued(self.checkpoint, "with --checkpoint FILE a run")
