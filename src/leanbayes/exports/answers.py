"""What an exported graph computes: every sample of a prediction, and the averages over them, from one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import batches, sampling
from ..likelihoods import Likelihood
from ..prediction import draws
from ..prediction.accumulate import Accumulator
from ..prediction.moments import Moments, one_gaussian
from ..prediction.moments.outputs import drawn as drawn_outputs
from ..prediction.moments.rules import NotCarried
from ..prediction.moments.walk import Walk
from ..prediction.predictive import Predictive
from .missing import cholesky

Draw = Callable[[], Mapping[int, Tensor]]


class Answers(nn.Module):
    """The tensors of a batch to what `leanbayes.predict` says of it, by the names of `Predictive`.

    model: in evaluation mode. Kept where torch does not see it as a submodule: `torch.export` would put another object
        in the place of a module that several layers share, and noise is handed over by the identity of its site.
    meaning: what the outputs mean. like: inputs of the model; tensors that are given replace those in it.
    noise: for each sample what gives the noise of its sites; empty for one pass at the means.
    keep: whether what every sample said is an answer as well.

    >>> from leanbayes.likelihoods import Classification
    >>> answers = Answers(nn.Linear(4, 3), Classification(), torch.zeros(2, 4), [])
    >>> {name: tuple(value.shape) for name, value in answers(torch.zeros(5, 4)).items()}
    {'probs': (5, 3), 'entropy': (5,), 'mutual_information': (5,), 'variance': (5, 3), 'energy': (5,)}
    """

    engine = "graph"

    def __init__(
        self, model: nn.Module, meaning: Likelihood, like: Any, noise: list[Draw], *, keep: bool = False
    ) -> None:
        super().__init__()
        self.hidden = (model, meaning)
        self.like, self.noise, self.keep = like, noise, keep

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        """The answers by name."""
        given = iter(tensors)
        model, meaning = self.hidden
        said = self.outputs(model, batches.map_tensors(lambda _: next(given), self.like))
        total = Accumulator(meaning, self.keep, None, wide=torch.promote_types(said[0].dtype, torch.float32))
        total.add_rows(torch.cat(list(said)), list(range(len(said))))
        return named(one_gaussian(total.result(self.engine)))

    def outputs(self, model: nn.Module, inputs: Any) -> Sequence[Tensor]:
        """What every sample says."""
        settings: list[dict[str, Any]] = [{"estimator": "weight", "draws": draw()} for draw in self.noise]
        said = []
        for setting in settings or [{"mean_only": True}]:
            with sampling.using(**setting):
                said.append(batches.output_tensor(batches.call(model, inputs)))
        return said


class OnePassAnswers(Answers):
    """The same from one pass of means and variances, ``predict(..., estimator="moments")``.

    seed: of the points at which a likelihood is averaged over the outputs.
    """

    engine = "moments"

    def __init__(self, model: nn.Module, meaning: Likelihood, like: Any, seed: int) -> None:
        super().__init__(model, meaning, like, [])
        self.seed = seed

    def outputs(self, model: nn.Module, inputs: Any) -> Sequence[Tensor]:
        """Draws from the Gaussian that the outputs are."""
        walk = Walk(model, 1, self.seed, list)
        law = walk(inputs)
        if not isinstance(law, Moments):  # export has asked `predict` first, which says the same
            raise NotCarried(f"{next(iter(walk.reasons), 'the model')} has no rule for moments")
        return drawn_outputs(law, self.seed, cholesky).unbind()


def named(prediction: Predictive) -> dict[str, Tensor]:
    """The parts of a prediction that a graph returns, by the names they are read by."""
    found: dict[str, Tensor | None]
    if prediction.task in ("classification", "segmentation"):
        found = {
            "probs": prediction.mean,
            "entropy": prediction.entropy,
            "mutual_information": prediction.epistemic,
            "variance": prediction.variance,
            "energy": prediction.energies,
        }
    else:
        found = {"mean": prediction.mean, "variance": prediction.variance, "epistemic": prediction.epistemic}
        if prediction.task == "regression":
            found["entropy"] = prediction.entropy
    found |= {"samples": prediction.drawn, "noise": prediction.noise}
    return {name: value for name, value in found.items() if value is not None}


def drawn(model: nn.Module, inputs: Any, samples: int, seed: int, *, frozen: bool) -> list[Draw]:
    """What gives the noise of each sample: as `leanbayes.predict` draws it for a seed, or drawn when it is called.

    As many as `predict` takes: a model without random sites has one network, an ensemble its members. Where nothing is
    drawn, since samples go through the members in turn, the order is fixed in both cases.
    """
    sites = list(sampling.sites(model).values())
    learners = [site for site in sites if site.learns_shape]
    if learners:  # noise of a shape that an input decides
        for site in learners:
            site.shapes.clear()
        with sampling.using(estimator="weight"), sampling.watching(lambda site: None):
            batches.call(model, inputs)
    if (period := draws.period(sites, None) if sites else 1) is not None:
        samples = min(samples, period)
    fixed = {
        id(site): draws.noise(site, seed, number, range(samples), None).unbind()
        for number, site in enumerate(sites)
        if frozen or site.cycle(alone=len(sites) == 1) is not None
    }
    free = [site for site in sites if id(site) not in fixed]

    def of_sample(fixed: dict[int, Tensor]) -> Draw:
        return lambda: fixed | {id(site): site.noise() for site in free}

    return [of_sample({key: noise[sample] for key, noise in fixed.items()}) for sample in range(samples)]
