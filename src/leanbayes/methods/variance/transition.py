"""`Transition`: record the phase transition of a variance network during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ... import batches, checks
from ...batches import accept, stream
from ...compress.kappa import kappa
from ...compress.prune import log_alpha
from ...errors import DataError
from ...eval_mode import undisturbed
from ...layers.bayes import BayesLayer
from ...prediction import predict
from ...sampling import has_means, using
from ...training.callbacks import Callback, State

THRESHOLD = 10**1.5
"""kappa_0 of figure 3: log10 kappa = 1.5."""
FLOOR = -25.0
"""log10 of what stands for a kappa of 0 in the histograms, as in figure 3."""
EDGES = tuple(FLOOR + 0.5 * number for number in range(77))  # to 13


class Transition(Callback):
    """Records the three procedures, log alpha and kappa through training (variance networks, figures 1, 3 and 4).

    loader: batches of (inputs, labels), or such a pair of tensors, to measure accuracy.
    every: epochs between records; the last epoch is always recorded. samples: of the ensemble.
    kappa: data for kappa, a loader or a pair of tensors; None leaves it out, since it takes more time than the rest.
    threshold: kappa_0, above which weights are counted. layers: names of the layers whose kappa is recorded, by default
    all random ones. options: further arguments of `leanbayes.compress.kappa.kappa`, such as num_data.

    `rows` is plain JSON, a dictionary per record: epoch (counting from 1), step; the accuracies "deterministic" (None
    if a layer has no mean), "stochastic" (of one network, averaged over the samples) and "ensemble"; "log_alpha", the
    median of each layer that has one; and with kappa "kappa": {tensor: {edges, counts, above, total}}, a histogram of
    log10 kappa. The accuracies are also in the rows of `fit`'s history. Checkpoints keep the records.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 3))
    >>> _ = lb.bayesianize_(model, {"0": lb.Variance(log_alpha=3.0)})
    >>> x, y = torch.randn(32, 4), torch.randint(3, (32,))
    >>> watch = Transition((x, y), kappa=(x, y))
    >>> _ = lb.fit(model, (x, y), epochs=2, callbacks=[watch], progress=False)
    >>> [row["epoch"] for row in watch.rows], round(watch.rows[0]["log_alpha"]["0"], 1)
    ([1, 2], 3.0)
    >>> watch.rows[-1]["kappa"]["0.weight"]["total"]
    32
    """

    def __init__(
        self,
        loader: Any,
        *,
        every: int = 1,
        samples: int = 10,
        kappa: Any = None,
        threshold: float = THRESHOLD,
        layers: Sequence[str] | None = None,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        every, samples = checks.whole_number("every", every), checks.whole_number("samples", samples)
        threshold, seed = checks.number("Transition.threshold", threshold, above=0), checks.seed(seed)
        loader = batches.accept(loader, name="loader")
        kappa = None if kappa is None else batches.accept(kappa, name="kappa")
        if options is not None:
            checks.instance("options", options, Mapping, "options of kappa by name")
        self.loader, self.every, self.samples, self.seed = loader, every, samples, seed
        self.kappa, self.threshold, self.layers = kappa, float(threshold), layers
        self.options = dict(options or {})
        self.rows: list[dict[str, Any]] = []

    def fit_start(self, state: State) -> None:
        self.rows = []

    def epoch_end(self, state: State) -> None:
        if (state.epoch + 1) % self.every and state.step != state.total_steps:
            return
        row = {"epoch": state.epoch + 1, "step": state.step, **self.record(state.model)}
        self.rows.append(row)
        if state.row is not None:
            state.row |= {k: v for k, v in row.items() if isinstance(v, float)}

    def record(self, model: nn.Module) -> dict[str, Any]:
        """The record of a model in its present state."""
        found: dict[str, Any] = accuracies(model, self.loader, samples=self.samples, seed=self.seed)
        found["log_alpha"] = log_alphas(model)
        if self.kappa is not None:
            options = {"task": "classification", "layers": self.layers, "seed": self.seed, "progress": False}
            scores = kappa(model, self.kappa, **{**options, **self.options})
            found["kappa"] = {name: histogram(values, self.threshold) for name, values in scores.items()}
        return found

    def to_dict(self) -> dict[str, Any]:
        """The records as JSON, which the plots of `leanbayes.recipes.figures.transition` read."""
        return {"threshold": self.threshold, "samples": self.samples, "rows": self.rows}

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = list(state["rows"])


def accuracies(model: nn.Module, loader: Any, *, samples: int = 10, seed: int = 0) -> dict[str, float | None]:
    """Accuracy of the three procedures of section 3: at the means, of one sample, and of the ensemble.

    "stochastic" is the average over the samples of the ensemble. "deterministic" is None if a layer has no mean.

    >>> model = nn.Linear(2, 2)
    >>> accuracies(model, (torch.eye(2), model(torch.eye(2)).argmax(1)), samples=1)
    {'deterministic': 1.0, 'stochastic': 1.0, 'ensemble': 1.0}
    """
    means = has_means(model)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    hits, count = torch.zeros(3, dtype=torch.double), 0
    for batch in stream(accept(loader, model, name="loader")):
        inputs, labels = batches.split(batch)
        if not isinstance(labels, Tensor) or labels.ndim != 1:
            raise DataError("Transition: expected batches of (inputs, labels) with a label a datum; it counts hits")
        labels = labels.to(device)
        if means:
            # not by `predict`, which would warn of a phase transition
            with undisturbed(model), using(mean_only=True):
                output = batches.output_tensor(batches.call(model, batches.to(inputs, device)))
            hits[0] += _hits(output, labels)
        prediction = predict(model, inputs, samples, seed, task="classification", keep_samples=True)
        hits[1] += sum(_hits(one, labels) for one in prediction.samples) / len(prediction.samples)
        hits[2] += _hits(prediction.probs, labels)
        count += len(labels)
    if not count:
        raise DataError("Transition: expected at least one datum to measure accuracy on, received none")
    deterministic, one, ensemble = (hits / count).tolist()
    return {"deterministic": deterministic if means else None, "stochastic": one, "ensemble": ensemble}


def log_alphas(model: nn.Module) -> dict[str, float]:
    """The median log alpha of the weights of every random layer that has means: log(variance / mean^2).

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8))
    >>> _ = lb.bayesianize_(model, lb.Variance(log_alpha=2.0))
    >>> log_alphas(model)
    {'0': 2.0}
    """
    found = {}
    with torch.no_grad():
        for name, layer in model.named_modules():
            q = layer.posterior("weight") if isinstance(layer, BayesLayer) else None
            if q is not None and q.has_mean:
                found[name] = float(log_alpha(q).median())
    return found


def histogram(kappa: Tensor, threshold: float = THRESHOLD) -> dict[str, Any]:
    """log10 kappa in bins of half a decade from 1e-25, which stands for 0 as in figure 3, to 1e13.

    Returns edges, counts, how many are above the threshold, and how many there are.

    >>> found = histogram(torch.tensor([0.0, 2.0, 100.0]))
    >>> found["above"], found["total"], found["counts"][0]
    (1, 3, 1)
    """
    logs = kappa.detach().double().flatten().clamp_min(10.0**FLOOR).log10().clamp(FLOOR, EDGES[-1])
    counts = torch.histc(logs.cpu(), len(EDGES) - 1, FLOOR, EDGES[-1]).long().tolist()
    above = int((kappa > threshold).sum())
    return {"edges": list(EDGES), "counts": counts, "above": above, "total": kappa.numel()}


def _hits(scores: Tensor, labels: Tensor) -> float:
    classes = (scores > 0).long().squeeze(-1) if scores.shape[-1] == 1 else scores.argmax(-1)
    return float((classes == labels).sum())
