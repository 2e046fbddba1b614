"""Random calls of the metrics."""

from __future__ import annotations

import torch

from leanbayes.evaluation.metrics import (
    brier,
    calibration,
    classification,
    classwise,
    forecast,
    human,
    intervals,
    ood as out_of_domain,
    regression,
    segmentation,
    selective,
)

from .calls_values import Target, inputs, labels, several

PROBS = [lambda: torch.softmax(inputs(8, 3), 1)]


def metrics_targets() -> list[Target]:
    classes = {"probs": PROBS, "targets": [labels]}
    ranks = {"inside": [lambda: torch.rand(9)], "outside": [lambda: torch.rand(7)]}
    pair = {"mean": [inputs], "targets": [inputs]}
    found = []
    for module in (classification, calibration, brier, classwise, human):
        for name in ("accuracy", "nll", "ece", "mce", "adaptive_ece", "reliability", "brier", "decomposition",
                     "classwise_ece", "classwise_ace", "classwise_l2"):  # fmt: skip
            if hasattr(module, name) and callable(getattr(module, name)):
                found.append(Target(f"metrics.{name}", getattr(module, name), classes, ("probs", "targets"), 0.15))
    for function in (out_of_domain.auroc, out_of_domain.aupr, out_of_domain.fpr95, out_of_domain.rank_metrics):
        found.append(Target(f"metrics.{function.__name__}", function, ranks, ("inside", "outside"), 0.2))
    for function in (regression.rmse, regression.mae):
        found.append(Target(f"metrics.{function.__name__}", function, pair, ("mean", "targets"), 0.2))
    low = {"lower": [lambda: inputs() - 1], "upper": [lambda: inputs() + 1], "targets": [inputs]}
    found.append(Target("metrics.coverage", regression.coverage, low, tuple(low), 0.2))
    confidence = {"confidence": [lambda: torch.rand(9)], "correct": [lambda: torch.rand(9) > 0.5]}
    found.append(Target("metrics.risk_coverage", selective.risk_coverage, confidence, tuple(confidence), 0.2))
    replicates = {"replicates": several([0.1, 0.2, 0.3]), "level": several(0.9)}
    found.append(Target("metrics.percentile", intervals.percentile, replicates, ("replicates",), 0.2))
    found.append(Target("metrics.votes", human.votes, {"labels": [lambda: torch.zeros(4, 3, dtype=torch.long)],
                        "num_classes": several(2)}, ("labels", "num_classes"), 0.2))  # fmt: skip
    masks = {"samples": [lambda: torch.rand(3, 4, 5, 5) > 0.5], "annotations": [lambda: torch.rand(3, 2, 5, 5) > 0.5]}
    for function in (segmentation.ged, segmentation.hungarian_iou, segmentation.variance_correlation):
        found.append(Target(f"metrics.{function.__name__}", function, masks, tuple(masks), 0.2))
    single = {"masks": [lambda: torch.rand(3, 5, 5) > 0.5], "annotations": masks["annotations"]}
    found.append(Target("metrics.dice", segmentation.dice, single, tuple(single), 0.2))
    found.append(Target("metrics.diversity", segmentation.diversity, {"masks": masks["samples"]}, ("masks",), 0.2))
    pixels = {"probs": [lambda: torch.rand(3, 5, 5)], "annotations": masks["annotations"], "bins": several(5)}
    found.append(Target("metrics.pixel_calibration", segmentation.pixel_calibration, pixels, ("probs", "annotations"),
                        0.2))  # fmt: skip
    pit = {"pit": [lambda: torch.rand(9)], "bins": several(5)}
    found.append(Target("metrics.pit_histogram", forecast.pit_histogram, pit, ("pit",), 0.2))
    return found
