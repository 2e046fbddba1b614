"""What a recipe's training run is: which network on which data, for how long, and how its batches are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..methods import Method

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from ..data import DataSet

ROWS = 1000  # of test images at once: the noise of a sample is drawn anew for every block of them


@dataclass(frozen=True)
class Run:
    """One training run: what on what, and for how long.

    model: a name of `leanbayes.models`, with its options. methods: by name or glob of a layer. limit, test_limit: the
    most training and test images. augment: shifts of up to 4 pixels and mirror images.
    lr_scale: of log alpha and of sigma, at the start; None is lr. beta_scale: Adam's beta2 for them. The KL's slope
    falls by orders of magnitude as alpha grows, and a long memory of steep slopes slows it down.
    """

    data: str
    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    methods: Mapping[str, Method] = field(default_factory=dict)
    epochs: int = 200
    lr: float = 1e-3
    lr_scale: float | None = None
    beta_scale: float = 0.999
    batch_size: int = 200
    limit: int | None = None
    test_limit: int | None = None
    augment: bool = False

    def key(self, seed: int) -> dict[str, Any]:
        """All that the metrics depend on, for `Jobs`."""
        return {**asdict(self), "methods": {k: repr(m) for k, m in self.methods.items()}, "seed": seed}


def load(run: Run) -> DataSet:
    """The data, up to the run's limits; no training data are held out, since nothing is chosen by them."""
    from torch.utils.data import TensorDataset

    from ..data import load as load_data

    data = load_data(run.data, val_fraction=0)
    limits = {"train": run.limit, "test": run.test_limit}
    parts = {name: TensorDataset(*(t[: limits[name]] for t in part.tensors)) for name, part in data.parts.items()}
    return replace(data, parts=parts)


def network(run: Run, data: DataSet) -> nn.Module:
    """The network of a run, for the shapes of its data, newly initialised.

    Channels last: on a CPU a training step of LeNet-5 takes seven to nine tenths of the time that way.
    """
    import torch

    from ..models import build
    from ..models.auto import fitting

    chosen = fitting(run.model, data)
    model = build(chosen["name"], **{**chosen["options"], **run.options})
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def training_data(run: Run, data: DataSet) -> Any:
    """What `fit` reads: tensors, whose batches are taken by one indexing each, or a loader that shifts and mirrors."""
    from torch.utils.data import DataLoader

    if not run.augment:
        return data.train
    return DataLoader(data.train, run.batch_size, shuffle=True, collate_fn=shifted_and_mirrored)


def shifted_and_mirrored(batch: list[tuple[Tensor, Tensor]], pad: int = 4) -> tuple[Tensor, Tensor]:
    """A batch of images, each shifted by up to `pad` pixels either way (zeros come in) and half of them mirrored."""
    import torch
    import torch.nn.functional as F

    inputs = torch.stack([image for image, _ in batch])
    height, width = inputs.shape[-2:]
    padded = F.pad(inputs, (pad, pad, pad, pad))
    moves = torch.randint(0, 2 * pad + 1, (len(batch), 2)).tolist()
    cropped = torch.stack([x[:, i : i + height, j : j + width] for x, (i, j) in zip(padded, moves, strict=True)])
    mirror = torch.rand(len(batch), 1, 1, 1) < 0.5
    return torch.where(mirror, cropped.flip(-1), cropped), torch.stack([target for _, target in batch])


def optimizer(model: nn.Module, run: Run) -> Optimizer:
    """Adam, with a learning rate of their own for the parameters that set the noise."""
    import torch

    scales = [p for name, p in model.named_parameters() if name.endswith((".log_alpha", ".rho"))]
    known = {id(p) for p in scales}
    others = [p for p in model.parameters() if id(p) not in known]
    groups: list[dict[str, Any]] = [
        {"params": others, "lr": run.lr},
        {"params": scales, "lr": run.lr_scale or run.lr, "betas": (0.9, run.beta_scale)},
    ]
    return torch.optim.Adam([group for group in groups if group["params"]])


def linear_decay(optimizer: Optimizer, epochs: int) -> Any:
    """A learning rate that falls by the same amount each epoch, to 0 after the last."""
    import torch

    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 - epoch / epochs)
