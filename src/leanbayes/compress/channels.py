"""Pruning whole channels: which of them matter least, and the weights that go with them on both sides."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..convert.channels import ChannelGraph, Group, Use
from ..errors import ConversionError
from ..layers.bayes import BayesLayer
from .candidates import Candidate


@dataclass(frozen=True)
class Channels:
    """A group of channels that may lose some.

    weights: of every random weight that goes with a channel, its candidate and the places of each channel, a list of
    indices into the dimensions of the weight. score: of each channel, the mean of its weights; -inf where none is left.
    """

    group: Group
    weights: list[tuple[Candidate, int, Use]]
    score: Tensor


def whole_channels(
    model: nn.Module,
    graph: ChannelGraph,
    candidates: list[Candidate],
    *,
    fraction: float | None,
    limit: float | None,
    scope: str,
    round_to: int,
) -> tuple[list[Tensor], dict[str, tuple[int, int]]]:
    """Masks of the weights to prune, one for each candidate, and by group how many channels are left and there were.

    A channel's score is the mean score of the random weights that go with it: the rows of the layers that make it and
    the columns of those that read it. A group may lose channels where all its readers are random Linear layers or
    ungrouped convolutions, which can be masked, and one of its makers is random; the others keep theirs.
    fraction: of the channels of these groups. limit: the score below which channels go. round_to: every group keeps a
    multiple of this, if need be more than asked for, and at least one.
    """
    found = _prunable(model, graph, candidates)
    if not found:
        reasons = "; ".join(f"{group.name}: {_why(model, group)}" for group in graph if group.producers) or "none"
        raise ConversionError(f"channels=True: expected channels that may be pruned, found none ({reasons})")
    pruned = {c.name: torch.zeros_like(c.free) for c in candidates}
    counts: dict[str, tuple[int, int]] = {}
    cuts = _cuts([c.score for c in found], fraction, limit, scope)
    for channels, gone in zip(found, cuts, strict=True):
        size = channels.group.size
        keep = min(size, max(round_to, math.ceil((size - gone) / round_to) * round_to))
        for channel in channels.score.argsort(stable=True)[: size - keep].tolist():
            for candidate, dim, use in channels.weights:
                pruned[candidate.name].index_fill_(dim, torch.tensor(use.features([channel])), True)
        counts[channels.group.name] = keep, size
    return [pruned[c.name] & c.free for c in candidates], counts


def _cuts(scores: list[Tensor], fraction: float | None, limit: float | None, scope: str) -> list[int]:
    """How many channels each group is to lose."""
    if limit is not None:
        return [int((score < limit).sum()) for score in scores]
    assert fraction is not None
    if scope == "layer":
        return [round(fraction * len(score)) for score in scores]
    together = torch.cat(scores)
    first = torch.zeros(len(together), dtype=torch.long)
    first[together.argsort(stable=True)[: round(fraction * len(together))]] = 1
    return [int(part.sum()) for part in first.split([len(score) for score in scores])]


def _prunable(model: nn.Module, graph: ChannelGraph, candidates: list[Candidate]) -> list[Channels]:
    by_name = {c.name.removesuffix(".weight"): c for c in candidates if c.name.endswith("weight")}
    found = []
    for group in graph.free:
        if _why(model, group) or not all(use.module in by_name for use in group.consumers):
            continue
        rows = [(by_name[use.module], 0, use) for use in (*group.producers, *group.through) if use.module in by_name]
        rows = [(c, dim, use) for c, dim, use in rows if _has_rows(model.get_submodule(use.module))]
        if rows:
            weights = [*rows, *((by_name[use.module], 1, use) for use in group.consumers)]
            found.append(Channels(group, weights, _score(group, weights)))
    return found


def _score(group: Group, weights: list[tuple[Candidate, int, Use]]) -> Tensor:
    """The mean over the weights of each channel that are left."""
    total, count = torch.zeros(group.size, dtype=torch.double), torch.zeros(group.size, dtype=torch.double)
    for candidate, dim, use in weights:
        left = candidate.free & (candidate.score > -math.inf)
        values = torch.where(left, candidate.score, 0.0).movedim(dim, 0).flatten(1)
        index = torch.tensor(use.features(range(group.size)))
        total += values[index].sum(1).reshape(group.size, use.block).sum(1)
        count += left.movedim(dim, 0).flatten(1)[index].sum(1).reshape(group.size, use.block).sum(1)
    return torch.where(count > 0, total / count.clamp_min(1), -math.inf)


def _why(model: nn.Module, group: Group) -> str:
    """Why a group keeps all its channels; empty where it need not."""
    if group.fixed:
        return group.reasons[0]
    if group.constraints:
        return f"{group.constraints[0].module} sees them in runs of equal length"
    for use in group.consumers:
        layer = model.get_submodule(use.module)
        if not isinstance(layer, BayesLayer) or layer.inputs_read([0]) is None:
            return f"{use.module}, which reads them, is no random Linear layer or ungrouped convolution"
    return "" if group.consumers else "nothing reads them"


def _has_rows(layer: nn.Module) -> bool:
    """Whether the first dimension of the weight is that of the outputs."""
    shell = layer.shell if isinstance(layer, BayesLayer) else layer
    return isinstance(shell, nn.Linear) or (isinstance(shell, _ConvNd) and not shell.transposed)
