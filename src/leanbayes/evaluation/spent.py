"""The computation per datum of models that choose how much to compute (`Cascade`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..prediction import Predictive


class Spent:
    """Stages and multiply-accumulates of predictions, batch by batch; empty for other models.

    >>> found = Spent()
    >>> found.compute()
    ({}, {})
    """

    def __init__(self) -> None:
        self.stages: list[Tensor] = []
        self.macs: list[Tensor] = []

    def update(self, pred: Predictive) -> None:
        """Add a batch."""
        if pred.stages is not None and pred.macs is not None:
            self.stages.append(pred.stages.cpu())
            self.macs.append(pred.macs.double().cpu())

    def compute(self) -> tuple[dict[str, float], dict[str, Any]]:
        """MACs per datum (mean, median, 95th percentile), and the share of the data that stopped at each stage."""
        if not self.macs:
            return {}, {}
        macs, stages = torch.cat(self.macs), torch.cat(self.stages)
        cost = {"macs": float(macs.mean()), "macs_median": float(macs.median())}
        cost["macs_p95"] = float(macs.sort().values[int(0.95 * (len(macs) - 1))])
        rows = [
            {"stage": k, "share": float((stages == k).double().mean()), "macs": float(macs[stages == k].mean())}
            for k in stages.unique().tolist()
        ]
        return cost, {"stages": rows}
