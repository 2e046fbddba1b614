"""The reported metrics and costs in the order of the tables, with their meanings."""

from __future__ import annotations

from .column import Better, Column, Kind

CALIBRATION, HUMAN, SCALED = "Calibration in detail", "Against human labels", "One temperature"
CONFORMAL, EXPERTS = "Conformal prediction", "Samples against experts"
DECLINE, CORRUPTED, ATTACKED = "Answering only when sure", "Corrupted images", "Under attack"


def _group(group: str, *rows: tuple[str, str, Better, Kind, str]) -> tuple[Column, ...]:
    return tuple(Column(*row, group=group) for row in rows)


METRICS = (
    *_group(
        "",
        ("accuracy", "Accuracy", "higher", "percent", "the share of answers that are right"),
        ("nll", "NLL", "lower", "number", "surprise at the truth, in nats; confident mistakes cost most"),
        ("brier", "Brier", "lower", "number", "squared distance of the probabilities from the truth, 0 to 2"),
        ("ece", "ECE", "lower", "number", "mean gap between how sure it is and how often it is right"),
        ("mce", "MCE", "lower", "number", "the same gap where it is widest"),
        ("confidence", "Confidence", "none", "percent", "how sure it is on average; ideally equal to the accuracy"),
        ("rmse", "RMSE", "lower", "number", "typical error, in the units of the target"),
        ("mae", "MAE", "lower", "number", "mean absolute error, in the units of the target"),
        ("log_density", "Log density", "higher", "number", "log predictive density of the truth, in nats"),
        ("crps", "CRPS", "lower", "number", "distance of the whole predictive from the truth, in the target's units"),
        ("sharpness", "Sharpness", "none", "number", "how wide its predictives are: root of their mean variance"),
        ("interval_error", "Interval error", "lower", "number", "mean gap between promised and observed coverage"),
        ("aurc", "AURC", "lower", "number", "mean error rate over all shares of data that it may answer"),
        ("eaurc", "E-AURC", "lower", "number", "AURC above that of a perfect ordering by confidence"),
    ),
    *_group(
        EXPERTS,
        ("ged.unbiased", "GED", "lower", "number", "distance of its samples from the experts' masks, without bias"),
        ("ged.plug_in", "GED, plug-in", "lower", "number", "as papers have it; falls with the number of samples"),
        ("hungarian_iou", "Matched IoU", "higher", "number", "overlap of samples and experts in the best matching"),
        ("dice", "Dice", "higher", "number", "overlap of its mean map with each expert, on average"),
        ("diversity", "Diversity", "none", "number", "how far apart its samples are; ideally as the experts"),
        ("diversity.experts", "Diversity of experts", "none", "number", "how far apart the experts are (1 - IoU)"),
        (
            "variance_correlation",
            "Variance correlation",
            "higher",
            "number",
            "whether samples differ in the pixels where experts do",
        ),
        ("pixel_ece", "Pixel ECE", "lower", "number", "gap between a pixel's probability and the experts' share"),
    ),
    *_group(
        CALIBRATION,
        ("adaptive_ece", "Adaptive ECE", "lower", "number", "ECE in bins of equally many data"),
        ("classwise_ece", "Class-wise ECE", "lower", "number", "the gap of every class, not of the top one alone"),
        ("classwise_ace", "Class-wise ACE", "lower", "number", "the same in bins of equally many data"),
        ("classwise_l2", "Class-wise L2", "lower", "number", "root mean squared gap, debiased; some call it ECE"),
        ("brier.reliability", "Brier: reliability", "lower", "number", "the part due to miscalibration"),
        ("brier.resolution", "Brier: resolution", "higher", "number", "what telling data apart wins"),
        ("brier.uncertainty", "Brier: uncertainty", "none", "number", "what the data alone would cost"),
    ),
    *_group(
        SCALED,
        ("temperature", "Temperature", "none", "number", "divides the logits; above 1 it was over-confident"),
        ("scaled.nll", "NLL, scaled", "lower", "number", "NLL after temperature scaling"),
        ("scaled.ece", "ECE, scaled", "lower", "number", "ECE after temperature scaling"),
        ("scaled.brier", "Brier, scaled", "lower", "number", "Brier score after temperature scaling"),
    ),
    *_group(
        CONFORMAL,
        ("conformal.coverage", "Coverage", "none", "percent", "how often its sets or intervals hold the truth"),
        ("conformal.size", "Set size", "lower", "number", "classes in a set, on average"),
        ("conformal.width", "Width", "lower", "number", "width of an interval, in the units of the target"),
        ("conformal.worst_class", "Worst class", "higher", "percent", "the coverage of the class that has the least"),
    ),
    *_group(
        HUMAN,
        ("human.cross_entropy", "Cross-entropy", "lower", "number", "surprise at what people answered"),
        ("human.kl", "KL", "lower", "number", "divergence from what people answered, in nats"),
        ("human.distance", "Distance", "lower", "number", "total variation distance from what people answered"),
        ("human.entropy_gap", "Entropy gap", "none", "number", "its doubt minus that of people, in nats"),
    ),
    *_group(
        CORRUPTED,
        ("corruption.accuracy", "Accuracy, corrupted", "higher", "percent", "mean accuracy over all corruptions"),
        ("corruption.nll", "NLL, corrupted", "lower", "number", "mean NLL over all corruptions"),
        ("corruption.ece", "ECE, corrupted", "lower", "number", "mean ECE over all corruptions"),
        ("corruption.clean_accuracy", "Accuracy, clean", "higher", "percent", "of the same images before"),
        ("corruption.mce", "mCE", "lower", "percent", "mean corruption error, relative to the reference"),
        ("corruption.rmce", "Relative mCE", "lower", "percent", "the error that corruption adds, relative to the same"),
    ),
    *_group(
        ATTACKED,
        ("attack.success", "Attack succeeds", "lower", "percent", "the share of data on which the attack succeeds"),
        ("attack.accuracy", "Accuracy, attacked", "higher", "percent", "right answers after the attack"),
        ("attack.entropy", "Entropy, attacked", "none", "number", "its doubt about attacked data, in nats"),
        ("attack.clean_entropy", "Entropy, clean", "none", "number", "its doubt about the same data before"),
    ),
)
COSTS = (
    Column("parameters", "Parameters", "none", "amount", "numbers that are stored; a Gaussian weight has two"),
    Column("active_parameters", "Active", "none", "amount", "parameters still in use, after pruning"),
    Column("macs", "MACs", "none", "amount", "multiply-adds of one forward pass for one datum"),
    Column("macs_median", "MACs, median", "none", "amount", "of half the data no more, at the stages that were asked"),
    Column("macs_p95", "MACs, 95 %", "none", "amount", "of 95 % of the data no more"),
    Column("bytes", "Size", "none", "bytes", "the parameters and buffers in memory"),
    Column("train_seconds", "Training", "none", "seconds", "measured time of the training"),
    Column("latency_one", "One datum", "none", "seconds", "measured time of a prediction for one datum, all samples"),
    Column("latency_batch", "A batch", "none", "seconds", "the same for a batch"),
    Column(
        "predict_seconds", "Per datum", "none", "seconds",
        "measured time of one prediction in the batches of the test data, all samples included",
    ),
)  # fmt: skip
MAIN = (
    "accuracy", "nll", "brier", "ece", "rmse", "log_density", "crps", "coverage.0.9", "width.0.9",
    "corruption.accuracy", "corruption.mce", "attack.success", "ged.unbiased", "hungarian_iou", "dice", "diversity",
    "variance_correlation",
)  # fmt: skip
"""The metrics that the table of a terminal shows."""
RANKS = {
    "auroc": ("AUROC", "higher", "the chance that strange data raise more doubt than test data; 0.5 is a coin toss"),
    "aupr": ("AUPR", "higher", "average precision at finding strange data"),
    "fpr95": ("FPR95", "lower", "the share of test data flagged when 95 % of the strange data are"),
}
SCORES = {
    "entropy": "entropy",
    "mutual_information": "mutual information",
    "max_prob": "1 − max probability",
    "energy": "energy",
    "variance": "variance",
}
