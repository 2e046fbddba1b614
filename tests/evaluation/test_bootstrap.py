"""The bootstrap: weighted replicates against explicitly resampled data, and intervals against what they promise."""

import math
import time

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from leanbayes.errors import EvaluationError
from leanbayes.evaluation import aupr, auroc, fpr95
from leanbayes.evaluation.metrics.bootstrap import (
    _ranks,
    rank_replicates,
    replicates,
    resamplings,
    set_replicates,
)
from leanbayes.evaluation.metrics.calibration import equal_mass, from_bins
from leanbayes.evaluation.metrics.intervals import difference, percentile
from leanbayes.evaluation.metrics.selective import risk_coverage
from leanbayes.evaluation.metrics.streams import Bins

NEAR = {"abs": 1e-9, "nan_ok": True}


def answers(n, seed=0, ties=False):
    """A calibrated classifier's confidences, and whether it was right."""
    generator = torch.Generator().manual_seed(seed)
    confidence = torch.rand(n, generator=generator).sqrt()
    if ties:
        confidence = (confidence * 5).round() / 5
    correct = (torch.rand(n, generator=generator) < confidence).float()
    return {"correct": correct, "confidence": confidence, "nll": torch.rand(n, generator=generator)}


def explicit(points, counts, bins, min_count, accuracies):
    """The metrics of the data set in which each datum stands as often as it was drawn."""
    rows = torch.from_numpy(np.repeat(np.arange(len(counts)), counts.astype(int)))
    sure, right = points["confidence"][rows], points["correct"][rows]
    state = Bins(bins)
    state.update(sure, right)
    width, mass = from_bins(state, min_count), equal_mass(sure, right, bins=bins, min_count=min_count)
    curve = risk_coverage(sure, right)
    return {
        "accuracy": float(right.double().mean()),
        "confidence": float(sure.double().mean()),
        "nll": float(points["nll"][rows].double().mean()),
        "adaptive_ece": equal_mass(sure, right, bins=bins, min_count=0).ece(),
        "aurc": curve.aurc(),
        "eaurc": curve.eaurc(),
        **{f"selective.coverage.{a:g}": curve.at_accuracy(a)[1] for a in accuracies},
    }, {"ece": width.ece(), "mce": width.mce()}, {"ece": mass.ece(), "mce": mass.mce()}  # fmt: skip


@pytest.mark.parametrize(("n", "ties", "min_count"), [(1, False, 0), (2, True, 0), (60, True, 3), (200, False, 6)])
def test_a_weighted_replicate_is_the_metric_of_resampled_data(n, ties, min_count):
    points, wished = answers(n, ties=ties), (0.5, 0.9, 1.0)
    options = {"replicates": 20, "seed": 7, "bins": 7, "min_count": min_count, "accuracies": wished}
    width = replicates(points, **options)
    mass = replicates(points, **options, adaptive=True)
    for r, counts in enumerate(resamplings(n, replicates=20, seed=7)):
        shared, by_width, by_mass = explicit(points, counts, 7, min_count, wished)
        assert {name: values[r] for name, values in width.items()} == pytest.approx(shared | by_width, **NEAR)
        assert {name: values[r] for name, values in mass.items()} == pytest.approx(shared | by_mass, **NEAR)


def test_degenerate_answers():
    sure = replicates({"correct": torch.ones(9), "confidence": torch.ones(9)}, replicates=5, min_count=0)
    assert {name: set(values) for name, values in sure.items()} == {
        "accuracy": {1.0}, "confidence": {1.0}, "ece": {0.0}, "mce": {0.0}, "adaptive_ece": {0.0},
        "aurc": {0.0}, "eaurc": {0.0},
    }  # fmt: skip
    wrong = replicates({"correct": torch.zeros(9), "confidence": torch.zeros(9)}, replicates=5)
    assert set(wrong["aurc"]) == {1.0}
    assert set(wrong["eaurc"]) == {0.0}
    few = replicates({"correct": torch.ones(3), "confidence": torch.tensor([0.1, 0.5, 0.9])}, replicates=5)
    assert all(math.isnan(value) for value in few["ece"])
    assert percentile(few["ece"]) is None


@pytest.mark.parametrize("positive", ["ood", "in"])
@pytest.mark.parametrize("ties", [False, True])
def test_ranks_are_those_of_resampled_data(positive, ties):
    generator = torch.Generator().manual_seed(0)
    inside, outside = torch.rand(50, generator=generator), torch.rand(30, generator=generator) + 0.3
    if ties:
        inside, outside = (inside * 4).round(), (outside * 4).round()
    found = rank_replicates(inside, outside, replicates=25, seed=3, positive=positive)
    here, there = resamplings(50, replicates=25, seed=3), resamplings(30, replicates=25, seed=3, stream=1)
    for r, (a, b) in enumerate(zip(here, there, strict=True)):
        sides = (inside.repeat_interleave(torch.tensor(a).long()), outside.repeat_interleave(torch.tensor(b).long()))
        expected = [metric(*sides, positive=positive) for metric in (auroc, aupr, fpr95)]
        assert [found[name][r] for name in ("auroc", "aupr", "fpr95")] == pytest.approx(expected, abs=1e-9)


def test_weighted_ranks_equal_sklearn_with_any_weights():
    generator = np.random.default_rng(0)
    scores, truth = generator.integers(0, 9, 80).astype(float), generator.integers(0, 2, 80)
    weights = generator.random(80)
    found = _ranks(torch.from_numpy(scores), torch.from_numpy(truth))(weights)
    assert found["auroc"] == pytest.approx(roc_auc_score(truth, scores, sample_weight=weights), abs=1e-9)
    assert found["aupr"] == pytest.approx(average_precision_score(truth, scores, sample_weight=weights), abs=1e-9)


def test_sets_have_the_names_of_their_metrics():
    inside = {"entropy": torch.rand(20), "mutual_information": torch.zeros(20)}
    outside = {"a.b": {"entropy": torch.rand(10), "mutual_information": torch.zeros(10)}}
    found = set_replicates(inside, outside, replicates=3)
    assert set(found) == {f"ood.a.b.entropy.{metric}" for metric in ("auroc", "aupr", "fpr95")}
    assert {len(values) for values in found.values()} == {3}


def test_resampling_is_a_function_of_count_and_seed():
    first, again, other = (list(resamplings(1000, replicates=3, seed=s)) for s in (5, 5, 6))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], next(resamplings(1000, seed=5, stream=1)))
    saved_long_ago = [[1.0, 2.0, 0.0, 1.0], [0.0, 1.0, 1.0, 2.0]]  # results on disk are to stay paired with new ones
    assert [weights.tolist() for weights in resamplings(4, replicates=2)] == saved_long_ago
    next(resamplings(3, seed=-1))
    counts = np.stack(list(resamplings(50, replicates=2000)))  # multinomial: mean 1, variance 1 - 1/n
    assert counts.sum(1).tolist() == [50.0] * 2000
    assert counts.mean(0) == pytest.approx(np.ones(50), abs=5 / math.sqrt(2000))
    assert counts.var() == pytest.approx(1 - 1 / 50, abs=0.03)


def test_whole_data_are_resampled_where_points_share_one():
    """Ten pixels an image, all alike: the interval is as wide as of the images, not sqrt(10) narrower."""
    correct = answers(400)["correct"]
    images = replicates({"correct": correct}, replicates=50)
    datum = torch.arange(400).repeat_interleave(10)
    pixels = replicates({"correct": correct.repeat_interleave(10), "datum": datum}, replicates=50)
    assert pixels["accuracy"] == pytest.approx(images["accuracy"], abs=1e-12)
    narrow = replicates({"correct": correct.repeat_interleave(10)}, replicates=50)
    assert np.std(narrow["accuracy"]) < 0.5 * np.std(images["accuracy"])


def test_the_interval_of_accuracy_covers_as_often_as_it_says():
    """Of 400 data sets of 300 answers, 95 % of the intervals hold the truth: 4 binomial standard errors, and 1.5 % for
    what is known of percentile intervals at this size (those of 200 replicates are a little short)."""
    truth, simulations, n = 0.8, 400, 300
    generator = torch.Generator().manual_seed(0)
    held = 0
    for s in range(simulations):
        correct = (torch.rand(n, generator=generator) < truth).float()
        low, high = percentile(replicates({"correct": correct}, seed=s)["accuracy"])
        held += low <= truth <= high
    assert held / simulations == pytest.approx(0.95, abs=0.015 + 4 * math.sqrt(0.95 * 0.05 / simulations))


def test_the_interval_has_the_width_of_the_binomial():
    points = answers(5000)
    accuracy = float(points["correct"].mean())
    low, high = percentile(replicates(points, replicates=1000)["accuracy"])
    expected = 2 * 1.96 * math.sqrt(accuracy * (1 - accuracy) / 5000)
    assert high - low == pytest.approx(expected, rel=0.1)
    assert low < accuracy < high


def test_pairing_shortens_the_interval_of_a_difference():
    """Two models that are wrong about mostly the same data."""
    generator = torch.Generator().manual_seed(0)
    first = (torch.rand(2000, generator=generator) < 0.9).float()
    second = torch.where(torch.rand(2000, generator=generator) < 0.01, 1 - first, first)
    draws = [replicates({"correct": model})["accuracy"] for model in (first, second)]
    value = float(first.mean() - second.mean())
    paired, apart = (difference(value, *draws, paired=p) for p in (True, False))
    assert paired.paired
    assert not apart.paired
    assert paired.high - paired.low < 0.5 * (apart.high - apart.low)
    assert apart.within_noise
    exact = float((first - second).std()) / math.sqrt(2000)
    assert paired.high - paired.low == pytest.approx(2 * 1.96 * exact, rel=0.25)


def test_an_interval_holds_the_value_it_belongs_to():
    """Resampling makes a small calibration error greater; the interval is moved back to it."""
    points = answers(10000)
    state = Bins(20)
    state.update(points["confidence"], points["correct"])
    value, found = from_bins(state, 6).ece(), replicates(points)["ece"]
    assert np.mean(found) > value
    low, high = percentile(found, value=value)
    assert 0 <= low < value < high
    plain = percentile(found)
    assert high - low <= plain[1] - plain[0] + 1e-12
    steady = replicates(points)["accuracy"]
    assert percentile(steady, value=float(points["correct"].mean())) == percentile(steady)


def test_ten_thousand_points_take_a_second_or_two():
    began = time.process_time()
    replicates(answers(10000))
    assert time.process_time() - began < 4


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ({}, "at least one scalar"),
        ({"correct": torch.empty(0)}, "at least one datum"),
        ({"nll": torch.tensor([1.0, math.nan])}, r"points\['nll'\]\[1\]"),
        ({"nll": torch.ones(2), "brier": torch.ones(3)}, r"points\['brier'\]: expected shape \(2,\)"),
        ({"correct": torch.tensor([1.0, 0.5]), "confidence": torch.ones(2)}, r"correct\[1\]"),
        ({"nll": torch.ones(2), "datum": torch.ones(2)}, "datum"),
    ],
)
def test_bad_points_are_named(points, message):
    with pytest.raises(EvaluationError, match=message):
        replicates(points, replicates=2)


def test_bad_numbers():
    for bad in (0, -1, True, 1.5):
        with pytest.raises(EvaluationError, match="replicates"):
            replicates({"nll": torch.ones(2)}, replicates=bad)
        with pytest.raises(EvaluationError, match="replicates"):
            rank_replicates(torch.ones(2), torch.ones(2), replicates=bad)
    for level in (0, 1, "a", True):
        with pytest.raises(EvaluationError, match="level"):
            percentile([1.0], level)
    with pytest.raises(EvaluationError, match=r"outside\[0\]"):
        rank_replicates(torch.ones(2), torch.tensor([math.nan]))
