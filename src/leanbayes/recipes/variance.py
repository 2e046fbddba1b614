"""What the recipes of variance networks share: how a network is trained, and what is measured of it.

Loss, optimiser and batches are the paper's: N * cross-entropy + KL without warm-up, Adam at 1e-3 that falls linearly to
0, batches of 200, noise on the outputs of every layer in training. Where the schedule is shorter than the paper's 200
epochs, log alpha has a learning rate of its own. Evaluation is with BatchNorm in evaluation mode, and an ensemble
consists of whole networks: one draw of all weights for all test images.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..methods import Method, Variance
from .base import Jobs, Metrics

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from ..data import DataSet
    from ..train.history import History

ROWS = 1000  # of test images at once: the noise of a sample is drawn anew for every block of them


@dataclass(frozen=True)
class Run:
    """One training run: what on what, and for how long.

    model: a name of `leanbayes.models`, with its options. methods: by name or glob of a layer. limit, test_limit: the
    most training and test images. augment: shifts of up to 4 pixels and mirror images.
    lr_scale: of log alpha and of sigma, at the start; None is lr. beta_scale: Adam's beta2 for them. The KL's slope
    falls by orders of magnitude as alpha grows, and a long memory of steep slopes slows it down: at a rate of 0.01
    twelve epochs take log alpha from -5 to 3.5 with beta2 = 0.999, and past 5 with 0.99.
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


def trained(run: Run, seed: int, **options: Any) -> tuple[nn.Module, DataSet, History]:
    """A network trained as a run says; further options go to `fit`: callbacks, checkpoint, resume, log, progress."""
    import torch

    import leanbayes as lb

    data = load(run)
    torch.manual_seed(seed)
    model = network(run, data)
    if run.methods:
        rules: Any = dict(run.methods)
        lb.bayesianize_(model, rules)
    history = lb.fit(
        model,
        training_data(run, data),
        epochs=run.epochs,
        optimizer=optimizer(model, run),
        scheduler=partial(linear_decay, epochs=run.epochs),
        batch_size=run.batch_size,
        seed=seed,
        **{"progress": False, **options},
    )
    return model, data, history


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

    Channels last: on a CPU a training step of LeNet-5 takes little more than half the time that way.
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


def accuracy(model: nn.Module, data: DataSet, **options: Any) -> float:
    """Of the test part; the options are those of `predict`."""
    from ..errors import LeanBayesWarning
    from ..predict import predict

    inputs, targets = data.test.tensors
    with warnings.catch_warnings():
        # that the means of a layer past its phase transition are asked is the experiment
        warnings.simplefilter("ignore", LeanBayesWarning)
        pairs = ROWS * options.get("samples", 1)
        prediction = predict(model, inputs, **{"task": "classification", "chunk": pairs, **options})
    return float((prediction.probs.argmax(-1) == targets).double().mean())


def procedures(model: nn.Module, data: DataSet, samples: int, seed: int) -> Metrics:
    """Accuracy of the paper's three procedures: one sample, the means, an ensemble."""
    found = {"stochastic": accuracy(model, data, samples=1, seed=seed)}
    if has_means(model):
        found["deterministic"] = accuracy(model, data, mean_only=True)
    return {**found, "ensemble": accuracy(model, data, samples=samples, seed=seed)}


def swapped_accuracy(model: nn.Module, data: DataSet, samples: int, seed: int) -> Metrics:
    """Ensemble accuracy once the means of all variance layers are set to 0 (equation 11)."""
    from ..compress.zero_means import zero_means_

    swapped = copy.deepcopy(model)
    zero_means_(swapped)
    return {"zero-mean swap": accuracy(swapped, data, samples=samples, seed=seed)}


def recalibrated_accuracy(model: nn.Module, data: DataSet, images: int = 10_000) -> Metrics:
    """Accuracy at the means once BatchNorm's statistics have been re-estimated there."""
    from ..train.recalibrate import recalibrate_

    again = recalibrate_(copy.deepcopy(model), data.train, at="means", data=images)
    return {"deterministic, recalibrated": accuracy(again, data, mean_only=True)}


def has_means(model: nn.Module) -> bool:
    """Whether there is a network at the means."""
    from ..sampling import sites

    return all(getattr(site, "has_mean", True) for site in sites(model).values())


def log_alphas(model: nn.Module) -> Metrics:
    """The median log alpha of every layer under `Variance` that has means."""
    return {f"log alpha {name}": float(values.median()) for name, values in _log_alphas(model).items()}


def shares_below(model: nn.Module, threshold: float = 0.0) -> Metrics:
    """The share of each such layer's weights whose log alpha is stuck below a threshold."""
    return {f"stuck {name}": float((values < threshold).double().mean()) for name, values in _log_alphas(model).items()}


def _log_alphas(model: nn.Module) -> dict[str, Tensor]:
    from ..convert.record import conversions

    found = {}
    for name, method in conversions(model).items():
        if isinstance(method, Variance) and method.parameterisation != "zero":
            q: Any = model.get_submodule(name).posteriors["weight"]  # type: ignore[union-attr, index]
            found[name] = -2 * q.snr().detach().log()
    return found


def elbo(model: nn.Module, data: DataSet, seed: int) -> Metrics:
    """The variational lower bound of the training set in nats: its log-likelihood under one draw for every image, as in
    training but with BatchNorm in evaluation mode, less the KL.
    """
    import torch
    import torch.nn.functional as F

    from ..kl import kl_sum
    from ..sampling import mix
    from ..undisturbed import undisturbed

    inputs, targets = data.train.tensors
    total = 0.0
    with undisturbed(model):
        torch.manual_seed(mix(seed, 1))
        for x, y in zip(inputs.split(ROWS), targets.split(ROWS), strict=True):
            total -= float(F.cross_entropy(model(x), y, reduction="sum"))
        kl = float(kl_sum(model))
    return {"ELBO": total - kl, "KL": kl}


def done(jobs: Jobs, run: Run, seed: int, what: str, measure: Any, **also: Any) -> Metrics:
    """The metrics of one run: trained and measured now, or read back; `also` is what else they depend on."""

    def work() -> Metrics:
        model, data, _ = trained(run, seed)
        return dict(measure(model, data))

    return jobs({**run.key(seed), "measured": what, **also}, work, label=f"{what} on {run.data}, seed {seed}")
