"""`evaluate_generation`: bounds, reconstruction errors and sample quality of a latent model by code length."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .. import batches, checks
from ..errors import EvaluationError
from ..eval_mode import undisturbed
from ..latents.autoencoder import Autoencoder
from ..latents.ordered import OrderedCode
from ..latents.pictures import lengths_of
from ..likelihoods import Likelihood
from ..sampling import mix
from .metrics.generative import frechet_distance, manifold_metrics


@dataclass(frozen=True)
class Generation:
    """The result of `evaluate_generation`: a row of plain numbers for every code length.

    length: of the code. nll, kl, elbo: means over the data, in nats; elbo = -(nll + kl). bits: kl / log 2, the rate.
    mse: mean squared error of a pixel, of reconstructions without noise. bound, bound_error: the importance-weighted
    bound and its standard error over the data. "feature distance (NAME)", precision, recall, density, coverage: of
    generated images in the features of an extractor of that name.
    """

    rows: list[dict[str, float]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def at(self, length: int) -> dict[str, float]:
        """The row of a length."""
        for row in self.rows:
            if row["length"] == length:
                return row
        lengths = ", ".join(str(row["length"]) for row in self.rows)
        raise EvaluationError(f"length: expected one of {lengths}, received {checks.short(length)}")

    def rate_distortion(self) -> list[tuple[float, float]]:
        """(bits, mean squared error) at every length: the rate-distortion curve."""
        return [(row["bits"], row["mse"]) for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return json.loads(json.dumps({"rows": self.rows, "settings": self.settings}))  # type: ignore[no-any-return]

    def __str__(self) -> str:
        names = list(self.rows[0]) if self.rows else []
        cells = [names, *([f"{row[name]:.5g}" for name in names] for row in self.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
        return "\n".join("  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in cells)


def evaluate_generation(
    model: Autoencoder,
    data: Any,
    *,
    lengths: Iterable[int] | None = None,
    samples: int = 1,
    importance: int = 0,
    generated: int = 0,
    extractor: nn.Module | None = None,
    extractor_name: str = "",
    k: int = 5,
    seed: int = 0,
    task: Any = None,
) -> Generation:
    """Bounds on log p(x), reconstruction errors and, with an extractor, distances of generated images, by code length.

    data: inputs; labels are ignored. lengths: code lengths to evaluate, for ordered codes; by default a quarter, a
        half, three quarters and all of the code. Other codes are evaluated at full length only.
    samples: draws of the code a datum, for the ELBO. importance: draws for the importance-weighted bound (Burda et
        al., 2016), which is at least the ELBO; 0 leaves it out.
    generated: how many images to generate and compare with as many data; extractor: a network from images to features,
        which are flattened. extractor_name is written into the result: only an Inception network gives an FID, see
        `leanbayes.evaluation.inception`. k: neighbours, for precision, recall, density and coverage.

    The model is not changed. A seed repeats the noise.

    >>> import leanbayes as lb
    >>> model = lb.image_autoencoder(lb.OrderedLatents(8), (1, 8, 8), width=4)
    >>> result = evaluate_generation(model, torch.rand(20, 1, 8, 8), task="bernoulli", importance=2)
    >>> [row["length"] for row in result.rows], sorted(result.rows[0])[:3]
    ([2, 4, 6, 8], ['bits', 'bound', 'bound_error'])
    """
    checks.instance("model", model, Autoencoder, "an lb.Autoencoder", error=EvaluationError)
    samples = checks.samples(samples, error=EvaluationError)
    importance = checks.whole_number("importance", importance, at_least=0, error=EvaluationError)
    generated = checks.whole_number("generated", generated, at_least=0, error=EvaluationError)
    k, seed = checks.whole_number("k", k, error=EvaluationError), checks.seed(seed, error=EvaluationError)
    checks.instance("extractor_name", extractor_name, str, "text", error=EvaluationError)
    if extractor is not None:
        checks.module("extractor", extractor, error=EvaluationError)
    likelihood = model.likelihood(task)
    if bool(generated) != (extractor is not None):
        raise EvaluationError("generated and extractor: expected both or neither; generated=1000, extractor=network")
    code_lengths = lengths_of(model, lengths if is_ordered(model) else (lengths or (model.code.size,)))
    if not is_ordered(model) and code_lengths != [model.code.size]:
        raise EvaluationError(
            f"lengths: expected {model.code.size}, since this code is not ordered, received {code_lengths}"
        )
    inputs = [batches.split(batch)[0] for batch in batches.stream(batches.accept(data, model))]
    if not inputs:
        raise EvaluationError("data: expected at least one batch, received none")
    x = torch.cat([model.images(part) for part in inputs])
    name = extractor_name or (type(extractor).__name__ if extractor is not None else "")
    real = None if extractor is None else features_of(extractor, x[:generated])
    rows = []
    for length in code_lengths:
        row: dict[str, float] = {"length": length}
        with at_length(model, length):
            if model.code.has_density:
                row |= bounds(model, likelihood, x, samples, importance, seed)
            row["mse"] = float((model.reconstruct(x, task=likelihood) - x).double().square().mean())
            if extractor is not None and real is not None:
                made = features_of(extractor, model.sample(generated, seed=seed, task=likelihood))
                row[f"feature distance ({name})"] = frechet_distance(real, made)
                row |= manifold_metrics(real, made, k)
        rows.append(row)
    settings = {"samples": samples, "importance": importance, "generated": generated, "extractor": name, "k": k}
    return Generation(rows, {**settings, "seed": seed, "data": len(x), "likelihood": str(likelihood)})


def is_ordered(model: Autoencoder) -> bool:
    """Whether the codes of a model are ordered, so that they can be truncated."""
    return isinstance(model.code, OrderedCode)


@contextlib.contextmanager
def at_length(model: Autoencoder, length: int) -> Iterator[None]:
    """Context manager that truncates codes to a length."""
    code = model.code
    if not isinstance(code, OrderedCode):
        yield
        return
    before, code.width = code.width, length
    try:
        yield
    finally:
        code.width = before


def bounds(
    model: Autoencoder, likelihood: Likelihood, x: Tensor, samples: int = 1, importance: int = 0, seed: int = 0
) -> dict[str, float]:
    """The ELBO, its terms, and the importance-weighted bound, at the code length that the model is set to.

    bound = mean over x of log 1/K sum_k p(x | z_k) p(z_k) / q(z_k | x), z_k ~ q(z | x).
    """
    device = next(model.parameters()).device
    sums = torch.zeros(4, dtype=torch.float64)  # nll, kl, bound, its square
    for number, block in enumerate(x.split(batches.ROWS)):
        block = block.to(device)
        with undisturbed(model):
            torch.manual_seed(mix(seed, number))
            features = model.features(block)
            for _ in range(samples):
                code, kl = model.code(features)
                nll = -likelihood.log_prob(model.decoder(code), block)
                sums[0] += nll.double().sum().cpu() / samples
                sums[1] += kl.double().sum().cpu() / samples
            weights = []
            for _ in range(importance):
                code, ratio = model.code.weighted(features)
                weights.append((likelihood.log_prob(model.decoder(code), block) + ratio).double())
            if weights:
                bound = torch.stack(weights).logsumexp(0) - math.log(importance)
                sums[2] += bound.sum().cpu()
                sums[3] += bound.square().sum().cpu()
    nll_, kl_, bound_, square = (sums / len(x)).tolist()
    row = {"elbo": -nll_ - kl_, "nll": nll_, "kl": kl_, "bits": kl_ / math.log(2)}
    if importance:
        row |= {"bound": bound_, "bound_error": math.sqrt(max(square - bound_**2, 0.0) / max(len(x) - 1, 1))}
    return row


def features_of(extractor: nn.Module, images: Tensor) -> Tensor:
    """The flattened features of images, (n, features), on the CPU."""
    device = next((p.device for p in extractor.parameters()), images.device)
    parts = []
    for block in images.split(batches.ROWS):
        with undisturbed(extractor):
            parts.append(batches.output_tensor(extractor(block.to(device))).flatten(1).cpu())
    return torch.cat(parts)
