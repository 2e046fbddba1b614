"""`leanbayes train`: a Bayesian network from a data set, saved as one file."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import CascadeSubcommandArgs as Anywhere  # before the name of the method or after it

from ..methods import MeanField
from . import checks
from .choices import MethodChoice, rules

if TYPE_CHECKING:
    from ..data import DataSet


@dataclass(frozen=True)
class Train:
    """Train a network on a data set and save it.

    Args:
        method: how the layers become Bayesian.
        data: a data set by name, from LEANBAYES_DATA or downloaded; a wrong name lists them all.
        split: which published split, for UCI sets.
        model: a network of the library, or your own as package.module:factory.
        options: of a network of the library, for example width=16.
        only: a name glob or module type (Linear, Conv2d) that the method is limited to.
        out: the file to write.
        epochs: passes through the training data; by default 20, or more where that makes less than 1,000 steps.
        lr: learning rate of Adam.
        batch_size: data a step.
        kl_weight: of the KL term; below 1 is a tempered posterior.
        warmup: steps over which the KL weight rises from 0.
        noise: of a regression: fixed at the standard deviation of the targets, learned, or heteroscedastic: one
            for every input.
        seed: of the weights, the data order and the noise.
        checkpoint: a file to continue from if the run is interrupted.
        log: a file for one line of JSON an epoch.
        json: print JSON instead of text.
    """

    method: MethodChoice = MeanField()  # noqa: RUF009  (frozen)
    data: Anywhere[str] = "digits"
    split: Anywhere[int] = 0
    model: Anywhere[str] = "auto"
    options: Anywhere[str] = ""
    only: Anywhere[str | None] = None
    out: Anywhere[Path] = Path("model.safetensors")
    epochs: Anywhere[int | None] = None
    lr: Anywhere[float] = 1e-3
    batch_size: Anywhere[int] = 128
    kl_weight: Anywhere[float] = 1.0
    warmup: Anywhere[int] = 0
    noise: Anywhere[Literal["fixed", "learned", "heteroscedastic"]] = "learned"
    seed: Anywhere[int] = 0
    checkpoint: Anywhere[Path | None] = None
    log: Anywhere[Path | None] = None
    json: Anywhere[bool] = False

    def run(self) -> dict[str, Any]:
        """Train and save; returns the last row of the history."""
        checks.counts(batch_size=self.batch_size, **({} if self.epochs is None else {"epochs": self.epochs}))
        checks.positive(lr=self.lr)
        checks.not_negative(kl_weight=self.kl_weight, warmup=self.warmup)
        checks.seed(self.seed)
        checks.targets(out=self.out, checkpoint=self.checkpoint, log=self.log)

        import torch

        import leanbayes as lb

        from ..data import load, loaders
        from ..errors import ConfigError
        from ..likelihoods import Regression
        from .networks import check, describe, make

        data = load(self.data, split=self.split)
        if data.task not in ("classification", "regression"):
            raise ConfigError(f"--data: expected a set for classification or regression, {self.data} is {data.task}")
        outputs = data.num_classes or (2 if self.noise == "heteroscedastic" else 1)
        description = describe(self.model, data, outputs, self.options)
        torch.manual_seed(self.seed)
        model = make(description)
        check(model, data, outputs)
        chosen = rules(self.method, self.only)
        if chosen is not None:
            plan = lb.bayesianize_(model, chosen)
            if not self.json:
                print(plan, flush=True)
        parts = loaders(data, self.batch_size)
        history = lb.fit(
            model,
            parts["train"],
            val=parts["val"],
            task=data.task if data.num_classes else Regression(noise=self.noise),
            epochs=self.epochs or max(20, math.ceil(1000 / len(parts["train"]))),
            lr=self.lr,
            kl_weight=lb.warmup(0, self.kl_weight, steps=self.warmup) if self.warmup else self.kl_weight,
            seed=self.seed,
            checkpoint=self.checkpoint,
            resume=self.checkpoint is not None,
            log=self.log,
        )
        last = dict(history.last)
        training = self._remembered(data, description)
        lb.save(model, self.out, metadata={"training": training})
        if not self.json:
            shown = ", ".join(f"{k} {v:.4g}" for k, v in last.items() if isinstance(v, float))
            print(f"{shown}\nwrote {self.out}; try: leanbayes evaluate {self.out}")
        return {"out": str(self.out), **training, "last": last}

    def go_on(self) -> str:
        """What to do after an interruption."""
        if self.checkpoint is None:
            return "; with --checkpoint FILE a run can be continued"
        return f"; the same command continues from {self.checkpoint}"

    def _remembered(self, data: DataSet, network: dict[str, Any]) -> dict[str, Any]:
        from .saved import Training

        return asdict(
            Training(
                data=self.data,
                split=self.split,
                network=network,
                seed=self.seed,
                input_shape=list(data.input_shape),
                classes=list(data.class_names) or None,
                mean=data.mean.tolist(),
                std=data.std.tolist(),
                y_mean=data.y_mean,
                y_std=data.y_std,
            )
        )
