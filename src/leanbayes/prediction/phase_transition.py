"""A warning for predictions at the means of layers that are past their phase transition."""

from __future__ import annotations

import math
import warnings
from typing import Any

from torch import nn

from ..errors import LeanBayesWarning
from ..layers.bayes import BayesLayer
from ..training.recalibrate import collected_at_means

THRESHOLD = 5.0
"""The log alpha beyond which a layer's output is mostly noise (variance networks, section 4.1)."""


def log_noise(layer: BayesLayer) -> float:
    """log of the sum of Var[w] over the sum of E[w]^2 of a layer's weights: log alpha of the whole layer.

    The ratio of noise to signal at the outputs for inputs of equal size, in which weights count by their size.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 2))
    >>> _ = lb.bayesianize_(model, lb.Variance(log_alpha=7.0))
    >>> round(log_noise(model[0]), 3)
    7.0
    """
    q: Any = layer.posteriors._modules.get("weight")
    if q is None or not q.gaussian:
        return -math.inf
    signal = float(q.mean.detach().double().square().sum())
    noise = float(q.variance.detach().double().sum())
    if noise == 0:
        return -math.inf
    return math.log(noise) - math.log(signal) if signal else math.inf


def past_transition(model: nn.Module) -> list[str]:
    """The layers whose `log_noise` is above 5, so that their means carry little of the signal.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> _ = lb.bayesianize_(model, {"0": lb.Variance(log_alpha=7.0), "2": lb.Variance()})
    >>> past_transition(model)
    ['0']
    """
    layers = ((name, m) for name, m in model.named_modules() if isinstance(m, BayesLayer))
    return [name for name, layer in layers if log_noise(layer) > THRESHOLD]


def warn_if_past(model: nn.Module, stacklevel: int = 3) -> None:
    """Warn if predictions at the means of a network may be poor.

    There is no warning if a posterior has no mean, which is an error elsewhere, or if BatchNorm's statistics were
    re-estimated at the means.
    """
    layers = [m for m in model.modules() if isinstance(m, BayesLayer)]
    if any(not q.has_mean for layer in layers for q in layer.posteriors.values()):
        return
    past = past_transition(model)
    if past and not collected_at_means(model):
        some = ", ".join(past[:3]) + (f" and {len(past) - 3} more" if len(past) > 3 else "")
        warnings.warn(
            f"the weights of {some} are past their phase transition: their variances hold what was learned, and "
            "predicting with the means alone may be no better than a guess; predict with samples (samples=32), or "
            'estimate BatchNorm at the means first with lb.recalibrate_(model, loader, at="means") and look at the '
            "accuracy",
            LeanBayesWarning,
            stacklevel=stacklevel,
        )
