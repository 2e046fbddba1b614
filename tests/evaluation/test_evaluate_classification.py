"""Accuracy, NLL, Brier, ECE and MCE against scikit-learn, torchmetrics and plain double loops."""

import dataclasses
import importlib
import math
import os

import numpy as np
import pytest
import torch

from leanbayes.errors import EvaluationError
from leanbayes.evaluation import Classification, accuracy, brier, ece, mce, nll, reliability
from leanbayes.evaluation.metrics.brier import decomposition
from leanbayes.evaluation.metrics.calibration import adaptive_ece
from leanbayes.evaluation.metrics.classwise import classwise_ace, classwise_ece, classwise_l2
from leanbayes.evaluation.metrics.streams import Points


def package(name):
    """An optional package; with LEANBAYES_REQUIRE_EXTRAS=1 its absence is a failure, not a skip."""
    required = os.environ.get("LEANBAYES_REQUIRE_EXTRAS") == "1"
    return importlib.import_module(name) if required else pytest.importorskip(name)


def random_case(seed, rows=300, classes=5, sharpness=3.0):
    generator = torch.Generator().manual_seed(seed)
    probs = (sharpness * torch.randn(rows, classes, generator=generator, dtype=torch.float64)).softmax(1)
    return probs, torch.randint(classes, (rows,), generator=generator)


def loop_bins(probs, targets, bins):
    """Bins by the definition: (r-1)/bins < confidence <= r/bins."""
    found = [[] for _ in range(bins)]
    for row, label in zip(probs.tolist(), targets.tolist(), strict=True):
        confidence = max(row)
        for r in range(bins):
            if r / bins < confidence <= (r + 1) / bins:
                found[r].append((confidence, row.index(confidence) == label))
    return found


def loop_ece_mce(probs, targets, bins=20, smallest=6):
    gaps, total = [], 0.0
    for members in loop_bins(probs, targets, bins):
        if members and len(members) >= smallest:
            gap = abs(sum(right for _, right in members) - sum(c for c, _ in members)) / len(members)
            gaps.append(gap)
            total += gap * len(members) / len(targets)
    return total, max(gaps)


@pytest.mark.parametrize("seed", range(5))
def test_point_metrics_equal_sklearn(seed):
    from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

    probs, targets = random_case(seed)
    p, y = probs.numpy(), targets.numpy()
    assert accuracy(probs, targets) == pytest.approx(accuracy_score(y, p.argmax(1)), abs=1e-12)
    assert nll(probs, targets) == pytest.approx(log_loss(y, p, labels=range(5)), abs=1e-6)
    expected = brier_score_loss(y, p, labels=list(range(5)), scale_by_half=False)
    assert brier(probs, targets) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("bins", "smallest"), [(20, 6), (15, 0), (7, 1), (1, 0)])
def test_calibration_errors_equal_a_double_loop(seed, bins, smallest):
    probs, targets = random_case(seed)
    expected = loop_ece_mce(probs, targets, bins, smallest)
    assert ece(probs, targets, bins=bins, min_count=smallest) == pytest.approx(expected[0], abs=1e-9)
    assert mce(probs, targets, bins=bins, min_count=smallest) == pytest.approx(expected[1], abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_guos_binning_equals_torchmetrics(seed):
    from torchmetrics.functional.classification import multiclass_calibration_error

    probs, targets = random_case(seed)
    for function, norm in ((ece, "l1"), (mce, "max")):
        expected = multiclass_calibration_error(probs, targets, num_classes=5, n_bins=15, norm=norm)
        assert function(probs, targets, bins=15, min_count=0) == pytest.approx(float(expected), abs=1e-6)


def test_bins_of_five_are_dropped_and_of_six_are_not():
    probs = torch.tensor([[0.91, 0.09]] * 6 + [[0.71, 0.29]] * 5, dtype=torch.float64)
    targets = torch.zeros(11, dtype=torch.long)
    assert ece(probs, targets) == pytest.approx(6 / 11 * 0.09)  # n still counts all
    assert mce(probs, targets) == pytest.approx(0.09)
    assert mce(probs, targets, min_count=5) == pytest.approx(0.29)


def test_a_confidence_on_an_edge_belongs_to_the_bin_below():
    probs = torch.tensor([[0.75, 0.25], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    curve = reliability(probs, torch.zeros(3, dtype=torch.long), bins=4, min_count=0)
    assert curve.count == (0, 1, 1, 1)


def loop_equal_mass(confidence, correct, bins):
    """Parts of equal size; equal confidences share a bin."""
    parts = np.array_split(sorted(confidence), min(bins, len(confidence)))
    edges = sorted({part[-1] for part in parts})
    groups, low = [], -1.0
    for high in edges:
        groups.append([(c, r) for c, r in zip(confidence, correct, strict=True) if low < c <= high])
        low = high
    return sum(abs(sum(r for _, r in g) - sum(c for c, _ in g)) for g in groups if g) / len(confidence)


@pytest.mark.parametrize("ties", [False, True])
def test_adaptive_bins_equal_a_double_loop_and_ignore_the_order(ties):
    probs, targets = random_case(3, rows=97)
    if ties:
        probs = (probs * 8).round().clamp(min=0.1)
        probs = probs / probs.sum(1, keepdim=True)
    found = ece(probs, targets, bins=10, min_count=0, adaptive=True)
    right = (probs.argmax(1) == targets).double()
    assert found == pytest.approx(loop_equal_mass(probs.amax(1).tolist(), right.tolist(), 10), abs=1e-9)
    order = torch.randperm(97)
    assert ece(probs[order], targets[order], bins=10, min_count=0, adaptive=True) == pytest.approx(found, abs=1e-12)
    assert adaptive_ece(probs, targets, bins=10) == found


def test_degenerate_inputs():
    certain = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    labels = torch.tensor([0, 1])
    assert (accuracy(certain, labels), nll(certain, labels), brier(certain, labels)) == (1.0, 0.0, 0.0)
    assert ece(certain, labels, min_count=0) == 0.0
    wrong = 1 - labels
    assert nll(certain, wrong) == pytest.approx(-math.log(torch.finfo(torch.float32).tiny))  # finite, by policy
    assert brier(certain, wrong) == 2.0
    assert ece(certain, wrong, min_count=0) == mce(certain, wrong, min_count=0) == 1.0
    assert accuracy(torch.full((1, 4), 0.25), torch.tensor([0])) == 1.0  # ties: the first class
    one_class = torch.tensor([[0.7, 0.3]] * 8)
    assert ece(one_class, torch.zeros(8, dtype=torch.long)) == pytest.approx(0.3, abs=1e-6)


def test_a_single_point_has_no_default_ece_but_says_so():
    with pytest.raises(EvaluationError, match="min_count=0"):
        ece(torch.tensor([[0.7, 0.3]]), torch.tensor([0]))
    stream = Classification()
    stream.update(torch.tensor([[0.7, 0.3]]), torch.tensor([0]))
    assert math.isnan(stream.compute()["ece"])
    assert "undefined" in stream.notes()[0]


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_stream_equals_the_pure_functions(adaptive):
    probs, targets = random_case(1, rows=500)
    stream = Classification(adaptive=adaptive)
    for at in range(0, 500, 64):
        stream.update(probs[at : at + 64].float(), targets[at : at + 64])
    found, probs = stream.compute(), probs.float()
    expected = {"accuracy": accuracy(probs, targets), "nll": nll(probs, targets), "brier": brier(probs, targets)}
    expected |= {"ece": ece(probs, targets, adaptive=adaptive), "mce": mce(probs, targets, adaptive=adaptive)}
    expected["confidence"] = float(probs.double().amax(1).mean())
    expected["adaptive_ece"] = adaptive_ece(probs, targets)
    parts = decomposition(probs, targets)
    expected |= {f"brier.{k}": v for k, v in dataclasses.asdict(parts).items()}
    classwise = (classwise_ece, classwise_ace, classwise_l2)
    expected |= {function.__name__: function(probs, targets) for function in classwise}
    assert found == pytest.approx(expected, abs=1e-9)
    order = ["accuracy", "nll", "brier", "brier.reliability", "brier.resolution", "brier.uncertainty", "confidence"]
    order += ["ece", "mce", "adaptive_ece", "classwise_ece", "classwise_ace", "classwise_l2"]
    assert list(found) == order
    histogram = stream.curves()["confidence"]
    assert sum(histogram["right"]) == round(500 * found["accuracy"])
    assert sum(histogram["right"]) + sum(histogram["wrong"]) == 500


def test_segmentation_folds_and_leaves_out_ignored_pixels():
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(2, 3, 4, 5, generator=generator).softmax(1)
    targets = torch.randint(3, (2, 4, 5), generator=generator)
    folded = np.array([[probs[n, :, i, j].tolist() for i in range(4) for j in range(5)] for n in range(2)])
    flat, labels = torch.tensor(folded).reshape(-1, 3), targets.flatten()
    assert accuracy(probs, targets) == accuracy(flat, labels)
    assert ece(probs, targets[:, None]) == pytest.approx(ece(flat, labels), abs=1e-9)
    targets[0, :2] = 255
    keep = targets.flatten() != 255
    assert nll(probs, targets, ignore_index=255) == pytest.approx(nll(flat[keep], targets.flatten()[keep]), abs=1e-7)


def test_memory_does_not_grow_with_the_points():
    stream = Classification()
    probs, targets = random_case(0, rows=1000)
    for _ in range(50):
        stream.update(probs, targets)
    assert stream.count == 50_000
    assert sum(t.numel() for t in vars(stream.bins).values()) < 100


def test_points_are_what_the_means_are_means_of():
    probs, targets = random_case(2, rows=130)
    stream = Classification()
    for at in range(0, 130, 50):
        stream.update(probs[at : at + 50], targets[at : at + 50])
    points, metrics = stream.points(), stream.compute()
    assert {(name, t.dtype, t.shape, t.device.type) for name, t in points.items()} == {
        (name, torch.float32, (130,), "cpu") for name in ("correct", "confidence", "nll", "brier")
    }
    for point, metric in (("correct", "accuracy"), ("confidence", "confidence"), ("nll", "nll"), ("brier", "brier")):
        assert float(points[point].double().mean()) == pytest.approx(metrics[metric], abs=1e-6)
    assert points["nll"][7] == pytest.approx(-math.log(probs[7, targets[7]]), rel=1e-6)


def test_points_beyond_the_limit_are_a_fair_sample_and_the_same_for_two_models():
    values = torch.arange(100_000).float()
    first, second = Points(limit=5000), Points(limit=5000)
    for at in range(0, 100_000, 777):
        first.update(a=values[at : at + 777], b=-values[at : at + 777])
        second.update(a=2 * values[at : at + 777], b=values[at : at + 777])
    kept = first.compute()
    assert 2000 < len(kept["a"]) == first.kept <= 5000
    assert (first.count, first.chance) == (100_000, 1 / 32)
    assert torch.equal(kept["a"], -kept["b"])
    assert torch.equal(2 * kept["a"], second.compute()["a"])
    # uniform on 0..1e5: a mean of n has standard error 1e5 / sqrt(12 n)
    assert abs(float(kept["a"].mean()) - 5e4) < 4 * 1e5 / math.sqrt(12 * len(kept["a"]))


def test_a_batch_without_any_labelled_position_changes_nothing():
    stream = Classification(ignore_index=255)
    stream.update(torch.full((1, 2, 3), 0.5), torch.full((1, 3), 255))
    stream.update(torch.full((1, 2, 3), 0.5), torch.zeros(1, 3, dtype=torch.long))
    assert stream.compute()["accuracy"] == 1.0
    assert (stream.count, stream.data) == (3, 2)


@pytest.mark.extra
@pytest.mark.parametrize("bins", [10, 15])
def test_top_label_errors_equal_other_packages(bins):
    calibration = package("calibration")  # uncertainty-calibration
    netcal = package("netcal.metrics")
    probs, targets = random_case(5, rows=731)
    p, y = probs.numpy(), targets.numpy()
    found = ece(probs, targets, bins=bins, min_count=0)
    assert found == pytest.approx(calibration.get_ece(p, y, num_bins=bins), abs=1e-9)
    assert found == pytest.approx(netcal.ECE(bins).measure(p, y), abs=1e-6)
    assert mce(probs, targets, bins=bins, min_count=0) == pytest.approx(netcal.MCE(bins).measure(p, y), abs=1e-6)
    assert adaptive_ece(probs, targets, bins=bins) == pytest.approx(calibration.get_ece_em(p, y, num_bins=bins))
