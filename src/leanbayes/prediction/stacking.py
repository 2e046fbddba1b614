"""Stacking: the weight of each network of a prediction, learned from held-out data (Yao et al., 2018).

    w = argmax_w sum_n log sum_s w_s p(y_n | x_n, W_s),   w_s >= 0,   sum_s w_s = 1

The problem is concave. Ensemble model patching proposes it as future work.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..batches import accept
from ..errors import DataError, PredictionError
from ..feed import labelled
from .api import predict


def stacking_weights(log_density: Tensor, tolerance: float = 1e-6, most: int = 10_000) -> Tensor:
    """The weights with the best mean log score, from log p(y_n | x_n, W_s) of every network and datum.

    Expectation maximisation, w_s <- w_s g_s with g_s = mean_n p_sn / sum_t w_t p_tn, which never lowers the score.
    Since the score is concave, the best is at most max_s g_s - 1 above the present one: the iteration ends when that is
    below the tolerance, or after ``most`` steps.
    Shapes: (samples, data) -> (samples,), double.

    >>> p = torch.tensor([[0.9, 0.9, 0.1], [0.1, 0.1, 0.9]])  # the first is right twice as often
    >>> stacking_weights(p.log())
    tensor([0.7083, 0.2917], dtype=torch.float64)
    """
    if not isinstance(log_density, Tensor) or log_density.ndim != 2 or 0 in log_density.shape:
        received = (
            f"shape {tuple(log_density.shape)}" if isinstance(log_density, Tensor) else type(log_density).__name__
        )
        raise DataError(
            f"log_density: expected a matrix of one row a sample and one column a datum, received {received}"
        )
    if log_density.layout is not torch.strided or log_density.is_meta or log_density.is_complex():
        kind = f"{log_density.layout}, {log_density.dtype}, on {log_density.device}"
        raise DataError(f"log_density: expected a dense matrix of real numbers, received {kind}")
    log_density = log_density.detach().double()
    best = log_density.amax(0)
    if not bool(best.isfinite().all()) or bool(log_density.isnan().any()):
        raise DataError("log_density: expected numbers, and for every datum a network that thinks it possible")
    p = (log_density - best).exp()  # a factor for each datum changes no ratio
    w = torch.full((len(p),), 1 / len(p), dtype=p.dtype, device=p.device)
    for _ in range(most):
        gain = (p / (w @ p)).mean(1)
        if float(gain.max()) - 1 < tolerance:
            break
        w = w * gain
    return w / w.sum()


def fit_weights(
    model: nn.Module, data: Any, samples: int = 32, seed: int = 0, *, task: Any = None, **options: Any
) -> Tensor:
    """The stacking weights of the networks that `predict` draws with this seed, from labelled data it has not seen.

    data: (inputs, targets), or a loader of such batches; take some of the validation data, with many more data than
        samples. options: as `predict` takes them.

    Give the result to ``predict(model, x, samples, seed, weights=...)``. It belongs to these samples: another seed
    draws other networks.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    >>> _ = lb.bayesianize_(model, lb.Patch(3))
    >>> x, y = torch.randn(20, 4), torch.randint(3, (20,))
    >>> weights = fit_weights(model, (x, y), samples=6, task="classification")
    >>> said = lb.predict(model, x, samples=6, task="classification", weights=weights)
    >>> said.probs.shape, round(float(weights.sum()), 6)
    (torch.Size([20, 3]), 1.0)
    """
    if options.get("weights") is not None or options.get("settle") is not None or options.get("mean_only"):
        raise PredictionError(
            "fit_weights: expected no weights, settle or mean_only: all samples are asked every datum"
        )
    if seed is None:
        raise PredictionError(
            "fit_weights: expected a seed, received None: the weights belong to the networks it draws"
        )
    options["keep_samples"] = True

    rows = [
        predict(model, x, samples, seed, task=task, **options).sample_log_prob(y)
        for x, y in labelled(accept(data, model))
    ]
    if not rows:
        raise DataError("expected at least one labelled datum, received none")
    return stacking_weights(torch.cat(rows, 1))
