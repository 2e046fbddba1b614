"""What the recipes of ensemble model patching on images share: networks, how they are trained and kept, and metrics.

As published: Adam at its default settings without a schedule, an L2 penalty of 0.001 / batch size on everything
(appendix C.1), K = 5 components, the network at the end of training. Components of the output start afresh. Dropout
acts on the channels into every convolution but the first, and on the inputs of the output (the paper's acts in front
of every BatchNorm, at a rate of 0.005 that it calls "probably not optimal").

How strong the noise is decides over everything here: the rate of dropout, and how far apart the components of norm
layers start (the paper does not say). Each method gets the candidate with the lowest loss on validation data, a tenth
of the training images that no method is trained on.

A network is trained once for all of these recipes (`Jobs.network`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from . import workload
from .base import Jobs, Metrics

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..data import DataSet

METHODS = ("vanilla", "dropout", "EMP (BN)", "EMP (BN+out)", "ECMP (BN)", "ECMP (BN+out)")
BINS: dict[str, Any] = {"bins": 20, "min_count": 6}  # appendix D.2


@dataclass(frozen=True)
class Run(workload.Run):
    """One training run; see `recipes.workload.Run` for the other fields.

    method: one of METHODS. rate: of dropout, or the perturbation of patches. limit: training images, of which a tenth
    become validation data. penalty: the L2 penalty, times the batch size.
    """

    method: str = "vanilla"
    rate: float = 0.0
    components: int = 5
    penalty: float = 0.001

    def key(self, seed: int) -> dict[str, Any]:
        """All that the network depends on."""
        return {**asdict(self), "methods": {}, "seed": seed}


@dataclass(frozen=True)
class Setting:
    """A network on its data. seeds: how many. samples: networks drawn to predict.

    rates, perturbations: the candidates for dropout and for patches.
    """

    run: Run
    seeds: int = 3
    samples: int = 50
    rates: tuple[float, ...] = (0.02, 0.05, 0.1)
    perturbations: tuple[float, ...] = (0.1, 0.3, 0.5)
    methods: tuple[str, ...] = METHODS

    def of(self, method: str) -> Run:
        """The run of a method, which has yet to get its rate."""
        return replace(self.run, method=method)

    def candidates(self, method: str) -> tuple[float, ...]:
        """The rates that a method chooses from; none for the vanilla network."""
        return {"vanilla": (), "dropout": self.rates}.get(method, self.perturbations)


def digits(**changes: Any) -> Setting:
    """A perceptron on the embedded digits, for the smoke presets."""
    options = {"hidden": (32,), "batch_norm": True}
    run = Run("digits", "mlp", options, epochs=2, lr=0.02, batch_size=50, limit=600, test_limit=150)
    return replace(Setting(run, seeds=1, samples=5, rates=(0.1,), perturbations=(0.1,)), **changes)


def resnet(**changes: Any) -> Setting:
    """ResNet-18, ImageNet's stem and all, at a quarter of its width on 10,000 images of CIFAR-10 without augmentation.

    After 20 epochs on its 9,000 training images the vanilla network is overconfident by far.
    """
    run = Run("cifar10", "resnet18", {"width": 16}, epochs=20, batch_size=128, limit=10_000, test_limit=5000)
    return replace(Setting(run), **changes)


def pyramid(**changes: Any) -> Setting:
    """A small PyramidNet on 2,500 of those images, one seed: overconfident, too, after 40 epochs on 2,250 of them."""
    options = {"depth": 8, "alpha": 48, "width": 16}
    run = Run("cifar10", "pyramidnet_cifar", options, epochs=40, batch_size=64, limit=2500, test_limit=2000)
    both = ("vanilla", "dropout", "EMP (BN+out)", "ECMP (BN+out)")
    few = {"rates": (0.02, 0.1), "perturbations": (0.1, 0.3)}
    return replace(Setting(run, seeds=1, samples=20, methods=both), **{**few, **changes})


def published(**changes: Any) -> Setting:
    """PyramidNet (110, alpha 270) on CIFAR-100 for 400 epochs. ImageNet, the paper's other data, is not read here."""
    run = Run("cifar100", "pyramidnet_cifar", epochs=400, batch_size=256, augment=True)
    wide = {"rates": (0.005, 0.02, 0.05, 0.1), "perturbations": (0.1, 0.2, 0.3, 0.5)}
    return replace(Setting(run, samples=200), **{**wide, **changes})


def load(run: Run) -> DataSet:
    """The data up to the run's limits; the last tenth of the training images are for validation."""
    from torch.utils.data import TensorDataset

    whole = workload.load(run)
    tensors = whole.train.tensors
    count = len(tensors[0]) - len(tensors[0]) // 10
    parts = {"train": TensorDataset(*(t[:count] for t in tensors)), "val": TensorDataset(*(t[count:] for t in tensors))}
    return replace(whole, parts={**parts, "test": whole.test})


def rules(run: Run, model: nn.Module) -> Any:
    """What `bayesianize_` is given; None for the vanilla network."""
    from ..methods import Dropout, Patch
    from ..methods.patch import norms, norms_and_output

    if run.method == "vanilla":
        return None
    if run.method == "dropout":
        return Dropout(run.rate)
    cross = run.method.startswith("ECMP")
    patch = Patch(run.components, cross=cross, prior=None, init="fresh", perturbation=run.rate)
    return norms_and_output(model, patch) if run.method.endswith("(BN+out)") else norms(patch)


def trained(run: Run, seed: int, data: DataSet, **options: Any) -> nn.Module:
    """A network trained as a run says; further options go to `fit`."""
    import torch

    import leanbayes as lb

    torch.manual_seed(seed)
    model = workload.network(run, data)
    if (found := rules(run, model)) is not None:
        lb.bayesianize_(model, found)
    return fit_(model, run, seed, data, **options)


def fit_(model: nn.Module, run: Run, seed: int, data: DataSet, **options: Any) -> nn.Module:
    """Train a network for as long as a run says, with its optimiser."""
    import torch

    import leanbayes as lb

    decay = 2 * run.penalty / run.batch_size  # the slope of lambda |w|^2
    adam = torch.optim.Adam(model.parameters(), lr=run.lr, weight_decay=decay)
    examples = workload.training_data(run, data)
    lb.fit(
        model, examples, task="classification", epochs=run.epochs, optimizer=adam, batch_size=run.batch_size,
        seed=seed, **{"progress": False, **options},
    )  # fmt: skip
    return model


def network_of(jobs: Jobs, run: Run, seed: int, data: DataSet) -> nn.Module:
    """The network of a run: trained now, or read back if one of the recipes has it."""
    rate = f" {run.rate:g}" if run.rate else ""
    return jobs.network(
        run.key(seed),
        fresh=partial(workload.network, run, data),
        train=partial(trained, run, seed, data),
        label=f"  training {run.model}, {run.method}{rate}, seed {seed}",
    )


def chosen(jobs: Jobs, setting: Setting, method: str, seed: int, data: DataSet) -> tuple[nn.Module, Run]:
    """The network of a method, with its run: the one whose rate does best on the validation data."""
    run = setting.of(method)
    if runs := [replace(run, rate=rate) for rate in setting.candidates(method)]:
        run = min(runs, key=lambda one: validation_loss(jobs, one, seed, data)) if len(runs) > 1 else runs[0]
    return network_of(jobs, run, seed, data), run


def validation_loss(jobs: Jobs, run: Run, seed: int, data: DataSet) -> float:
    """The loss of a run's network on the validation data, with 20 samples."""

    def work() -> Metrics:
        inputs, targets = data.val.tensors
        return scores(probabilities(network_of(jobs, run, seed, data), inputs, 20, seed), targets)

    label = f"  validation of {run.method} {run.rate:g}, seed {seed}"
    return jobs({"measured": "patch validation", **run.key(seed)}, work, label=label)["nll"]


def probabilities(model: nn.Module, inputs: Tensor, samples: int, seed: int) -> Tensor:
    """Class probabilities (N, C), averaged over samples."""
    from ..prediction import predict

    return predict(model, inputs, task="classification", samples=samples, seed=seed).probs


def scores(probs: Tensor, targets: Tensor) -> Metrics:
    """Accuracy, calibration (20 bins, those with 5 data or fewer left out), loss and Brier score."""
    from ..evaluation.metrics import brier, calibration, classification

    return {
        "accuracy": classification.accuracy(probs, targets),
        "ece": calibration.ece(probs, targets, **BINS),
        "mce": calibration.mce(probs, targets, **BINS),
        "nll": classification.nll(probs, targets),
        "brier": brier.brier(probs, targets),
    }


def key(setting: Setting, method: str, seed: int, what: str, **also: Any) -> Mapping[str, Any]:
    """All that a piece depends on, for `Jobs`."""
    rates = {"rates": list(found)} if (found := setting.candidates(method)) else {}
    return {"measured": what, **setting.of(method).key(seed), "samples": setting.samples, **rates, **also}
