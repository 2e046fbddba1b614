"""What an experiment trains: which network on which data, for how long, and how its batches are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb

from ..data import DataSet, load as load_data
from ..models import build
from ..models.for_data import fitting
from ..training.history import History
from .experiment import Cell
from .jobs import Jobs
from .results import Measured

ROWS = 1000  # of test images at once: the noise of a sample is drawn anew for every block of them


AS_PUBLISHED: dict[str, Any] = {"kl_weight": 1.0, "recalibrate": False}
"""Options of `fit` as the papers have them: the ELBO itself, and BatchNorm's statistics as training leaves them."""


@dataclass(frozen=True)
class Training:
    """One training run: what on what, and for how long; with Adam, whose learning rate falls linearly to 0.

    model: a name of `leanbayes.models`, with its options. methods: by name or glob of a layer. limit, test_limit: the
    most training and test images. augment: shifts of up to 4 pixels and mirror images.
    lr_scale: of log alpha and of sigma, at the start; None is lr. beta_scale: Adam's beta2 for them. The KL's slope
    falls by orders of magnitude as alpha grows, and a long memory of steep slopes slows it down.
    """

    data: str
    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    methods: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = 200
    lr: float = 1e-3
    lr_scale: float | None = None
    beta_scale: float = 0.999
    batch_size: int = 200
    limit: int | None = None
    test_limit: int | None = None
    augment: bool = False

    def key(self, seed: int | None = None) -> dict[str, Any]:
        """All that the trained network depends on, for `Jobs`; without a seed, all but that."""
        methods = {name: repr(method) for name, method in self.methods.items()}
        return {**asdict(self), "methods": methods, **({} if seed is None else {"seed": seed})}

    def load(self) -> DataSet:
        """The data, up to the limits; no training data are held out, since nothing is chosen by them."""
        data = load_data(self.data, val_fraction=0)
        limits = {"train": self.limit, "test": self.test_limit}
        parts = {name: TensorDataset(*(t[: limits[name]] for t in part.tensors)) for name, part in data.parts.items()}
        return replace(data, parts=parts)

    def held_out_images(self, count: int) -> tuple[Tensor, Tensor]:
        """So many training images that no network is trained on."""
        inputs, targets = load_data(self.data, val_fraction=0).train.tensors
        start = self.limit or len(inputs) - count
        return inputs[start : start + count], targets[start : start + count]

    def network(self, data: DataSet) -> nn.Module:
        """The plain network, for the shapes of its data, newly initialised.

        Channels last: on a CPU a training step of LeNet-5 takes seven to nine tenths of the time that way.
        """
        chosen = fitting(self.model, data)
        model = build(chosen["name"], **{**chosen["options"], **self.options})
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def convert_(self, model: nn.Module) -> None:
        """Give a new network the methods."""
        if self.methods:
            rules: Any = dict(self.methods)
            lb.bayesianize_(model, rules)

    def examples(self, data: DataSet) -> Any:
        """What `fit` reads: tensors, whose batches are taken by one indexing each, or a loader that augments them."""
        if not self.augment:
            return data.train
        return DataLoader(data.train, self.batch_size, shuffle=True, collate_fn=shift_and_mirror)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Adam, with a learning rate of their own for the parameters that set the noise."""
        others, scales = split_parameters(model, (".log_alpha", ".rho"))
        groups: list[dict[str, Any]] = [
            {"params": others, "lr": self.lr},
            {"params": scales, "lr": self.lr_scale or self.lr, "betas": (0.9, self.beta_scale)},
        ]
        return torch.optim.Adam([group for group in groups if group["params"]])

    def fit_options(self, data: DataSet) -> dict[str, Any]:
        """Further options of `fit`: the schedule of the learning rate."""
        return {"scheduler": partial(linear_decay, epochs=self.epochs)}

    def fit_(self, model: nn.Module, seed: int, data: DataSet, **options: Any) -> History:
        """Train a network; further options go to `fit`: callbacks, checkpoint, resume, log, progress."""
        return lb.fit(
            model,
            self.examples(data),
            optimizer=self.optimizer(model),
            batch_size=self.batch_size,
            seed=seed,
            **{"epochs": self.epochs, "progress": False, **AS_PUBLISHED, **self.fit_options(data), **options},
        )

    def train(self, seed: int, data: DataSet, **options: Any) -> nn.Module:
        """A new network, converted and trained; further options go to `fit`."""
        torch.manual_seed(seed)
        model = self.network(data)
        self.convert_(model)
        self.fit_(model, seed, data, **options)
        return model


def trained_network(jobs: Jobs, training: Training, seed: int, data: DataSet, **options: Any) -> nn.Module:
    """The network of a training: trained now, or read back if an experiment that shares the folder has trained it.

    options: of `fit`, callbacks say. With any, the network is trained anew.
    """
    return jobs.network(
        training.key(seed),
        fresh=partial(training.network, data),
        train=partial(training.train, seed, data, **options),
        label=f"  training {training.model} on {training.data}, seed {seed}",
        anew=bool(options),
    )


def network_cell(
    dataset: str,
    training: Training,
    method: str,
    setting: Any,
    measure: Callable[..., Measured],
    seeds: int = 1,
    paper: Mapping[str, float] | None = None,
    **also: Any,
) -> Cell:
    """A cell whose network is trained, or read back from another experiment, and measured.

    measure: called as ``measure(model, data, seed=seed)``. also: what else the measurements depend on.
    """

    def measured(jobs: Jobs, seed: int) -> Measured:
        data = training.load()
        return measure(trained_network(jobs, training, seed, data), data, seed=seed)

    return Cell(dataset, method, setting, {**training.key(), **also}, measured, seeds, paper or {})


def split_parameters(model: nn.Module, endings: tuple[str, ...]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """All other parameters of a model, and those whose names have one of the endings."""
    named = [p for name, p in model.named_parameters() if name.endswith(endings)]
    known = {id(p) for p in named}
    return [p for p in model.parameters() if id(p) not in known], named


def weights_in_all(model: nn.Module) -> int:
    """The weights of a plain network: those of Linear layers and convolutions, without biases."""
    return sum(p.numel() for p in model.parameters() if p.ndim > 1)


def reset_(model: nn.Module) -> nn.Module:
    """The model with all its parameters newly initialised."""
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()  # type: ignore[operator]
    return model


def shift_and_mirror(batch: list[tuple[Tensor, Tensor]], pad: int = 4) -> tuple[Tensor, Tensor]:
    """A batch of images, each shifted by up to `pad` pixels either way (zeros come in) and half of them mirrored."""
    inputs = torch.stack([image for image, _ in batch])
    height, width = inputs.shape[-2:]
    padded = F.pad(inputs, (pad, pad, pad, pad))
    moves = torch.randint(0, 2 * pad + 1, (len(batch), 2)).tolist()
    cropped = torch.stack([x[:, i : i + height, j : j + width] for x, (i, j) in zip(padded, moves, strict=True)])
    mirror = torch.rand(len(batch), 1, 1, 1) < 0.5
    return torch.where(mirror, cropped.flip(-1), cropped), torch.stack([target for _, target in batch])


def linear_decay(optimizer: Optimizer, epochs: int) -> Any:
    """A learning rate that falls by the same amount each epoch, to 0 after the last."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 - epoch / epochs)
