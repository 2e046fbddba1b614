"""Appendix A.5 of variational nested dropout, corrected: does the ordered mask keep a posterior from collapsing?

The paper says that its KL cannot vanish, or that at least the "single mode" beta_1 = 1 is excluded. With the second
term of A18 put right (a latent is paid for whenever it is kept) the least KL for given kappas is -log sum_j p(v_j)
exp(-sum_{i <= j} kappa_i). It is 0 where all kappas are: nothing keeps a posterior from becoming the prior. What holds:
the first latent is always kept, so that KL >= kappa_1, and the optimal tails are never 0 where the prior's are not.
Here VAE and VND-AE are trained with the KL weighed more and more: the KL that is left, how many latents are in use (an
average KL above 0.01 nats), the mean code length, and how far the average tails are from the prior's (total variation).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

import leanbayes as lb

from ...evaluation.generation import bounds
from ...latents.autoencoder import Autoencoder
from ...latents.code import gaussian_kl
from ...latents.ordered import OrderedCode
from ...ordering import BernoulliChain, optimal_tails
from ..experiment import Cell, Experiment, grid
from ..figures.charts import lines
from ..jobs import Jobs
from ..results import Measured
from ..training import trained_network
from .networks import LatentTraining

IN_USE = 0.01
LATENTS = {
    "VAE": lb.GaussianLatents(32),
    "nested dropout": lb.OrderedLatents(32, tails="uniform"),
    "VND-AE": lb.OrderedLatents(32, floor=0.0),  # whose tails may become those of the prior
}
_SMOKE = LatentTraining("digits", "autoencoder", epochs=1, batch_size=64, limit=256, test_limit=64, width=4)
_CPU = LatentTraining("mnist", "autoencoder", epochs=4, lr=2e-3, batch_size=32, limit=5000, test_limit=2000, width=16)
PRESETS: dict[str, tuple[LatentTraining, tuple[float, ...], int]] = {
    "smoke": (_SMOKE, (1.0, 30.0), 1),
    "cpu": (_CPU, (1.0, 5.0, 20.0, 80.0), 1),
    "paper": (replace(_CPU, epochs=50, limit=None, test_limit=None), (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0), 3),
}


def cells(preset: str) -> Iterator[Cell]:
    """A row for every model; the setting is the weight of the KL. First the least KL by its formula."""
    training, weights, seeds = PRESETS[preset]
    yield Cell("formula", "least KL", 0.0, {"what": "least KL"}, formula, seeds=None, label="least KL by its formula")
    for at in grid(method=list(LATENTS), weight=weights):
        chosen = replace(training, latents=LATENTS[at["method"]], latent_weight=at["weight"])
        key = {**chosen.key(), "figure": "collapse"}
        label = f"{at['method']} with weight {at['weight']:g}"
        work = partial(measured, chosen)
        yield Cell(training.data, at["method"], at["weight"], key, work, seeds, label=label)


def formula(jobs: Jobs, seed: int) -> Measured:
    """The least KL of tails and latents for kappas that are equal, or 0 behind the first, under the chain at 0.95."""
    prior = BernoulliChain.constant(32, 0.95).log_tails
    rows: list[dict[str, Any]] = []
    for kappa in (0.0, 0.01, 0.1, 1.0):
        even, first = torch.full((32,), kappa), torch.zeros(32)
        first[0] = kappa
        for name, kappas in (("least KL, all kappas equal", even), ("least KL, the first kappa alone", first)):
            rows.append({"method": name, "setting": kappa, "kl": float(optimal_tails(prior, kappas)[1])})
    return {"rows": rows}


def measured(training: LatentTraining, jobs: Jobs, seed: int) -> Measured:
    """What is left of the KL."""
    data = training.load()
    model = trained_network(jobs, training, seed, data)
    assert isinstance(model, Autoencoder)
    images = data.test.tensors[0]
    found = bounds(model, model.likelihood(), images, seed=seed)
    model.eval()
    with torch.no_grad():
        features = model.features(images)
        kappa = gaussian_kl(*model.code.head(features)).mean(0)  # type: ignore[operator]
        found |= {"latents in use": float((kappa > IN_USE).sum()), "kappa of the first": float(kappa[0])}
        if isinstance(model.code, OrderedCode):
            beta = model.code.tails_of(features).exp().mean(0)
            found["mean length"] = float((beta * torch.arange(1, 1 + len(beta))).sum())
            found["tails from prior, TV"] = float((beta - model.code.log_prior.exp()).abs().sum() / 2)
    return found


FIGURE = lines("What a heavier KL leaves", "weight of the KL", ("kl", "latents in use"), tuple(LATENTS), log=True)
EXPERIMENT = Experiment("posterior-collapse", cells, figure=FIGURE)
