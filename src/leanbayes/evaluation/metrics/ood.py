"""Out-of-domain detection: the scores of a prediction, and how well each ranks other data above the test data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from ...checks import refuse
from ...errors import EvaluationError
from ...optional import require
from . import checks

if TYPE_CHECKING:
    from ...prediction import Predictive

Positive = Literal["ood", "in"]


def auroc(inside: Tensor, outside: Tensor, *, positive: Positive = "ood") -> float:
    """The probability that an out-of-domain datum scores higher than one of the domain: P(o > i) + P(o = i) / 2.

    inside, outside: (N,) and (M,) scores that rise with uncertainty. The same whichever side is called positive.

    >>> auroc(torch.tensor([0.1, 0.4]), torch.tensor([0.3, 0.9]))
    0.75
    """
    return float(_ranking("auroc").roc_auc_score(*labelled(inside, outside, positive)))


def aupr(inside: Tensor, outside: Tensor, *, positive: Positive = "ood") -> float:
    """The average precision of finding the positive side: sum_k (R_k - R_{k-1}) P_k over thresholds k.

    Not interpolated. It depends on the ratio of N to M; positive="ood" is the choice of the papers.
    inside, outside: (N,) and (M,).

    >>> aupr(torch.tensor([0.1, 0.2]), torch.tensor([0.8, 0.9]))
    1.0
    """
    return float(_ranking("aupr").average_precision_score(*labelled(inside, outside, positive)))


def fpr95(inside: Tensor, outside: Tensor, *, positive: Positive = "ood", recall: float = 0.95) -> float:
    """The smallest false positive rate at which at least 95 % of the positive side are found.

    With positive="ood": the share of test data that are flagged when 95 % of the other data are.
    positive="in" is the reading of Liang et al. 2018 (ODIN). inside, outside: (N,) and (M,).

    >>> fpr95(torch.tensor([0.1, 0.2, 0.5, 0.6]), torch.tensor([0.5, 0.9]))
    0.5
    """
    truth, scores = labelled(inside, outside, positive)
    false, true, _ = _ranking("fpr95").roc_curve(truth, scores, drop_intermediate=False)
    return float(false[np.argmax(true >= recall)])  # rates rise along the curve, so the first is the smallest


def rank_metrics(inside: Tensor, outside: Tensor, *, positive: Positive = "ood") -> dict[str, float]:
    """AUROC, AUPR and FPR95 of one score.

    >>> rank_metrics(torch.tensor([0.1, 0.2]), torch.tensor([0.8, 0.9]))
    {'auroc': 1.0, 'aupr': 1.0, 'fpr95': 0.0}
    """
    return {
        "auroc": auroc(inside, outside, positive=positive),
        "aupr": aupr(inside, outside, positive=positive),
        "fpr95": fpr95(inside, outside, positive=positive),
    }


def scores(predictive: Predictive) -> dict[str, Tensor]:
    """The out-of-domain scores of each datum, (N,) by name, all rising with uncertainty; positions of an image are
    averaged.

    To add a score, add an entry here: `evaluate`, its bootstrap and its report take every name that this returns.

    entropy: H[mean p], the total uncertainty. mutual_information: the part more data could remove. max_prob: 1 - max p
    (Hendrycks & Gimpel 2017), turned so that it rises with uncertainty like the others. energy: -logsumexp of the
    logits (Liu et al. 2020), averaged over samples; left out if a custom likelihood has no logits. A regression
    has one score: variance.

    >>> import leanbayes as lb
    >>> pred = lb.predict(torch.nn.Linear(4, 3), torch.randn(5, 4), task="classification")
    >>> {name: tuple(values.shape) for name, values in scores(pred).items()}
    {'entropy': (5,), 'mutual_information': (5,), 'max_prob': (5,), 'energy': (5,)}
    """
    if predictive.task == "regression":
        return {"variance": _per_datum(predictive.variance)}
    found = {
        "entropy": predictive.entropy,
        "mutual_information": predictive.mutual_information,
        "max_prob": 1 - predictive.probs.amax(1),
    }
    if predictive.energies is not None:
        found["energy"] = predictive.energies
    return {name: _per_datum(values) for name, values in found.items()}


def compare_sets(
    inside: Mapping[str, Tensor], outside: Mapping[str, Mapping[str, Tensor]], *, bins: int = 40
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Metrics ``ood.SET.SCORE.METRIC`` and score histograms for every out-of-domain set.

    A score that does not vary (`varies`) is left out.
    """
    metrics: dict[str, float] = {}
    histograms: list[dict[str, Any]] = []
    for name, sets in outside.items():
        for score, inside_scores in inside.items():
            outside_scores = sets[score]
            if not varies(score, inside_scores, outside_scores):
                continue
            both = torch.cat([inside_scores, outside_scores])
            for metric, value in rank_metrics(inside_scores, outside_scores).items():
                metrics[f"ood.{name}.{score}.{metric}"] = value
            edges = np.linspace(float(both.min()), float(both.max()), bins + 1)
            histograms.append(
                {
                    "set": name,
                    "score": score,
                    "edges": edges.tolist(),
                    "inside": np.histogram(inside_scores.numpy(), edges)[0].tolist(),
                    "outside": np.histogram(outside_scores.numpy(), edges)[0].tolist(),
                }
            )
    return metrics, histograms


def varies(score: str, inside: Tensor, outside: Tensor) -> bool:
    """Whether a score differs between data by more than rounding (six digits).

    The mutual information of a deterministic network does not, and ranking it would rank rounding errors. Differences
    are relative to 1 for nats and probabilities, and to the score itself for a variance or an energy.

    >>> varies("entropy", torch.tensor([1e-9]), torch.tensor([2e-9]))
    False
    >>> varies("variance", torch.tensor([1e-9]), torch.tensor([2e-9]))
    True
    """
    low = min(float(inside.min()), float(outside.min()))
    high = max(float(inside.max()), float(outside.max()))
    unit = max(abs(low), abs(high)) if score in ("variance", "energy") else 1.0
    return high - low > 1e-6 * unit


def labelled(inside: Tensor, outside: Tensor, positive: Positive) -> tuple[np.ndarray, np.ndarray]:
    """(1 for the positive side and 0 for the other, scores that rise towards it), the inside data first; checked."""
    if positive not in ("ood", "in"):
        refuse("positive", "'ood' or 'in'", positive, EvaluationError)
    inside, outside = checks.finite(inside, "inside"), checks.finite(outside, "outside")
    for name, values in (("inside", inside), ("outside", outside)):
        if values.ndim != 1:
            raise EvaluationError(
                f"{name}: expected one score a datum, shape (N,), received {tuple(values.shape)}; try .flatten()"
            )
        checks.nonempty(len(values), name)
    scores = torch.cat([inside.cpu(), outside.cpu()]).numpy()
    truth = np.r_[np.zeros(len(inside), dtype=int), np.ones(len(outside), dtype=int)]
    return (truth, scores) if positive == "ood" else (1 - truth, -scores)


def _ranking(name: str) -> Any:
    """scikit-learn's metrics, if it is installed; name: of the function that needs them."""
    require("sklearn", "evaluation", name)
    from sklearn import metrics

    return metrics


def _per_datum(values: Tensor) -> Tensor:
    return values.detach().flatten(1).mean(1) if values.ndim > 1 else values.detach()
