"""What the experiments of latent codes share: data, models, how they are trained, and what is measured at a length.

All models have the same encoder and decoder and see the same images for the same number of steps, with Adam at 2e-3
that falls linearly to 0. Grey images have a Bernoulli likelihood, colour images a discretised logistic one. The authors
minimise the squared error plus 2.5e-4 times the KL, which is the ELBO of no stated noise; here everything is the ELBO
in nats (a beta-VAE: with its weight).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import leanbayes as lb

from ...data import DataSet, load as load_data
from ...evaluation.generation import at_length, bounds
from ...latents.autoencoder import Autoencoder
from ...latents.backbones import Backbone
from ...latents.code import GaussianCode, gaussian_kl
from ...latents.config import Latents
from ...latents.ordered import OrderedCode
from ..experiment import Cell
from ..jobs import Jobs
from ..results import Measured
from ..training import Training, trained_network

EXTRACTOR = "LeNet-5 on the same data"
STRAIGHT = "VND-AE, straight-through"  # as the authors train it, but with the logarithms of the tails


@dataclass(frozen=True)
class LatentTraining(Training):
    """One training run of an autoencoder; see `Training` for the other fields.

    latents: the code. backbone, width: encoder and decoder. latent_weight: of the KL of each datum.
    """

    latents: Latents = field(default_factory=lb.OrderedLatents)
    backbone: Backbone = "small"
    width: int = 32
    latent_weight: float = 1.0

    def key(self, seed: int | None = None) -> dict[str, Any]:
        """All that the trained network depends on."""
        return {**super().key(seed), "latents": repr(self.latents)}

    def load(self) -> DataSet:
        """The data up to the limits, with pixels in [0, 1]."""
        return pixels(self)

    def network(self, data: DataSet) -> nn.Module:
        """The autoencoder, newly initialised."""
        channels, height, width = data.input_shape
        return lb.image_autoencoder(self.latents, (channels, height, width), self.backbone, self.width)

    def fit_options(self, data: DataSet) -> dict[str, Any]:
        """The likelihood of the pixels, and the weight of the KL."""
        return {**super().fit_options(data), "task": task_of(data), "latent_weight": self.latent_weight}


@dataclass(frozen=True)
class PixelTraining(Training):
    """A classifier of images with pixels in [0, 1]: the extractor of features."""

    def load(self) -> DataSet:
        """The data up to the limits, with pixels in [0, 1]."""
        return pixels(self)


def pixels(training: Training) -> DataSet:
    """The data of a training with pixels in [0, 1]."""
    data = load_data(training.data, val_fraction=0, normalise=False)
    limits = {"train": training.limit, "test": training.test_limit}
    parts = {name: TensorDataset(*(t[: limits.get(name)] for t in part.tensors)) for name, part in data.parts.items()}
    return replace(data, parts=parts)


def task_of(data: DataSet) -> str:
    """The likelihood of the pixels: Bernoulli for grey images."""
    return "bernoulli" if data.input_shape[0] == 1 else "discretized-logistic"


@dataclass(frozen=True)
class Setup:
    """A data set, and how its autoencoders are trained and asked.

    training: of a model; the code is put in. size: of the whole code. methods: which rows there are; None for all.
    quarters: parts of the code for which VAEs of their own are trained. seeds: how many.
    extractor: the classifier whose features images are compared in. generated: how many images.
    importance: draws for the importance-weighted bound, of ``bound_data`` test images.
    """

    training: LatentTraining
    extractor: PixelTraining
    size: int = 32
    methods: tuple[str, ...] | None = None
    quarters: tuple[int, ...] = (1, 2, 3)
    seeds: int = 2
    generated: int = 2000
    importance: int = 16
    bound_data: int = 1000

    @property
    def extractor_name(self) -> str:
        """What features are called by."""
        return EXTRACTOR if self.extractor.model == "lenet5" else f"{self.extractor.model} on the same data"

    def at(self, quarter: int) -> int:
        """The length of a quarter of the code, two or more."""
        return -(-self.size * quarter // 4)

    def trainings(self) -> dict[tuple[str, int], LatentTraining]:
        """Every training by (method, quarters of the code)."""
        size, base = self.size, self.training
        found = {
            ("VAE", 4): replace(base, latents=lb.GaussianLatents(size)),
            ("nested dropout", 4): replace(base, latents=lb.OrderedLatents(size, tails="uniform")),
            ("VND-AE", 4): replace(base, latents=lb.OrderedLatents(size)),
            (STRAIGHT, 4): replace(base, latents=lb.OrderedLatents(size, floor=0.0, hard=True, final_temperature=None)),
            ("beta-VAE (4)", 4): replace(base, latents=lb.GaussianLatents(size), latent_weight=4.0),
            ("Joint-VAE", 4): replace(base, latents=lb.JointLatents(size - 10, (10,))),
            ("SWAE", 4): replace(base, latents=lb.PointLatents(size)),
        }
        for quarter in self.quarters:
            found["VAE", quarter] = replace(base, latents=lb.GaussianLatents(self.at(quarter)))
        return {key: each for key, each in found.items() if self.methods is None or key[0] in self.methods}

    def model(self, jobs: Jobs, method: str, seed: int, quarter: int = 4) -> tuple[Autoencoder, DataSet]:
        """A trained model and its data."""
        training = self.trainings()[method, quarter]
        data = training.load()
        model = trained_network(jobs, training, seed, data)
        assert isinstance(model, Autoencoder)
        return model, data

    def features(self, jobs: Jobs) -> nn.Module:
        """The classifier without its last layer; the same for all seeds."""
        data = self.extractor.load()
        network = trained_network(jobs, self.extractor, 0, data)
        return nn.Sequential(*list(network.children())[:-1])


def measured(setup: Setup, method: str, quarter: int, jobs: Jobs, seed: int) -> Measured:
    """Bounds, reconstruction errors and distances of generated images; a row for every quarter of an ordered code."""
    model, data = setup.model(jobs, method, seed, quarter)
    images = data.test.tensors[0]
    extractor = setup.features(jobs)
    part = quarter / 4
    rows = [{"method": method, "setting": part, **row} for row in asked(setup, model, images, extractor, seed)]
    if len(rows) > 1:
        for number, row in enumerate(rows, 1):
            row["setting"] = number / 4
    if method == "VAE" and quarter == 4:
        for name, cut in (("VAE, cut", model), ("VAE, cut by KL", by_kl(model, data.train.tensors[0][:2000]))):
            ordered = as_ordered(cut)
            for number, row in enumerate(asked(setup, ordered, images, extractor, seed)[:3], 1):
                rows.append({"method": name, "setting": number / 4, **row})
    found: dict[str, Any] = {"rows": rows}
    if isinstance(model.code, OrderedCode) and model.code.tail is not None:
        lengths = model.lengths(images).tolist()
        found["lengths"] = [{"length": k, "share": lengths.count(k) / len(lengths)} for k in range(1, setup.size + 1)]
    return found


def asked(setup: Setup, model: Autoencoder, images: Tensor, extractor: nn.Module, seed: int) -> list[dict[str, Any]]:
    """The metrics of a model at a quarter, a half, three quarters and all of its code; without order: at all of it."""
    result = lb.evaluate_generation(
        model,
        images,
        generated=min(setup.generated, len(images)),
        extractor=extractor,
        extractor_name=setup.extractor_name,
        seed=seed,
    )
    rows = []
    for row in result.rows:
        found = {name: value for name, value in row.items() if name != "length"}
        if model.code.has_density:
            with at_length(model, int(row["length"])):
                part = images[: setup.bound_data]
                deep = bounds(model, model.likelihood(), part, 4, setup.importance, seed)
            found |= {"bound": deep["bound"], "elbo of the same": deep["elbo"]}
        rows.append(found)
    return rows


def as_ordered(model: Autoencoder) -> Autoencoder:
    """A VAE whose code can be cut: the first latents are kept, the others zero."""
    assert isinstance(model.code, GaussianCode)
    copied = copy.deepcopy(model)
    head: Any = copied.code.head
    code = OrderedCode(head.mean.in_features, lb.OrderedLatents(model.code.size, tails="uniform"))
    code.head = head
    copied.code = code.eval()
    return copied


def by_kl(model: Autoencoder, images: Tensor) -> Autoencoder:
    """The same VAE with its latents in the order of their average KL, the largest first."""
    assert isinstance(model.code, GaussianCode)
    sorted_ = copy.deepcopy(model).eval()
    head: Any = sorted_.code.head
    with torch.no_grad():
        order = gaussian_kl(*head(sorted_.features(images))).mean(0).argsort(descending=True)
        for layer in (head.mean, head.rho):
            layer.weight.copy_(layer.weight[order].clone())
            layer.bias.copy_(layer.bias[order].clone())
        first: Any = sorted_.decoder[0]  # type: ignore[index]
        first.weight.copy_(first.weight[:, order].clone())
    return sorted_


def cells(setups: tuple[Setup, ...], paper: Mapping[Any, Mapping[str, float]]) -> Iterator[Cell]:
    """A cell for every model that is trained; the setting is the part of the code."""
    for setup in setups:
        for (method, quarter), training in setup.trainings().items():
            part = "" if quarter == 4 else f" with {25 * quarter} % of the latents"
            key = {
                **training.key(),
                "asked": [setup.generated, setup.importance, setup.bound_data, setup.extractor_name],
            }
            yield Cell(
                training.data,
                method,
                quarter / 4,
                key,
                partial(measured, setup, method, quarter),
                setup.seeds,
                paper=partial(_printed, paper, training.data),
                label=f"{method}{part} on {training.data}",
            )


def _printed(paper: Mapping[Any, Mapping[str, float]], data: str, method: str, part: Any) -> Mapping[str, float]:
    return paper.get((data, method, part), {})


def _setup(data: str, size: int, limit: int, epochs: int, test: int | None = None, **options: Any) -> Setup:
    shared: dict[str, Any] = {"limit": limit, "test_limit": test}
    training = LatentTraining(data, "autoencoder", epochs=epochs, lr=2e-3, batch_size=32, width=16, **shared)
    extractor = PixelTraining(data, "lenet5", epochs=5, batch_size=100, **{**shared, "limit": 5000})
    return Setup(training, extractor, size, **{"generated": 1000, "bound_data": 300, **options})


_TWO = ("VAE", "VND-AE")
_RIVALS = (*_TWO, "nested dropout", "beta-VAE (4)", "Joint-VAE", "SWAE")
SETUPS: dict[str, tuple[Setup, ...]] = {
    "smoke": (
        Setup(
            LatentTraining("digits", "autoencoder", epochs=1, batch_size=64, limit=256, test_limit=64, width=4),
            PixelTraining("digits", "convnet", epochs=1, limit=256, test_limit=64),
            12,
            ("VAE", "nested dropout", "VND-AE", "Joint-VAE", "SWAE"),
            seeds=1,
            generated=64,
            importance=2,
            bound_data=32,
        ),
    ),
    "cpu": (
        _setup("mnist", 32, 10_000, 6, 2000),
        _setup("cifar10", 64, 5000, 6, 1000, methods=_RIVALS),
        _setup("fashion-mnist", 32, 10_000, 6, 2000, methods=_TWO, quarters=()),
        _setup("pneumoniamnist", 32, 5000, 12, 600, methods=_TWO, quarters=(), generated=600),
    ),
    "paper": (
        Setup(
            LatentTraining("cifar10", "autoencoder", epochs=100, batch_size=64, lr=5e-3, backbone="paper"),
            PixelTraining("cifar10", "lenet5", epochs=20, batch_size=100),
            128,
            seeds=3,
            generated=10_000,
        ),
        Setup(
            LatentTraining("cifar100", "autoencoder", epochs=100, batch_size=64, lr=5e-3, backbone="paper"),
            PixelTraining("cifar100", "lenet5", epochs=20, batch_size=100),
            128,
            seeds=3,
            generated=10_000,
        ),
    ),
}
