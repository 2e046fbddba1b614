"""Section 6.2.2 of variational nested dropout: the depth of a hierarchical VAE by the mode of its posterior.

The paper orders the blocks of a very deep VAE and reports one number for each data set: of 76 layers 72 are selected on
CIFAR-10, of 134 layers 128 on FFHQ. Here a small ladder is trained with ordered depth, and beside it one of fixed
depth. Measured at every depth: the ELBO (without the term of the tails, which a set depth does not pay), and at the
selected one by how much it differs from that of all blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import leanbayes as lb

from ... import batches
from ...data import DataSet
from ...eval_mode import undisturbed
from ...latents.autoencoder import likelihood_of
from ...latents.hierarchy import HierarchicalVAE
from ...sampling import mix
from ..experiment import Cell, Experiment
from ..figures.charts import lines
from ..jobs import Jobs
from ..results import Measured
from ..training import Training, split_parameters, trained_network
from .networks import pixels, task_of


@dataclass(frozen=True)
class LadderTraining(Training):
    """One training run of a hierarchical VAE; see `Training` for the other fields.

    blocks, channels, latents, prior_keep: of the model.
    ordered: whether depths are drawn, or all blocks are in use.
    """

    blocks: tuple[int, ...] = (6, 6)
    channels: int = 24
    latents: int = 2
    prior_keep: float | None = None
    ordered: bool = True
    tail_lr: float = 0.03

    def load(self) -> DataSet:
        """The data up to the limits, with pixels in [0, 1]."""
        return pixels(self)

    def network(self, data: DataSet) -> nn.Module:
        """The ladder, newly initialised."""
        channels, height, width = data.input_shape
        shape = (channels, height, width)
        model = HierarchicalVAE(shape, self.blocks, self.channels, self.latents, self.prior_keep)
        if not self.ordered:
            lb.set_length_(model, len(model.blocks))
        return model

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Adam, with a larger learning rate for the tails: a few numbers that would hardly move otherwise."""
        others, tails = split_parameters(model, ("depth.raw",))
        return torch.optim.Adam([{"params": others, "lr": self.lr}, {"params": tails, "lr": self.tail_lr}])

    def fit_options(self, data: DataSet) -> dict[str, Any]:
        """The likelihood of the pixels; the KL is warmed up over the first third, lest late blocks stay unused."""
        steps = len(data.train) * self.epochs // (3 * self.batch_size)
        return {**super().fit_options(data), "task": task_of(data), "latent_weight": lb.warmup(0.1, 1, max(steps, 1))}


_SMOKE = LadderTraining("digits", "ladder", epochs=1, limit=128, test_limit=64, blocks=(2, 1), channels=4)
_CPU = LadderTraining(
    "mnist", "ladder", epochs=5, batch_size=64, limit=6000, test_limit=2000, blocks=(5, 5), channels=16
)
_PAPER = LadderTraining("cifar10", "ladder", epochs=100, batch_size=32, blocks=(24, 26, 26), channels=128, latents=16)
PRESETS: dict[str, tuple[LadderTraining, int]] = {"smoke": (_SMOKE, 1), "cpu": (_CPU, 1), "paper": (_PAPER, 1)}
PRIORS = {"VND, uniform prior": None, "VND, chain prior 0.8": 0.8}


def cells(preset: str) -> Iterator[Cell]:
    """A row for every depth of a model; the setting is the depth."""
    training, seeds = PRESETS[preset]
    chosen = {name: replace(training, prior_keep=keep) for name, keep in PRIORS.items()}
    for name, each in {**chosen, "all blocks": replace(training, ordered=False)}.items():
        key = {**each.key(), "figure": "hvae-depth"}
        depth = sum(each.blocks)
        yield Cell(each.data, name, depth, key, partial(measured, each), seeds, label=f"{name} on {each.data}")


def measured(training: LadderTraining, jobs: Jobs, seed: int) -> Measured:
    """The ELBO at every depth, and which depth is selected."""
    data = training.load()
    model = trained_network(jobs, training, seed, data)
    assert isinstance(model, HierarchicalVAE)
    images, blocks = data.test.tensors[0], len(model.blocks)
    rows = [{"setting": depth, **at_depth(model, images, depth, seed)} for depth in range(1, blocks + 1)]
    found: dict[str, Any] = {"rows": rows}
    if training.ordered:
        selected = model.likely_depth()
        full, cut = (rows[depth - 1]["elbo"] for depth in (blocks, selected))
        found |= {"selected depth": selected, "mean depth": model.mean_depth(), "change of the ELBO": cut / full - 1}
        beta = model.depth.tails().detach().exp().tolist()
        found["tails"] = [{"depth": depth, "beta": value} for depth, value in enumerate(beta, 1)]
    return found


def at_depth(model: HierarchicalVAE, images: Tensor, depth: int, seed: int) -> dict[str, float]:
    """The ELBO of a depth and its terms, in nats, and the error of reconstructions."""
    meaning, before = likelihood_of(model), model.depth.width
    nll = kl = 0.0
    lb.set_length_(model, depth)
    try:
        for number, block in enumerate(images.split(batches.ROWS)):
            with undisturbed(model):
                torch.manual_seed(mix(seed, number))
                out = model(block)
                nll -= float(meaning.log_prob(out.outputs, block).double().sum()) / len(images)
                kl += float(out.kl.double().sum()) / len(images)
        mse = float((model.reconstruct(images) - images).square().mean())
    finally:
        model.depth.width = before
    return {"elbo": -nll - kl, "nll": nll, "kl": kl, "mse": mse}


FIGURE = lines("A ladder cut at every depth", "blocks", ("elbo", "mse"))
EXPERIMENT = Experiment("hvae-depth", cells, figure=FIGURE)
