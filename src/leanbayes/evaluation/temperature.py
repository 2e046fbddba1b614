"""Temperature scaling: dividing the logits by one number, fitted to held-out data, to calibrate a classifier."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from .. import batches, checks as arguments, feed
from ..batches import accept
from ..convert import record
from ..convert.staged import Staged
from ..errors import EvaluationError, LeanBayesWarning
from ..eval_mode import undisturbed
from ..likelihoods import Categorical
from ..optional import require
from ..prediction import resolve_task
from ..prediction.engine import Engine
from .metrics import checks
from .metrics.experts import as_votes
from .progress import Bar

COLDEST, HOTTEST = 0.01, 100.0
"""The range in which temperatures are searched."""
LIMIT = 2**25
"""Logits kept (128 MB): samples x data x classes beyond it are a random part of the data."""
GRID = 25
WORK = 2**21


def fit_temperature(logits: Tensor, targets: Tensor) -> float:
    """The temperature that makes the averaged predictive most probable: argmin_T of the NLL of held-out targets.

    NLL(T) = -(1/N) sum_i log (1/S) sum_s softmax(f_si / T)[y_i]

    For one sample this is Guo et al. 2017, section 4.2, and convex in 1/T. The average over samples need not be, so 25
    temperatures from 0.01 to 100 are tried, evenly in log T, and the best is refined between its neighbours (Brent's
    method) to 1e-4 of T or better. Where the best is an end of that range it is returned with a warning: held-out
    data that are all classified correctly have their best at 0, logits without information at infinity. 1 where no
    other temperature is better.

    logits: (S, N, C), or (N, C) for one sample. targets: labels (N,), or the labels of several annotators (N, C), as in
    `human`: the cross-entropy to that is then the NLL.

    >>> logits = torch.tensor([[4.0, 0.0]] * 4)
    >>> round(fit_temperature(logits, torch.tensor([0, 0, 0, 1])), 4)  # 3 of 4: sigmoid(4 / T) = 3/4
    3.641
    """
    return _fitted(logits, targets, easy=COLDEST)


def _fitted(logits: Tensor, targets: Tensor, easy: float) -> float:
    """`fit_temperature`; easy: the value returned if all held-out data are classified correctly."""
    require("scipy", "evaluation", "fit_temperature")
    if not isinstance(logits, Tensor) or not bool(torch.isfinite(logits).all()):
        checks.finite(logits, "logits")  # to name the entry; the doubles it makes are not needed otherwise
    if logits.ndim not in (2, 3) or (logits.ndim == 3 and not len(logits)):
        raise EvaluationError(
            f"logits: expected shape (samples, N, classes) or (N, classes), received {tuple(logits.shape)}; "
            f"pixels are data of their own: logits.movedim(2, -1).flatten(1, -2)"
        )
    logits = logits.detach().unsqueeze(0) if logits.ndim == 2 else logits.detach()
    _, labels, shares, _ = checks.classified(logits[0].softmax(-1), targets)
    checks.nonempty(len(labels), "fit_temperature")
    truth = (labels if shares is None else shares).to(logits.device)
    return _minimise(lambda log_t: _nll(logits, truth, math.exp(log_t)), easy)


def calibrate_(
    model: nn.Module,
    loader: Any,
    *,
    task: Any = None,
    samples: int = 32,
    seed: int = 0,
    mean_only: bool = False,
    progress: bool = True,
) -> float:
    """Fit a temperature to held-out data, store it on the model, and return it.

    It becomes part of the likelihood: `predict` and `evaluate` use it from then on (unless their ``task`` is a custom
    likelihood), and `save` and `load` keep it. Accuracy barely changes, since the top label of each sample stays.
    Calling it again starts from the logits of the network, not from the last temperature. If all held-out data are
    classified correctly they do not determine a temperature: it is 1 then, with a warning.

    loader: batches of (inputs, targets) that are used neither for training nor for the test. Other arguments as in
    `predict`: fit the temperature with the number of samples that predictions will use.

    >>> import leanbayes as lb
    >>> model, x = nn.Identity(), torch.tensor([[4.0, 0.0]] * 4)
    >>> round(lb.predict(model, x, task="classification").probs[0, 0].item(), 2)  # but only 3 of 4 are of class 0
    0.98
    >>> _ = calibrate_(model, (x, torch.tensor([0, 0, 0, 1])), task="classification", progress=False)
    >>> round(lb.predict(model, x).probs[0, 0].item(), 2)
    0.75
    """
    require("scipy", "evaluation", "calibrate_")
    found, likelihood = held_out(
        model, loader, task=task, samples=samples, seed=seed, mean_only=mean_only, progress=progress
    )
    record.ensure(model).likelihood = likelihood.to_dict()
    return found


def held_out(
    model: nn.Module, loader: Any, *, task: Any, samples: int, seed: int, mean_only: bool, progress: bool
) -> tuple[float, Categorical]:
    """The temperature that `calibrate_` would find, and the likelihood at it; the model is not changed."""
    arguments.module("model", model, error=EvaluationError)
    samples = arguments.samples(samples, error=EvaluationError)
    seed = arguments.seed(seed, error=EvaluationError)
    for name, value in (("mean_only", mean_only), ("progress", progress)):
        arguments.flag(name, value, error=EvaluationError)
    loader = accept(loader, model, name="loader", error=EvaluationError)
    if isinstance(model, Staged):
        raise EvaluationError(
            "temperature: expected a single model, a cascade has one for every stage; call lb.calibrate_(stage, "
            "held_out) for each of cascade.stages, and then cascade.tune(...)"
        )
    likelihood = resolve_task(model, task)
    if not isinstance(likelihood, Categorical):
        raise EvaluationError(
            f"temperature: expected a task of classification or segmentation, received {likelihood.task}; "
            f"only the softmax of logits has one"
        )
    plain = likelihood.at(1.0)
    engine = Engine(model, samples, seed, mean_only=mean_only)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    sample, ignore = _Sample(seed), likelihood.ignore_index
    with Bar(shown=progress) as bar, undisturbed(model):
        bar.expect(feed.length(loader))
        bar.stage("temperature")
        for inputs, targets in feed.labelled(loader):
            start = 0
            for block, groups in engine.blocks(batches.to(inputs, device)):
                stop = start + batches.size(block)
                outputs = (plain.logits(output) for group in groups for output in group)
                sample.add(outputs, batches.rows(targets, start, stop), engine.samples, ignore)
                start = stop
            bar.advance(start)
    checks.nonempty(sample.seen, "loader")
    found = _fitted(*sample.drawn(), easy=1.0)
    return found, likelihood.at(found)


class _Sample:
    """A fair sample of the rows (data, or labelled positions) of a stream: those with the smallest random keys."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.data = self.seen = self.most = 0
        self.parts: list[tuple[Tensor, Tensor, Tensor]] = []  # keys (n,), logits (S, n, C), labels (n,) or shares
        self.below = 1.0

    def add(self, outputs: Any, targets: Tensor, samples: int, ignore_index: int | None) -> None:
        """Add a block. outputs: an iterator over the logits (N, C, *positions) of each sample."""
        first = next(outputs)
        probs = first.softmax(1)
        targets = as_votes(probs, targets, ignore_index)
        found = checks.classified(probs, targets, start=self.data, ignore_index=ignore_index)
        self.data += len(first)
        self.seen += len(found.labels)
        self.most = max(1, LIMIT // (samples * first.shape[1]))
        keys = torch.rand(len(found.kept), generator=self.generator)
        order = keys.argsort()[: self.most]
        order = order[keys[order] < self.below].sort().values
        rows = found.kept.cpu()[order].to(first.device)

        def taken(logits: Tensor) -> Tensor:
            return logits.movedim(1, -1).reshape(-1, logits.shape[1])[rows].cpu()

        logits = torch.stack([taken(first), *(taken(output) for output in outputs)])
        truth = (found.labels if found.shares is None else found.shares).cpu()[order]
        self.parts.append((keys[order], logits, truth))
        if sum(len(part[0]) for part in self.parts) > 1.25 * self.most:  # now and then, since it copies all
            self._prune()

    def _prune(self) -> None:
        keys = torch.cat([part[0] for part in self.parts])
        order = keys.argsort()[: self.most].sort().values
        logits = torch.cat([part[1] for part in self.parts], 1)[:, order]
        self.parts = [(keys[order], logits, torch.cat([part[2] for part in self.parts])[order])]
        self.below = float(keys[order].max()) if len(order) == self.most else 1.0

    def drawn(self) -> tuple[Tensor, Tensor]:
        """The logits (S, n, C) and the targets of the sample."""
        self._prune()
        return self.parts[0][1], self.parts[0][2]


def _nll(logits: Tensor, truth: Tensor, temperature: float) -> float:
    """The mean NLL at a temperature, in pieces, so that the logits are not all held in float64."""
    samples, count, classes = logits.shape
    step, total = max(1, WORK // (samples * classes)), 0.0
    for at in range(0, count, step):
        part, wanted = checks.double(logits[:, at : at + step]) / temperature, truth[at : at + step]
        if wanted.is_floating_point():
            log_p = part.log_softmax(-1).logsumexp(0) - math.log(samples)
            total -= float((wanted.to(log_p) * log_p).sum())
        else:
            chosen = part.gather(2, wanted.to(part.device).expand(samples, -1)[..., None]).squeeze(2)
            total -= float(((chosen - part.logsumexp(-1)).logsumexp(0) - math.log(samples)).sum())
    return total / count


def _minimise(nll: Any, easy: float) -> float:
    """The temperature that minimises the NLL, a function of log T; easy: the value returned if that is the coldest."""
    from scipy.optimize import minimize_scalar

    low, high = math.log(COLDEST), math.log(HOTTEST)
    grid = torch.linspace(low, high, GRID, dtype=torch.float64).tolist()
    values = [nll(at) for at in grid]
    best = min(range(GRID), key=values.__getitem__)
    between = (grid[max(best - 1, 0)], grid[min(best + 1, GRID - 1)])
    found = float(minimize_scalar(nll, bounds=between, method="bounded", options={"xatol": 1e-5}).x)
    found = min((found, grid[best]), key=nll)
    least = nll(found) + 1e-12
    if nll(0.0) <= least:
        return 1.0
    for end, at, why in (
        (easy, low, "the held-out data are too easy"),
        (HOTTEST, high, "the logits have no information on the held-out targets"),
    ):
        if nll(at) <= least:
            warnings.warn(
                f"the best temperature lies beyond {COLDEST:g} to {HOTTEST:g}, so it is {end:g}: {why}",
                LeanBayesWarning,
                stacklevel=3,
            )
            return end
    return math.exp(found)
