"""How the networks of the CIFAR-10 table are trained: plain ones from scratch, all others from a plain one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import TensorDataset

import leanbayes as lb

from ...data import DataSet
from ...methods.patch import norms_and_output
from ..jobs import Jobs
from ..training import Training, trained_network

PATCHED = "norm layers and output"


@dataclass(frozen=True)
class OneCycle(Training):
    """SGD with Nesterov's momentum under a one-cycle schedule, on augmented images; see `Training` for other fields.

    lr: the highest. weight_decay: of weights, not of norm layers, biases and scales. held_out: the last training
    images, by which the temperature and the amount of noise are chosen.
    """

    epochs: int = 18
    lr: float = 0.2
    batch_size: int = 128
    augment: bool = True
    weight_decay: float = 5e-4
    held_out: int = 2500

    def load(self) -> DataSet:
        """The data up to the limits; the last training images are held out."""
        whole = super().load()
        tensors = whole.train.tensors
        count = len(tensors[0]) - self.held_out
        train, val = (TensorDataset(*(t[part] for t in tensors)) for part in (slice(count), slice(count, None)))
        return replace(whole, parts={"train": train, "val": val, "test": whole.test})

    def optimizer(self, model: nn.Module) -> Optimizer:
        """SGD whose scales take Adam's steps (`lb.SGD`)."""
        still = {p for module in model.modules() if isinstance(module, _BatchNorm) for p in module.parameters()}
        still |= {p for name, p in model.named_parameters() if name.endswith("bias")}
        groups: list[dict[str, Any]] = []
        for group in lb.parameter_groups(model, lr=self.lr, scale_lr=self.lr_scale, weight_decay=self.weight_decay):
            parts = [p for p in group["params"] if p not in still], [p for p in group["params"] if p in still]
            groups += [{**group, "params": parts[0]}, {**group, "params": parts[1], "weight_decay": 0.0}]
        return lb.SGD([group for group in groups if group["params"]], momentum=0.9, nesterov=True)

    def fit_options(self, data: DataSet) -> dict[str, Any]:
        """The schedule, a step at a time."""
        return {"scheduler": partial(one_cycle, steps=self.steps(data)), "scheduler_every": "step"}

    def steps(self, data: DataSet) -> int:
        """How many steps the training takes."""
        return self.epochs * -(-len(data.train) // self.batch_size)

    def network_of(self, jobs: Jobs, seed: int, data: DataSet) -> nn.Module:
        """The network, trained now, or read back."""
        return trained_network(jobs, self, seed, data)


@dataclass(frozen=True)
class FineTuning(OneCycle):
    """A plain network, given a method or none and trained on; see `OneCycle` for the other fields.

    plain: how the network was trained that this one starts from, under the same seed. kl_weight: reached after half of
    the steps; None is the default of `fit`, whose statistics of BatchNorm every network has.
    """

    epochs: int = 3
    lr: float = 0.02
    kl_weight: float | None = None
    plain: OneCycle | None = None

    def convert_(self, model: nn.Module) -> None:
        """Give the network its methods; `PATCHED` stands for its norm layers and its output."""
        if PATCHED in self.methods:
            lb.bayesianize_(model, norms_and_output(model, self.methods[PATCHED]))
        else:
            super().convert_(model)

    def fit_options(self, data: DataSet) -> dict[str, Any]:
        """The schedule, and what `fit` does by default: held-out images choose how much noise there is."""
        weight = None if self.kl_weight is None else lb.warmup(0, self.kl_weight, steps=self.steps(data) // 2)
        return {**super().fit_options(data), "kl_weight": weight, "recalibrate": True, "val": data.val}

    def network_of(self, jobs: Jobs, seed: int, data: DataSet) -> nn.Module:
        """The network, trained on now, or read back."""

        def train(**options: Any) -> nn.Module:
            assert self.plain is not None
            network = self.plain.network_of(jobs, seed, data)
            torch.manual_seed(1000 + seed)
            self.convert_(network)
            self.fit_(network, seed, data, **options)
            return network

        label = f"  training {', '.join(self.key()['methods'].values()) or 'the plain network'} on, seed {seed}"
        return jobs.network(self.key(seed), fresh=partial(self.network, data), train=train, label=label)


def one_cycle(optimizer: Optimizer, steps: int) -> OneCycleLR:
    """Every group rises to its learning rate over a quarter of the steps and falls to 0."""
    rates = [group["lr"] for group in optimizer.param_groups]
    return OneCycleLR(optimizer, rates, total_steps=steps + 1, pct_start=0.25, cycle_momentum=False)
