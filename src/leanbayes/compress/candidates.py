"""Which random weights may be pruned, and which of them have the lowest scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from .. import checks
from ..errors import ConfigError, ConversionError
from ..layers.bayes import BayesLayer
from ..posteriors.base import Posterior
from ..posteriors.magnitude import expected_magnitude, magnitude_of_mean
from ..posteriors.multiplicative import MultiplicativeGaussian

Criterion = Literal["snr", "magnitude", "expected_magnitude", "log_alpha", "kappa"]
Scope = Literal["global", "layer"]
LOG_ALPHA = 3.0  # binary dropout of the same variance would drop with probability alpha / (1 + alpha) = 0.95


@dataclass(frozen=True)
class Candidate:
    """A posterior that may lose elements: those where `free`, the ones with the lowest `score` first."""

    name: str
    q: Posterior
    free: Tensor
    score: Tensor


def lowest_scores(
    model: nn.Module, scores: Mapping[str, Tensor], *, fraction: float | None = None, threshold: float | None = None
) -> dict[str, Tensor]:
    """Masks of the weights that `prune_` would remove by these scores, biases included, by the name of their tensor.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(2, 1))
    >>> _ = lb.bayesianize_(model, lb.Variance())
    >>> lowest_scores(model, {"0.weight": torch.tensor([[3.0, 1.0]])}, fraction=0.5)
    {'0.weight': tensor([[False,  True]])}
    """
    threshold = check(fraction, threshold, "kappa", "global")
    candidates = candidates_of(model, "kappa", True, scores)
    pruned = lowest_of(candidates, "kappa", fraction, threshold, "global")
    return {c.name: d for c, d in zip(candidates, pruned, strict=True)}


def log_alpha(q: Posterior) -> Tensor:
    """log(variance / mean^2), elementwise, in at least float32: how much of a weight is noise.

    >>> from leanbayes.posteriors import Gaussian
    >>> log_alpha(Gaussian.from_tensor(torch.tensor([1.0, 4.0]), std=2.0)).detach()
    tensor([ 1.3863, -1.3863])
    """
    if isinstance(q, MultiplicativeGaussian):  # where it is a parameter, to the last digit
        return q.log_alpha.expand(q.shape).to(torch.promote_types(q.dtype, torch.float32))
    return -2 * _ratio(q).log()


def _ratio(q: Posterior) -> Tensor:
    """Signal to noise in at least float32: in half precision ties would decide."""
    snr = q.snr().to(torch.promote_types(q.dtype, torch.float32))
    return snr.nan_to_num(nan=0.0, posinf=math.inf)  # 0 / 0 is a weight that is zero already


SCORES: dict[str, Callable[[Posterior], Tensor]] = {
    "snr": _ratio,
    "magnitude": lambda q: magnitude_of_mean(q.mean, q.std),
    "expected_magnitude": lambda q: expected_magnitude(q.mean, q.std),
    "log_alpha": lambda q: -log_alpha(q),
}


def check(fraction: Any, threshold: Any, by: str, scope: str) -> float | None:
    """Check the arguments of `prune_` and return the threshold; None where a fraction is given."""
    checks.one_of("by", by, get_args(Criterion))
    checks.one_of("scope", scope, get_args(Scope))
    if fraction is not None and threshold is not None:
        raise ConfigError("expected a fraction or a threshold, received both; drop one")
    if fraction is None and threshold is None:
        if by == "log_alpha":
            return LOG_ALPHA
        raise ConfigError("expected a fraction or a threshold, received neither; try prune_(model, fraction=0.5)")
    if fraction is not None:
        checks.probability("fraction", fraction, hint="0.6 removes 60 %")
        return None
    return checks.number("threshold", threshold, at_least=None if by == "log_alpha" else 0)


@torch.no_grad()
def candidates_of(
    model: nn.Module, by: str, biases: bool, scores: Mapping[str, Tensor] | None = None
) -> list[Candidate]:
    """Every random tensor that may be pruned, once, with the score of its elements; bad ones are refused.

    scores: given from outside; only tensors that have one may be pruned then.
    """
    checks.module("model", model, error=ConversionError)
    found: dict[int, Candidate] = {}
    for layer_name, layer in model.named_modules():
        if not isinstance(layer, BayesLayer):
            continue
        for name, q in layer.posteriors.items():
            if id(q) in found or not (biases or name == "weight"):
                continue
            assert isinstance(q, Posterior)
            full_name = f"{layer_name}.{name}".lstrip(".")
            if scores is None:
                _check_means(full_name, q, by)
                score = SCORES[by](q)
            elif full_name in scores:
                score = _given(full_name, q, scores[full_name])
            else:
                continue
            free = q.places().cpu()
            if (
                name == "weight"
                and (row := layer.shell.padding_idx if isinstance(layer.shell, nn.Embedding) else None) is not None
            ):
                free[row] = False  # the padding row of an embedding is a constant, not a weight
            # pruned weights come first, so that a fraction counts them
            score = score.double().clamp_min(torch.finfo(torch.double).min).masked_fill(~not_pruned(q), -math.inf)
            found[id(q)] = Candidate(full_name, q, free, score.cpu())
    if scores is not None:
        _check_names(model, scores, found)
    if not found:
        raise ConversionError(
            "expected a model with Gaussian weights (MeanField, VariationalDropout, ...), found none to prune; "
            "lb.bayesianize_(model, lb.MeanField()) makes them"
        )
    return list(found.values())


def _given(name: str, q: Posterior, score: Any) -> Tensor:
    """A score from outside, checked against the tensor it is for."""
    shape = tuple(score.shape) if isinstance(score, Tensor) else type(score).__name__
    if shape != tuple(q.shape):
        raise ConfigError(f"scores[{name!r}]: expected a tensor of shape {tuple(q.shape)}, received {shape}")
    if bool(score.isnan().any()):
        raise ConfigError(f"scores[{name!r}]: expected numbers, found NaN; compute kappa on sound data")
    return score.detach().to(q.device)


def _check_names(model: nn.Module, scores: Mapping[str, Tensor], found: Mapping[int, Candidate]) -> None:
    known = [
        f"{name}.{part}".lstrip(".")
        for name, layer in model.named_modules()
        if isinstance(layer, BayesLayer)
        for part in layer.posteriors
    ]
    if known and (unknown := [name for name in scores if name not in known]):
        raise ConfigError(f"scores: expected names of random tensors ({', '.join(known)}), received {unknown[0]!r}")
    if known and not found:
        raise ConfigError(f"scores: expected some of {', '.join(known)}, received {', '.join(scores) or 'none'}")


def _check_means(name: str, q: Posterior, by: str) -> None:
    if not bool(q.mean.isfinite().all() and q.std.isfinite().all()):
        raise ConfigError(f"{name}: expected finite means and deviations, found NaN or infinity; load a sound model")
    alive = not_pruned(q)
    if by == "expected_magnitude":  # tells weights without a mean apart too
        return
    if not q.has_mean or (bool(alive.any()) and not bool(q.mean[alive].any())):
        why = "by construction" if not q.has_mean else "(is it trained?)"
        raise ConfigError(
            f"{name}: all its means are zero {why}, so that {by} tells no weights apart; try by='expected_magnitude'"
        )


def not_pruned(q: Posterior) -> Tensor:
    """A mask of the weights that have not been pruned, of the shape of the weight."""
    return torch.ones(q.shape, dtype=torch.bool, device=q.device) if q.keep is None else q.keep


def lowest_of(
    candidates: list[Candidate], by: str, fraction: float | None, threshold: float | None, scope: str
) -> list[Tensor]:
    """Masks of the weights to prune, one for each tensor."""
    if threshold is not None:
        limit = -threshold if by == "log_alpha" else threshold
        return [c.free & (c.score < limit) for c in candidates]
    if scope == "layer":
        return [d for c in candidates for d in _lowest([c], fraction)]
    return _lowest(candidates, fraction)


def _lowest(candidates: list[Candidate], fraction: float | None) -> list[Tensor]:
    """Masks of the given fraction of all free elements, lowest score first, ties in the order they stand in."""
    assert fraction is not None
    scores = torch.cat([c.score[c.free] for c in candidates])
    pruned = torch.zeros(len(scores), dtype=torch.bool)
    if count := round(fraction * len(scores)):
        cut = scores.kthvalue(count).values  # a sort of ten million weights would take seconds
        pruned = scores < cut
        pruned[(scores == cut).nonzero()[: count - int(pruned.sum())]] = True
    parts = pruned.split([int(c.free.sum()) for c in candidates])
    return [torch.zeros_like(c.free).masked_scatter(c.free, part) for c, part in zip(candidates, parts, strict=True)]
