"""What the experiments of ensemble model patching on images share: networks, their training, and metrics.

As published: Adam at its default settings without a schedule, an L2 penalty of 0.001 / batch size on everything
(appendix C.1), K = 5 components, the network at the end of training. Components of the output start afresh. Dropout
acts on the channels into every convolution but the first, and on the inputs of the output (the paper's acts in front
of every BatchNorm, at a rate of 0.005 that it calls "probably not optimal").

How strong the noise is decides over everything here: the rate of dropout, and how far apart the components of norm
layers start (the paper does not say). Each method gets the candidate with the lowest loss on validation data, a tenth
of the training images that no method is trained on.

Beside the paper's baselines stand a vanilla network that is regularised as one would today (shifts and mirror images,
decoupled weight decay chosen likewise, a falling learning rate, the epoch with the lowest validation loss), and the
mean prediction of the vanilla networks of three seeds.

A network is trained once for all of these experiments (`trained_network`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import TensorDataset

import leanbayes as lb

from ...data import DataSet
from ...evaluation.metrics import brier, calibration, classification
from ...methods.patch import norms, norms_and_output
from ..experiment import Cell
from ..jobs import Jobs
from ..results import Measured, Metrics
from ..training import Training, trained_network

REGULARISED, ENSEMBLE = "vanilla, regularised", "deep ensemble of 3"
BASELINES = ("vanilla", REGULARISED, ENSEMBLE, "dropout")
METHODS = (*BASELINES, "EMP (BN)", "EMP (BN+out)", "ECMP (BN)", "ECMP (BN+out)")
MEMBERS = 3
BINS: dict[str, Any] = {"bins": 20, "min_count": 6}  # appendix D.2


@dataclass(frozen=True)
class PatchTraining(Training):
    """One training run; see `Training` for the other fields.

    method: one of METHODS. rate: of dropout, the perturbation of patches, or the weight decay of the regularised
    network. limit: training images, of which a tenth become validation data. penalty: the L2 penalty, times the batch
    size.
    """

    method: str = "vanilla"
    rate: float = 0.0
    components: int = 5
    penalty: float = 0.001

    def load(self) -> DataSet:
        """The data up to the limits; the last tenth of the training images are for validation."""
        whole = super().load()
        tensors = whole.train.tensors
        count = len(tensors[0]) - len(tensors[0]) // 10
        train, val = (TensorDataset(*(t[part] for t in tensors)) for part in (slice(count), slice(count, None)))
        return replace(whole, parts={"train": train, "val": val, "test": whole.test})

    def convert_(self, model: nn.Module) -> None:
        """Give a new network the method; vanilla networks stay as they are."""
        if self.method == "dropout":
            lb.bayesianize_(model, lb.Dropout(self.rate))
        elif self.method not in BASELINES:
            cross = self.method.startswith("ECMP")
            patch = lb.Patch(self.components, cross=cross, prior=None, init="fresh", perturbation=self.rate)
            both = self.method.endswith("(BN+out)")
            lb.bayesianize_(model, norms_and_output(model, patch) if both else norms(patch))

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Adam with the L2 penalty; for the regularised network with decoupled weight decay instead."""
        if self.method == REGULARISED:
            return torch.optim.AdamW(model.parameters(), lr=self.lr, weight_decay=self.rate)
        decay = 2 * self.penalty / self.batch_size  # the slope of lambda |w|^2
        return torch.optim.Adam(model.parameters(), lr=self.lr, weight_decay=decay)

    def fit_options(self, data: DataSet) -> dict[str, Any]:
        """No schedule: the learning rate is constant. The regularised network has one, and keeps its best epoch."""
        if self.method != REGULARISED:
            return {"task": "classification"}
        best = lb.EarlyStopping(patience=self.epochs, restore_best=True)
        return {**super().fit_options(data), "task": "classification", "val": data.val, "early_stopping": best}


@dataclass(frozen=True)
class PatchSetup:
    """A network on its data. seeds: how many. samples: networks drawn to predict.

    rates, perturbations, decays: the candidates for dropout, for patches and for the regularised network. published:
    the network of the paper whose figures stand beside, by its name in paper.toml.
    """

    training: PatchTraining
    seeds: int = 3
    samples: int = 50
    rates: tuple[float, ...] = (0.02, 0.05, 0.1)
    perturbations: tuple[float, ...] = (0.1, 0.3, 0.5)
    decays: tuple[float, ...] = (0.05, 0.5)
    methods: tuple[str, ...] = METHODS
    published: str = ""

    @property
    def label(self) -> str:
        """What a table calls it."""
        return f"{self.training.data}, {self.training.model}"

    def cell(
        self,
        method: str,
        setting: Any,
        what: str,
        measure: Callable[..., Measured],
        name: str = "",
        paper: Any = None,
        **also: Any,
    ) -> Cell:
        """The network of a method, whose rate is chosen, measured by ``measure(model, training, data, seed)``.

        what: the name of the measurement. name: of the row, if not the method's. also: what else it depends on.
        """

        def measured(jobs: Jobs, seed: int) -> Measured:
            data = self.training.load()
            return measure(*chosen(jobs, self, method, seed, data), data, seed)

        seeds = 1 if method == ENSEMBLE else self.seeds  # its members are the networks of several
        return Cell(self.label, name or method, setting, key(self, method, what, **also), measured, seeds, paper or {})

    def of(self, method: str) -> PatchTraining:
        """The training of a method, which has yet to get its rate."""
        return replace(self.training, method=method, augment=self.training.augment or method == REGULARISED)

    def candidates(self, method: str) -> tuple[float, ...]:
        """The rates that a method chooses from; none for the vanilla network and the ensemble of such."""
        own = {"vanilla": (), ENSEMBLE: (), "dropout": self.rates, REGULARISED: self.decays}
        return own.get(method, self.perturbations)


def digits(**changes: Any) -> PatchSetup:
    """A perceptron on the embedded digits, for the smoke presets."""
    options = {"hidden": (32,), "batch_norm": True}
    training = PatchTraining("digits", "mlp", options, epochs=2, lr=0.02, batch_size=50, limit=600, test_limit=150)
    one = PatchSetup(training, seeds=1, samples=5, rates=(0.1,), perturbations=(0.1,), decays=(0.1,))
    return replace(one, **changes)


def resnet(**changes: Any) -> PatchSetup:
    """ResNet-18 at a quarter of its width behind a 3x3 stem of stride 2, on 10,000 images of CIFAR-10, not augmented.

    After 20 epochs on its 9,000 training images the vanilla network is overconfident by far.
    """
    options = {"width": 16, "stem_stride": 2}
    training = PatchTraining(
        "cifar10", "resnet18_cifar", options, epochs=20, batch_size=128, limit=10_000, test_limit=5000
    )
    return replace(PatchSetup(training, published="resnet18"), **changes)


def pyramid(**changes: Any) -> PatchSetup:
    """A small PyramidNet on 2,500 of those images, one seed: overconfident, too, after 40 epochs on 2,250 of them."""
    options = {"depth": 8, "alpha": 48, "width": 16}
    training = PatchTraining(
        "cifar10", "pyramidnet_cifar", options, epochs=40, batch_size=64, limit=2500, test_limit=2000
    )
    both = (*BASELINES, "EMP (BN+out)", "ECMP (BN+out)")
    few = {"rates": (0.02, 0.1), "perturbations": (0.1, 0.3)}
    return replace(
        PatchSetup(training, seeds=1, samples=20, methods=both, published="pyramidnet_cifar"), **{**few, **changes}
    )


def published(**changes: Any) -> PatchSetup:
    """PyramidNet (110, alpha 270) on CIFAR-100 for 400 epochs. ImageNet, the paper's other data, is not read here."""
    training = PatchTraining("cifar100", "pyramidnet_cifar", epochs=400, batch_size=256, augment=True)
    wide = {"rates": (0.005, 0.02, 0.05, 0.1), "perturbations": (0.1, 0.2, 0.3, 0.5)}
    return replace(PatchSetup(training, samples=200, published="pyramidnet_cifar"), **{**wide, **changes})


def chosen(jobs: Jobs, setup: PatchSetup, method: str, seed: int, data: DataSet) -> tuple[nn.Module, PatchTraining]:
    """The network of a method, with its training: the one whose rate does best on the validation data."""
    training = setup.of(method)
    if method == ENSEMBLE:
        members = [trained_network(jobs, setup.of("vanilla"), member, data) for member in range(MEMBERS)]
        return Average(members), training
    if candidates := [replace(training, rate=rate) for rate in setup.candidates(method)]:
        several = len(candidates) > 1
        training = min(candidates, key=lambda one: validation_loss(jobs, one, seed, data)) if several else candidates[0]
    return trained_network(jobs, training, seed, data), training


class Average(nn.Module):
    """The mean of the predictions of several classifiers, as logits."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, inputs: Tensor) -> Tensor:
        """The logarithm of the mean probabilities, shape (batch, classes)."""
        each = torch.stack([member(inputs).log_softmax(-1) for member in self.members])
        return each.logsumexp(0) - math.log(len(self.members))


def validation_loss(jobs: Jobs, training: PatchTraining, seed: int, data: DataSet) -> float:
    """The loss of a network on the validation data, with 20 samples."""

    def work() -> Metrics:
        inputs, targets = data.val.tensors
        return scores(probabilities(trained_network(jobs, training, seed, data), inputs, 20, seed), targets)

    label = f"  validation of {training.method} {training.rate:g}, seed {seed}"
    return float(jobs({"measured": "patch validation", **training.key(seed)}, work, label)["nll"])


def probabilities(model: nn.Module, inputs: Tensor, samples: int, seed: int) -> Tensor:
    """Class probabilities (N, C), averaged over samples."""
    return lb.predict(model, inputs, task="classification", samples=samples, seed=seed).probs


def scores(probs: Tensor, targets: Tensor) -> Metrics:
    """Accuracy, calibration (20 bins, those with 5 data or fewer left out), loss and Brier score."""
    return {
        "accuracy": classification.accuracy(probs, targets),
        "ece": calibration.ece(probs, targets, **BINS),
        "mce": calibration.mce(probs, targets, **BINS),
        "nll": classification.nll(probs, targets),
        "brier": brier.brier(probs, targets),
    }


def top(probs: Tensor, targets: Tensor, count: int = 5) -> float:
    """How often the target is among the `count` most probable classes."""
    best = probs.topk(min(count, probs.shape[1]), 1).indices
    return float((best == targets.unsqueeze(1)).any(1).double().mean())


def key(setup: PatchSetup, method: str, what: str, **also: Any) -> dict[str, Any]:
    """All that a piece depends on, except for the seed."""
    rates = {"rates": list(found)} if (found := setup.candidates(method)) else {}
    return {"measured": what, **setup.of(method).key(), "samples": setup.samples, **rates, **also}
