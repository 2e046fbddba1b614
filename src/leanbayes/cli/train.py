"""`leanbayes train`: a Bayesian network from a data set, saved as one file."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import CascadeSubcommandArgs as Anywhere  # before the name of the method or after it

from ..config import to_dict
from ..errors import ConfigError
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
        data: a data set by name, from LEANBAYES_DATA or downloaded (a wrong name lists them all); or data of your own:
            a .csv, .parquet, .npz or .npy file, a folder with a folder of images for each class, or
            package.module:function that returns loaders.
        target: the column of a table to predict, the array of a .npz, or the .npy file of the targets.
        task: of data of your own, where it is not clear from the targets.
        drop: columns of a table to leave out.
        missing: error refuses empty cells and unknown texts; fill takes the mean, or none of the known texts.
        size: resize images of your own to this many pixels a side.
        val_fraction: of data of your own without a validation part.
        test_fraction: of data of your own without a test part.
        split: which published split, for UCI sets.
        model: a network of the library, or your own as package.module:factory.
        options: of a network of the library, for example width=16.
        only: a name glob or module type (Linear, Conv2d) that the method is limited to.
        out: the file to write.
        epochs: passes through the training data; by default 20, or more where that makes less than 1,000 steps.
        lr: learning rate of Adam.
        batch_size: data a batch.
        accumulate: batches a step of the optimizer, where memory holds no larger ones.
        kl_weight: of the KL term; by default that of fit: 1, or less for little data, a tempered posterior.
        warmup: steps over which the KL weight rises from 0.
        coverage: of conformal prediction sets or intervals, for example 0.9: half of the validation data find the
            thresholds, which predict and evaluate then use.
        score: of conformal prediction: lac, aps or raps for classes, normalized, absolute or cqr for a regression.
        class_conditional: cover every class as often.
        noise: of a regression: fixed at the standard deviation of the targets, learned, or heteroscedastic: one
            for every input.
        seed: of the weights, the data order and the noise.
        checkpoint: a file to continue from if the run is interrupted.
        log: a file for one line of JSON an epoch.
        json: print JSON instead of text.
    """

    method: MethodChoice = MeanField()  # noqa: RUF009  (frozen)
    data: Anywhere[str] = "digits"
    target: Anywhere[str | None] = None
    task: Anywhere[Literal["classification", "regression"] | None] = None
    drop: Anywhere[tuple[str, ...]] = ()
    missing: Anywhere[Literal["error", "fill"] | None] = None
    size: Anywhere[int | None] = None
    val_fraction: Anywhere[float | None] = None
    test_fraction: Anywhere[float | None] = None
    split: Anywhere[int] = 0
    model: Anywhere[str] = "auto"
    options: Anywhere[str] = ""
    only: Anywhere[str | None] = None
    out: Anywhere[Path] = Path("model.safetensors")
    epochs: Anywhere[int | None] = None
    lr: Anywhere[float] = 1e-3
    batch_size: Anywhere[int] = 128
    accumulate: Anywhere[int] = 1
    kl_weight: Anywhere[float | None] = None
    warmup: Anywhere[int] = 0
    noise: Anywhere[Literal["fixed", "learned", "heteroscedastic"]] = "learned"
    coverage: Anywhere[float | None] = None
    score: Anywhere[Literal["lac", "aps", "raps", "normalized", "absolute", "cqr"] | None] = None
    class_conditional: Anywhere[bool] = False
    seed: Anywhere[int] = 0
    checkpoint: Anywhere[Path | None] = None
    log: Anywhere[Path | None] = None
    json: Anywhere[bool] = False

    def run(self) -> dict[str, Any]:
        """Train and save; returns the last row of the history."""
        checks.counts(batch_size=self.batch_size, accumulate=self.accumulate, epochs=self.epochs)
        checks.positive(lr=self.lr)
        checks.not_negative(kl_weight=self.kl_weight, warmup=self.warmup)
        checks.seed(self.seed)
        if self.coverage is None and (self.score is not None or self.class_conditional):
            raise ConfigError("--score, --class-conditional: expected --coverage beside them; add --coverage 0.9")
        checks.fractions(coverage=self.coverage)
        checks.targets(out=self.out, checkpoint=self.checkpoint, log=self.log)

        import torch

        import leanbayes as lb

        from ..data import loaders
        from ..likelihoods import Regression
        from .networks import check, describe, kl_weight, make
        from .own_data import open_data

        reading = ("target", "task", "drop", "missing", "size", "val_fraction", "test_fraction")
        data = open_data(self.data, split=self.split, **{option: vars(self)[option] for option in reading})
        if data.task not in ("classification", "regression", "segmentation"):
            raise ConfigError(f"--data: expected a set with classes, targets or masks, {self.data} is {data.task}")
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
        if not self.json and data.preparation is not None:
            print(_described(data), flush=True)
        parts = loaders(data, self.batch_size)
        val, held_out = self._held_out(data, parts)
        history = lb.fit(
            model,
            parts["train"],
            val=val,
            task=data.task if data.num_classes else Regression(noise=self.noise),
            epochs=self.epochs or max(20, math.ceil(1000 / len(parts["train"]))),
            lr=self.lr,
            accumulate=self.accumulate,
            kl_weight=kl_weight(self.kl_weight, self.warmup, model, parts["train"]),
            seed=self.seed,
            checkpoint=self.checkpoint,
            resume=self.checkpoint is not None,
            log=self.log,
        )
        last = dict(history.last)
        if self.coverage is not None:
            choice: Any = {"score": self.score, "class_conditional": self.class_conditional}
            lb.conformalize_(model, held_out, self.coverage, **choice, progress=False)
        training = self._remembered(data, description)
        lb.save(model, self.out, metadata={"training": training})
        if not self.json:
            shown = ", ".join(f"{k} {v:.4g}" for k, v in last.items() if isinstance(v, float))
            print(f"{shown}\nwrote {self.out}; try: leanbayes evaluate {self.out}")
        return {"out": str(self.out), **training, "last": last}

    def _held_out(self, data: DataSet, parts: dict[str, Any]) -> tuple[Any, Any]:
        """Validation data for training, and other data for conformal thresholds if --coverage is given."""
        import numpy as np
        from torch.utils.data import DataLoader, Subset, TensorDataset

        from ..conformal.config import least_count
        from ..data.splits import hold_out
        from ..evaluation.conformalize import checked_score

        if self.coverage is None:
            return parts.get("val"), None
        if "val" not in data.parts:
            raise ConfigError("--coverage: expected validation data, received none; add --val-fraction 0.2")
        part: Any = data.val
        whole: Any = part.dataset if isinstance(part, DataLoader) else part
        collate = part.collate_fn if isinstance(part, DataLoader) else None
        checked_score(self.score, data.task, self.class_conditional)
        if len(whole) // 2 < (needed := least_count(self.coverage)):
            raise ConfigError(
                f"--coverage: expected at least {2 * needed} validation data for {self.coverage:g}, received "
                f"{len(whole)}; add --val-fraction 0.3, collect more, or ask for less"
            )
        stratified = data.num_classes and isinstance(whole, TensorDataset)
        labels = whole.tensors[1].numpy() if stratified else np.zeros(len(whole))
        kept, held = hold_out(labels, 0.5, self.seed % 2**32)
        first, second = (Subset(whole, index.tolist()) for index in (kept, held))
        return DataLoader(first, 256, collate_fn=collate), DataLoader(second, 256, collate_fn=collate)

    def go_on(self) -> str:
        """What to do after an interruption."""
        return checks.continued(self.checkpoint, "with --checkpoint FILE a run")

    def _remembered(self, data: DataSet, network: dict[str, Any]) -> dict[str, Any]:
        from .saved import Training

        own = data.preparation
        return asdict(
            Training(
                data=self.data,
                split=self.split,
                network=network,
                seed=self.seed,
                input_shape=list(data.input_shape),
                classes=list(data.class_names) or None,
                mean=data.mean.tolist() or None,
                std=data.std.tolist() or None,
                y_mean=data.y_mean,
                y_std=data.y_std,
                preparation=None if own is None else to_dict(own),
                val_fraction=0.1 if self.val_fraction is None else self.val_fraction,
                test_fraction=0.2 if self.test_fraction is None else self.test_fraction,
            )
        )


def _described(data: DataSet) -> str:
    """A summary of the data that were read: sizes, task and columns."""
    known = data.preparation
    assert known is not None
    lines = [repr(data)]
    if known.task == "classification":
        shown = ", ".join(known.classes[:8]) + (", ..." if len(known.classes) > 8 else "")
        lines.append(f"classes: {shown} (--task regression to predict a number)")
    else:
        lines.append(
            f"target: mean {known.y_mean:.4g}, std {known.y_std:.4g} (--task classification to predict classes)"
        )
    if known.columns:
        texts = [name for name, found in zip(known.columns, known.categories, strict=True) if found]
        lines.append(
            f"columns: {len(known.columns) - len(texts)} of numbers, {len(texts)} of texts"
            + (f" ({', '.join(texts[:8])})" if texts else "")
        )
    return "\n".join(lines)
