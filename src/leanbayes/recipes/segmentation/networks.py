"""U-Nets on images that several experts have marked: how each is trained, and how its samples compare with the experts.

All models have the same U-Net, whose outputs start at the share of each class, and see the same slices for the same
number of steps, with Adam at 5e-3 that falls linearly to 0; each step takes the mask of one expert of each image at
random. Members of the ensemble have as many steps each, and BN3 has as many for each width that it is asked at. The
rate of dropout is chosen on validation patients. BN3 is the plain U-Net for half of its steps; then `lb.Nested` orders
its channels by importance, and the other half trains the widths that are asked, the second and the full one twice as
often as the others. The channels in front of the last layer are all kept: behind a ReLU, the first ones may all vote
against the foreground, and no pixel is marked.
"ND-PUNet" is VND-PUNet with every length of the code equally often, nested dropout on the code; the tails of VND-PUNet
are learned, but for 30 % that are spread evenly, without which nothing but the full length would be trained. Patients
of the test part are in no other part. The authors train for more epochs at 1e-4 and full width, with a KL of weight 10;
here the loss is the ELBO, whose log-likelihood is the sum over pixels.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import leanbayes as lb

from ...data import DataSet, load as load_data
from ...data.dataset import Part
from ...evaluation.metrics import bootstrap
from ...evaluation.metrics.segmentation import Distances, correlation, dice, distances, variance_moments
from ...latents.config import Latents
from ...methods.nested import WEIGHTS
from ...sampling import mix
from ...training.checkpoint import remove
from ...training.history import History
from ..experiment import Cell
from ..jobs import Jobs
from ..results import Measured, Metrics
from ..training import Training, trained_network

COUNTS = (1, 4, 8, 16)  # samples, as in table 8
LAST = "up.0.3"  # of a U-Net, the convolution in front of the last layer
HARD: dict[str, Any] = {"hard": True, "final_temperature": None}  # straight-through masks


@dataclass(frozen=True)
class SegmentationTraining(Training):
    """One training run of a U-Net; see `Training` for the other fields.

    widths: of the U-Net. latents: of a probabilistic one. patients, slices: how many patients of a part, by its name,
    and of each at most how many slices, evenly spaced; all unless told. kl_weight: of random weights. plain: for how
    many of the epochs, the first ones, the network has no methods yet.
    """

    widths: tuple[int, ...] = (32, 64, 128, 192)
    latents: Latents | None = None
    patients: Mapping[str, int] = field(default_factory=dict)
    slices: Mapping[str, int] = field(default_factory=dict)
    kl_weight: float = 1.0
    plain: int = 0

    def key(self, seed: int | None = None) -> dict[str, Any]:
        """All that the trained network depends on."""
        key = {**super().key(seed), "latents": repr(self.latents)}
        return key if self.plain else {name: value for name, value in key.items() if name != "plain"}

    def load(self) -> DataSet:
        """The data of the patients of this run, the first ones of an order that is the same for all runs."""
        data = load_data(self.data)
        parts = {
            name: some(part, self.patients.get(name), self.slices.get(name))
            for name, part in data.parts.items()
            if isinstance(part, Part)
        }
        return replace(data, parts=parts)

    def network(self, data: DataSet) -> nn.Module:
        """The U-Net, or the probabilistic one, newly initialised."""
        channels, height, width = data.input_shape
        if self.latents is None:
            model: nn.Module = lb.models.unet(data.num_classes, in_channels=channels, widths=self.widths)
        else:
            shape = (channels, height, width)
            model = lb.probabilistic_unet(self.latents, shape, data.num_classes or 2, widths=self.widths)
        start_(model, data)
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def fit_(self, model: nn.Module, seed: int, data: DataSet, **options: Any) -> History:
        """Train a network; members of an ensemble that have started afresh start as the first one does."""
        start_(model, data)
        return super().fit_(model, seed, data, **options)

    def train(self, seed: int, data: DataSet, **options: Any) -> nn.Module:
        """A new network, trained: without methods first, where some epochs are plain, and with them from there on."""
        if not self.plain:
            return super().train(seed, data, **options)
        first = dict(options)
        if "checkpoint" in options:
            first["checkpoint"] = Path(options["checkpoint"]).with_suffix(".plain")
        model = replace(self, methods={}, plain=0).train(seed, data, **first, epochs=self.plain)
        self.convert_(model)
        rest = self.epochs - self.plain
        super().fit_(model, seed, data, **options, epochs=rest, scheduler=partial(rest_of_decay, training=self))
        if "checkpoint" in options:
            remove(first["checkpoint"])
        return model

    def fit_options(self, data: DataSet) -> dict[str, Any]:
        """The task, and the weight of the KL."""
        return {**super().fit_options(data), "task": "segmentation", "kl_weight": self.kl_weight}


def rest_of_decay(optimizer: Optimizer, training: SegmentationTraining) -> Any:
    """A learning rate that goes on falling where the plain epochs left it, to 0 after the last epoch."""
    whole, begun = training.epochs, training.plain
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 - (begun + epoch) / whole)


def start_(model: nn.Module, data: DataSet) -> None:
    """Let the last convolution, of every member of an ensemble, start at the share of each class in the masks.

    From equal shares, short runs spend most of their steps on the background, and no pixel gets beyond one half.
    """
    masks, classes = data.train.tensors[1], data.num_classes
    share = torch.stack([(masks == label).float().mean() for label in range(classes or 2)]).clamp(1e-3)
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.out_channels == classes and isinstance(module.bias, Tensor):
            module.bias.data.copy_(share.log())


def some(part: Part, patients: int | None, slices: int | None) -> Part:
    """A part with so many patients, and so many slices of each, evenly spaced.

    >>> whole = Part(torch.arange(10), groups=torch.tensor([7] * 6 + [9] * 4))
    >>> some(whole, None, 3).tensors[0].tolist()
    [0, 2, 4, 6, 7, 8]
    """
    assert part.groups is not None
    known = part.groups.unique()
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(0))[:patients]
    taken = []
    for patient in known[order].sort().values:
        own = (part.groups == patient).nonzero().flatten()
        count = min(slices or len(own), len(own))
        taken.append(own[torch.arange(count) * len(own) // count])
    return part.take(torch.cat(taken))


@dataclass(frozen=True)
class Setup:
    """A data set, and how its networks are trained and asked.

    training: of a U-Net. groups, base_groups: of BN3. widths: at which it is asked. size: of a latent code. lengths: at
    which an ordered one is asked. members: of the ensemble. rates: of dropout, among which each seed takes the one that
    does best on validation patients, as many as are tested. clean: images that BatchNorm's statistics are collected
    from at a width. replicates: of the bootstrap over patients.
    """

    training: SegmentationTraining
    groups: int = 32
    base_groups: int = 6
    widths: tuple[float, ...] = (6 / 32, 0.46, 0.8, 1.0)
    size: int = 6
    lengths: tuple[int, ...] = (2, 6)
    members: int = 4
    rates: tuple[float, ...] = (0.1, 0.3, 0.5)
    clean: int = 512
    replicates: int = 500
    seeds: int = 2

    def trainings(self) -> dict[str, SegmentationTraining]:
        """The training of every row, or group of rows."""
        base = self.training
        # Half of the time one group more: layers of fewer channels are rounded up when they are asked.
        shares = [0.0] * (self.groups - self.base_groups + 1)
        for width in self.widths:
            kept = math.ceil(width * self.groups) - self.base_groups
            for place in (kept, min(kept + 1, len(shares) - 1)):
                shares[place] += 1.0 if width in (self.widths[1], self.widths[-1]) else 0.5
        weights = replace(WEIGHTS, log_alpha=-3.0)  # as in the other short runs of BN3
        nested = lb.Nested(
            groups=self.groups,
            base_groups=self.base_groups,
            tails="categorical",
            probabilities=tuple(shares),
            weights=weights,
        )
        epochs = len(self.widths) * base.epochs
        ensemble = lb.Ensemble(members=self.members, init="fresh")
        return {
            "VND-PUNet": replace(base, latents=lb.OrderedLatents(self.size, floor=0.3, whole=0.0, **HARD)),
            "ND-PUNet": replace(base, latents=lb.OrderedLatents(self.size, "uniform", floor=0.0, **HARD)),
            "P-UNet": replace(base, latents=lb.GaussianLatents(self.size)),
            "D-UNet": self.dropout(self.rates[0]),
            "BN3": replace(base, methods={LAST: weights, "*": nested}, kl_weight=0.1, epochs=epochs, plain=epochs // 2),
            "E-UNet": replace(base, methods={"*": ensemble}, epochs=self.members * base.epochs),
        }

    def dropout(self, rate: float) -> SegmentationTraining:
        """The training of a U-Net with dropout in its coarser half."""
        deep = range(len(self.training.widths) // 2, len(self.training.widths))
        places = [*(f"down.{at}.*" for at in deep), *(f"up.{at}.*" for at in deep[:-1])]
        return replace(self.training, methods={**dict.fromkeys(places, lb.Dropout(rate)), "*": None})


def measured(setup: Setup, method: str, jobs: Jobs, seed: int) -> Measured:
    """What the experts' masks and those of 1 to 16 samples have in common; rows for widths and lengths as well."""
    training = setup.trainings()[method]
    data = training.load()
    tried: Metrics = {}
    if method == "D-UNet":
        training, tried = tuned(setup, jobs, seed, data)
    model = trained_network(jobs, training, seed, data)
    rows = []
    for name, asked in variants(setup, method, model, data):
        rows += [{"method": name, **row} for row in compared(setup, asked, data, seed, method == "E-UNet")]
    rows[-1] |= tried
    return {"rows": rows}


def tuned(setup: Setup, jobs: Jobs, seed: int, data: DataSet) -> tuple[SegmentationTraining, Metrics]:
    """The dropout U-Net at the rate with the least distance on validation patients, and the distance at every rate."""
    base, found = setup.training, dict[float, float]()
    assert isinstance(data.val, Part)
    held_out = replace(data, parts={"test": some(data.val, base.patients.get("test"), base.slices.get("test"))})
    for rate in setup.rates:
        model = trained_network(jobs, setup.dropout(rate), seed, data)
        found[rate] = compared(setup, model, held_out, seed, False)[-1]["GED, unbiased"]
    chosen = min(setup.rates, key=found.__getitem__)
    tried = {f"GED, unbiased, validation, rate {rate}": value for rate, value in found.items()}
    return setup.dropout(chosen), {"rate": chosen, **tried}


def variants(setup: Setup, method: str, model: nn.Module, data: DataSet) -> Iterator[tuple[str, nn.Module]]:
    """A model at each of its widths or lengths, with the name of its rows."""
    if method == "BN3":
        for width in setup.widths:
            found = copy.deepcopy(model)
            lb.set_width_(found, width)
            yield f"{width:.0%}-BN3", lb.recalibrate_(found, data.train, data=setup.clean)
    elif method in ("VND-PUNet", "ND-PUNet"):
        for length in setup.lengths:
            lb.set_length_(model, length)
            yield f"{length / setup.size:.0%}-{method}", model
    else:
        yield method, model


def compared(setup: Setup, model: nn.Module, data: DataSet, seed: int, all_said: bool) -> list[dict[str, Any]]:
    """A row for every number of samples; all_said: the samples are all that the model can say, as of an ensemble."""
    assert isinstance(data.test, Part)
    assert data.test.groups is not None
    found: list[Distances] = []
    quality, moments, order = [], [], []
    # `predict` shares its draws over all images that it is given: with new ones for each patient, intervals over
    # patients cover the chance of the draws.
    for patient in data.test.groups.unique():
        rows_of = (data.test.groups == patient).nonzero().flatten()
        images, masks = (tensor[rows_of] for tensor in data.test.tensors)
        pred = lb.predict(model, images, samples=max(COUNTS), seed=mix(seed, int(patient)), keep_samples=True)
        probs = pred.samples[:, :, 1].transpose(0, 1)
        found.append(distances(probs > 0.5, masks))
        moments.append(variance_moments((probs > 0.5).float(), masks))
        quality.append(dice(pred.labels, masks))
        order.append(rows_of)
    groups = data.test.groups[torch.cat(order)]
    every = Distances(*(torch.cat(each) for each in zip(*found, strict=True)))
    rows: list[dict[str, Any]] = []
    drawn = every.between.shape[1]
    for count in sorted({min(count, drawn) for count in COUNTS}):
        between, own = every.between[:, :count], every.within_samples[:, :count, :count]
        part = Distances(between, own, every.within_annotations)
        row: Metrics = {"GED": float(part.ged().mean())}
        if count == drawn:
            unbiased = part.ged(unbiased=True, exhaustive=all_said)
            together = torch.cat([torch.from_numpy(each) for each in moments]).sum(0).numpy()
            row |= {"GED, unbiased": float(unbiased.mean()), **interval(unbiased, groups, setup.replicates)}
            row |= {"Dice of the mean": float(torch.cat(quality).mean())}
            row |= {"correlation of variances": float(correlation(together))}
        rows.append({"setting": max(COUNTS) if count == drawn else count, **row})
    return rows


def interval(values: Tensor, groups: Tensor, replicates: int) -> Metrics:
    """The central 95 % of the mean when patients are drawn anew."""
    where = groups.unique(return_inverse=True)[1]
    means = bootstrap.replicates({"value": values, "datum": where}, replicates=replicates)["value"]
    low, high = torch.tensor(means).quantile(torch.tensor([0.025, 0.975])).tolist()
    return {"GED, unbiased, low": low, "GED, unbiased, high": high}


def cells(setup: Setup, paper: Mapping[str, Mapping[Any, float]]) -> Iterator[Cell]:
    """A cell for every network that is trained; the setting is the number of samples."""
    asked = {name: str(value) for name, value in vars(setup).items() if name not in ("training", "seeds", "rates")}
    for method, training in setup.trainings().items():
        key = {**training.key(), "asked": asked, "draws": "new for each patient"}
        if method == "D-UNet":
            key["rates"] = setup.rates
        measure = partial(measured, setup, method)
        label = f"{method} on {training.data}"
        printed = partial(_printed, paper if training.data == "lidc" else {})
        yield Cell(training.data, method, max(COUNTS), key, measure, setup.seeds, printed, label)


def _printed(paper: Mapping[str, Mapping[Any, float]], method: str, samples: Any) -> Mapping[str, float]:
    value = paper.get(method, {}).get(samples)
    return {} if value is None else {"GED": value}
