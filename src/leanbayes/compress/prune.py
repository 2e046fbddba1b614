"""`prune_`: set the random weights that matter least to zero, permanently."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from .. import batches, checks
from ..convert.channels import ChannelGraph, channel_graph
from ..errors import ConfigError, ConversionError, LeanBayesWarning
from ..report.table import as_text, table
from .candidates import (
    Criterion,
    Scope,
    candidates_of,
    check,
    log_alpha as log_alpha,
    lowest_of,
    lowest_scores as lowest_scores,
    not_pruned,
)
from .channels import whole_channels
from .kappa import kappa


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
    channels: where whole channels went, those of every group that could lose some, by the layer that makes them.
    """

    by: str
    threshold: float | None
    tensors: tuple[PrunedTensor, ...]
    channels: tuple[PrunedTensor, ...] = ()

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
            "tensors": [asdict(t) for t in self.tensors],
            **({"channels": [asdict(c) for c in self.channels]} if self.channels else {}),
        }

    def __str__(self) -> str:
        weights = _table(f"pruned by {self.by}", "weights", self.tensors)
        return f"{_table('channels of', 'channels', self.channels)}\n{weights}" if self.channels else weights


def _table(what: str, count: str, found: tuple[PrunedTensor, ...]) -> str:
    rows = [*found, PrunedTensor("total", sum(t.kept for t in found), sum(t.total for t in found))]
    cells = [[t.name, f"{t.total:,}", f"{t.kept:,}", f"{1 - t.kept / max(t.total, 1):.1%}"] for t in rows]
    return as_text(table([what, count, "kept", "pruned"], cells))


def prune_(
    model: nn.Module,
    *,
    fraction: float | None = None,
    threshold: float | None = None,
    by: Criterion = "snr",
    scope: Scope = "global",
    channels: bool = False,
    round_to: int = 1,
    biases: bool = False,
    scores: Mapping[str, Tensor] | None = None,
    loader: Any = None,
    example_input: Any = None,
    graph: ChannelGraph | None = None,
) -> PruneReport:
    r"""Set the random weights that matter least to exactly zero, in place, and keep them there.

    by="magnitude": those with the smallest means, |mu|.
    by="expected_magnitude": those with the smallest E|theta|, the mean of a folded normal (sparse subspace VI, eq. 6).
    by="snr": those with the lowest signal to noise |mu| / sigma (Graves, 2011; Blundell et al., 2015, section 5.1).
    by="log_alpha": those with the highest log alpha = log(sigma^2 / mu^2) (Molchanov et al., 2017).
    by="kappa": those with the lowest variance times curvature (variance networks, section 5), from `scores` as
        `leanbayes.compress.kappa.kappa` gives them, or computed on `loader`. Only the tensors that have a score lose
        weights, and only they are reported.
    fraction: of all weights, those pruned before included, so that 0.6 twice is 0.6; exactly round(fraction * number)
        are gone afterwards (more if more had been pruned before), and ties go in the order of the model.
    threshold: instead of a fraction; removes SNR or kappa below it, or log alpha above it (3 if neither is given).
    scope: a fraction of the whole model ("global") or of every tensor ("layer").
    channels: whole channels instead of single weights, those whose weights have the lowest mean score, on the side that
        makes them and on the side that reads them. The fraction is then one of channels, and `lb.extract` cuts them
        out: the network is really smaller. Channels that an addition ties together go together; the report's
        `channels` lists the groups that could lose some.
    round_to: every group keeps a multiple of so many channels, 8 say, if need be more than asked for.
    example_input, graph: who feeds whom, as in `lb.extract`.
    biases: random biases too; a tied tensor counts once.

    A pruned weight is zero in mean, variance and every draw, through later training, `save`, deepcopy and `restore_`,
    and has no KL. It is a mask: fewer weights to know, and fewer to multiply with after `lb.extract`.

    >>> import torch
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
    checks.flag("channels", channels)
    if checks.whole_number("round_to", round_to) > 1 and not channels:
        raise ConfigError(f"round_to: expected with channels=True only, received {round_to}")
    if example_input is not None:
        example_input = batches.accept(example_input, name="example_input", arguments=True)
    threshold = check(fraction, threshold, by, scope)
    if by == "kappa" and (scores is None) == (loader is None):
        raise ConfigError(
            f"by='kappa': expected scores or a loader, received {'both' if loader is not None else 'neither'}; "
            "try prune_(model, by='kappa', loader=train_loader, fraction=0.95)"
        )
    if by != "kappa" and (scores is not None or loader is not None):
        raise ConfigError(f"scores and loader: expected with by='kappa' only, received by={by!r}")
    if loader is not None:
        scores = kappa(model, loader)
    candidates = candidates_of(model, by, biases, scores)
    counts: dict[str, tuple[int, int]] = {}
    if channels:
        traced = channel_graph(model, example_input) if graph is None else graph
        limit = None if threshold is None else -threshold if by == "log_alpha" else threshold
        options: dict[str, Any] = {"fraction": fraction, "limit": limit, "scope": scope, "round_to": round_to}
        pruned, counts = whole_channels(model, traced, candidates, **options)
    else:
        pruned = lowest_of(candidates, by, fraction, threshold, scope)
    masks = [not_pruned(c.q) & ~d.to(c.q.device) for c, d in zip(candidates, pruned, strict=True)]
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
    return PruneReport(by, threshold, tensors, tuple(PrunedTensor(name, *n) for name, n in counts.items()))
