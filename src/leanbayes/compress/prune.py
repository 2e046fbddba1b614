"""Pruning: weights that their posterior says nothing about are set to zero, for good."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from .. import checks
from ..errors import ConfigError, ConversionError, LeanBayesWarning
from ..layers.bayes import BayesLayer
from ..posteriors.base import Posterior

Criterion = Literal["snr", "log_alpha", "kappa"]
Scope = Literal["global", "layer"]
LOG_ALPHA = 3.0  # binary dropout of the same variance would drop with probability alpha / (1 + alpha) = 0.95


@dataclass(frozen=True)
class PrunedTensor:
    """name: of the random tensor, "conv1.weight" say. kept, total: its elements that are left, and all of them."""

    name: str
    kept: int
    total: int


@dataclass(frozen=True)
class PruneReport:
    """What `prune_` left. Print it for a table.

    by: the criterion. threshold: the value of it at which weights went; None where a fraction was asked for.
    """

    by: str
    threshold: float | None
    tensors: tuple[PrunedTensor, ...]

    @property
    def total(self) -> int:
        """Random weights before any pruning."""
        return sum(t.total for t in self.tensors)

    @property
    def kept(self) -> int:
        """Random weights that are left."""
        return sum(t.kept for t in self.tensors)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "by": self.by,
            "threshold": self.threshold,
            "kept": self.kept,
            "total": self.total,
            "tensors": [{"name": t.name, "kept": t.kept, "total": t.total} for t in self.tensors],
        }

    def __str__(self) -> str:
        from ..report.table import as_text, table

        rows = [*self.tensors, PrunedTensor("total", self.kept, self.total)]
        cells = [[t.name, f"{t.total:,}", f"{t.kept:,}", f"{1 - t.kept / max(t.total, 1):.1%}"] for t in rows]
        return as_text(table([f"pruned by {self.by}", "weights", "kept", "pruned"], cells))


@dataclass(frozen=True)
class _Candidate:
    """A posterior that may lose elements: those where `free`, the ones with the lowest `score` first."""

    name: str
    q: Posterior
    free: Tensor
    score: Tensor


def prune_(
    model: nn.Module,
    *,
    fraction: float | None = None,
    threshold: float | None = None,
    by: Criterion = "snr",
    scope: Scope = "global",
    biases: bool = False,
    scores: Mapping[str, Tensor] | None = None,
    loader: Any = None,
) -> PruneReport:
    r"""Set the random weights that matter least to exactly zero, in place, and keep them there.

    by="snr": those with the lowest signal to noise |mu| / sigma (Graves, 2011; Blundell et al., 2015, section 5.1).
    by="log_alpha": those with the highest log alpha = log(sigma^2 / mu^2) (Molchanov et al., 2017).
    by="kappa": those with the lowest variance times curvature (variance networks, section 5), from `scores` as
        `leanbayes.compress.kappa.kappa` gives them, or computed on `loader`. Only the tensors that have a score lose
        weights, and only they are reported.
    fraction: of all weights, those pruned before included, so that 0.6 twice is 0.6; exactly round(fraction * number)
        are gone afterwards (more if more had been pruned before), and ties go in the order of the model.
    threshold: instead of a fraction; removes SNR or kappa below it, or log alpha above it (3 if neither is given).
    scope: a fraction of the whole model ("global") or of every tensor ("layer").
    biases: random biases too; a tied tensor counts once.

    A pruned weight is zero in mean, variance and every draw, through later training, `save`, deepcopy and `restore_`,
    and has no KL. It is a mask: fewer weights to know, not yet fewer to multiply with.

    >>> import leanbayes as lb
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> _ = lb.bayesianize_(model, lb.MeanField())
    >>> report = prune_(model, fraction=0.75)
    >>> report.kept, report.total
    (12, 48)
    >>> int((model[0].weight == 0).sum() + (model[2].weight == 0).sum())
    36
    """
    checks.module("model", model, error=ConversionError)
    checks.flag("biases", biases)
    threshold = _check(fraction, threshold, by, scope)
    if by == "kappa" and (scores is None) == (loader is None):
        raise ConfigError(
            f"by='kappa': expected scores or a loader, received {'both' if loader is not None else 'neither'}; "
            "try prune_(model, by='kappa', loader=train_loader, fraction=0.95)"
        )
    if by != "kappa" and (scores is not None or loader is not None):
        raise ConfigError(f"scores and loader: expected with by='kappa' only, received by={by!r}")
    if loader is not None:
        from .kappa import kappa

        scores = kappa(model, loader)
    candidates = _candidates(model, by, biases, scores)
    doomed = _doomed(candidates, by, fraction, threshold, scope)
    masks = [_alive(c.q) & ~d.to(c.q.device) for c, d in zip(candidates, doomed, strict=True)]
    for c, mask in zip(candidates, masks, strict=True):
        if not bool(mask.all()):  # a tensor that loses nothing needs no mask
            c.q.keep = mask
    left = [int((mask & c.free.to(mask.device)).sum()) for c, mask in zip(candidates, masks, strict=True)]
    tensors = tuple(PrunedTensor(c.name, n, int(c.free.sum())) for c, n in zip(candidates, left, strict=True))
    if empty := [t.name for t in tensors if t.total and not t.kept]:
        warnings.warn(
            f"nothing is left of {', '.join(empty)}: what comes after sees a constant; "
            'prune less, or every layer alike with scope="layer"',
            LeanBayesWarning,
            stacklevel=2,
        )
    return PruneReport(by, threshold, tensors)


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
    threshold = _check(fraction, threshold, "kappa", "global")
    candidates = _candidates(model, "kappa", True, scores)
    doomed = _doomed(candidates, "kappa", fraction, threshold, "global")
    return {c.name: d for c, d in zip(candidates, doomed, strict=True)}


def log_alpha(q: Posterior) -> Tensor:
    """log(variance / mean^2), elementwise, in at least float32: how much of a weight is noise.

    >>> from leanbayes.posteriors import Gaussian
    >>> log_alpha(Gaussian.from_tensor(torch.tensor([1.0, 4.0]), std=2.0)).detach()
    tensor([ 1.3863, -1.3863])
    """
    own = getattr(q, "log_alpha", None)  # where it is a parameter, to the last digit
    if isinstance(own, Tensor):
        return own.expand(q.shape).to(torch.promote_types(q.dtype, torch.float32))
    return -2 * _ratio(q).log()


def _ratio(q: Posterior) -> Tensor:
    """Signal to noise in at least float32: in half precision ties would decide."""
    snr = q.snr().to(torch.promote_types(q.dtype, torch.float32))
    return snr.nan_to_num(nan=0.0, posinf=math.inf)  # 0 / 0 is a weight that is zero already


def _check(fraction: Any, threshold: Any, by: str, scope: str) -> float | None:
    """The threshold that is meant; None where it is a fraction."""
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
def _candidates(
    model: nn.Module, by: str, biases: bool, scores: Mapping[str, Tensor] | None = None
) -> list[_Candidate]:
    """Every random tensor that may be pruned, once, with the score of its elements; bad ones are refused.

    scores: given from outside; only tensors that have one may be pruned then.
    """
    if not isinstance(model, nn.Module):
        raise ConversionError(f"expected an nn.Module, received {type(model).__name__}")
    found: dict[int, _Candidate] = {}
    for layer_name, layer in model.named_modules():
        if not isinstance(layer, BayesLayer):
            continue
        for name, q in layer.posteriors.items():
            if id(q) in found or not (biases or name == "weight"):
                continue
            assert isinstance(q, Posterior)
            full_name = f"{layer_name}.{name}".lstrip(".")
            if scores is None:
                _check_means(full_name, q)
                score = _ratio(q) if by == "snr" else -log_alpha(q)
            elif full_name in scores:
                score = _given(full_name, q, scores[full_name])
            else:
                continue
            free = _places(q)
            if name == "weight" and (row := getattr(layer, "padding_idx", None)) is not None:
                free[row] = False  # the padding row of an embedding is a constant, not a weight
            # what is gone comes before what is merely zero, so that a fraction counts it
            score = score.double().clamp_min(torch.finfo(torch.double).min).masked_fill(~_alive(q), -math.inf)
            found[id(q)] = _Candidate(full_name, q, free, score.cpu())
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


def _check_names(model: nn.Module, scores: Mapping[str, Tensor], found: Mapping[int, _Candidate]) -> None:
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


def _check_means(name: str, q: Posterior) -> None:
    if not bool(q.mean.isfinite().all() and q.std.isfinite().all()):
        raise ConfigError(f"{name}: expected finite means and deviations, found NaN or infinity; load a sound model")
    alive = _alive(q)
    if not q.has_mean or (bool(alive.any()) and not bool(q.mean[alive].any())):
        why = "by construction" if not q.has_mean else "(is it trained?)"
        raise ConfigError(
            f"{name}: all its means are zero {why}, so that neither SNR nor log alpha tells weights apart"
        )


def _places(q: Posterior) -> Tensor:
    """Where there is a weight to lose: everywhere, or at the active places of a sparse one."""
    if not getattr(q, "is_sparse", False):
        return torch.ones(q.shape, dtype=torch.bool)
    index: Any = q.index
    return torch.zeros(q.shape.numel(), dtype=torch.bool).index_fill(0, index.cpu().long(), True).view(q.shape)


def _alive(q: Posterior) -> Tensor:
    return torch.ones(q.shape, dtype=torch.bool, device=q.device) if q.keep is None else q.keep


def _doomed(
    candidates: list[_Candidate], by: str, fraction: float | None, threshold: float | None, scope: str
) -> list[Tensor]:
    """What goes, a mask for each tensor."""
    if threshold is not None:
        limit = -threshold if by == "log_alpha" else threshold
        return [c.free & (c.score < limit) for c in candidates]
    if scope == "layer":
        return [d for c in candidates for d in _lowest([c], fraction)]
    return _lowest(candidates, fraction)


def _lowest(candidates: list[_Candidate], fraction: float | None) -> list[Tensor]:
    """Masks of the given fraction of all free elements, lowest score first, ties in the order they stand in."""
    assert fraction is not None
    scores = torch.cat([c.score[c.free] for c in candidates])
    doomed = torch.zeros(len(scores), dtype=torch.bool)
    if count := round(fraction * len(scores)):
        cut = scores.kthvalue(count).values  # a sort of ten million weights would take seconds
        doomed = scores < cut
        doomed[(scores == cut).nonzero()[: count - int(doomed.sum())]] = True
    parts = doomed.split([int(c.free.sum()) for c in candidates])
    return [torch.zeros_like(c.free).masked_scatter(c.free, part) for c, part in zip(candidates, parts, strict=True)]
