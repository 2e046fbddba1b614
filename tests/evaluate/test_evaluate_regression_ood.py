"""Regression and rank metrics against scikit-learn, scipy-free closed forms and plain double loops."""

import math

import pytest
import torch

from leanbayes.evaluate import Regression, aupr, auroc, coverage, fpr95, interval_width, log_density, mae, rmse
from leanbayes.evaluate.ood import compare_sets


def test_errors_equal_sklearn():
    from sklearn.metrics import mean_absolute_error, root_mean_squared_error

    generator = torch.Generator().manual_seed(0)
    m, y = torch.randn(2, 50, 3, generator=generator, dtype=torch.float64)
    assert mae(m, y) == pytest.approx(mean_absolute_error(y.numpy(), m.numpy()), abs=1e-9)
    flat = root_mean_squared_error(y.flatten().numpy(), m.flatten().numpy())
    assert rmse(m, y) == pytest.approx(flat, abs=1e-9)
    assert rmse(m[:, :1], y[:, 0]) == rmse(m[:, 0], y[:, 0])  # (N, 1) against (N,) is not an outer product


def test_intervals_equal_a_loop():
    generator = torch.Generator().manual_seed(1)
    y, low = torch.randn(2, 80, generator=generator)
    high = low + torch.rand(80, generator=generator)
    inside = sum(a <= b <= c for a, b, c in zip(low.tolist(), y.tolist(), high.tolist(), strict=True)) / 80
    assert coverage(low, high, y) == pytest.approx(inside)
    widths = [c - a for a, c in zip(low.tolist(), high.tolist(), strict=True)]
    assert interval_width(low, high) == pytest.approx(sum(widths) / 80, abs=1e-6)
    assert coverage(y, y, y) == 1.0  # a point interval on the truth covers it


def test_the_stream_equals_the_pure_functions():
    generator = torch.Generator().manual_seed(2)
    y, m = torch.randn(2, 100, 2, generator=generator)
    normal = torch.distributions.Normal(m, 1.5)
    log_prob = normal.log_prob(y).sum(1)
    ends = {q: (normal.icdf(torch.tensor((1 - q) / 2)), normal.icdf(torch.tensor((1 + q) / 2))) for q in (0.5, 0.9)}
    stream = Regression(levels=(0.5, 0.9))
    for part in (slice(0, 33), slice(33, 66), slice(66, 100)):
        intervals = {q: (low[part], high[part]) for q, (low, high) in ends.items()}
        stream.update(y[part], mean=m[part], log_prob=log_prob[part], intervals=intervals)
    expected = {"rmse": rmse(m, y), "mae": mae(m, y), "log_density": log_density(log_prob)}
    for q, (low, high) in ends.items():
        expected |= {f"coverage.{q}": coverage(low, high, y), f"width.{q}": interval_width(low, high)}
    assert stream.compute() == pytest.approx(expected, abs=1e-6)
    assert stream.curves()["coverage"]["nominal"] == [0.5, 0.9]


def loop_ranks(inside, outside):
    """AUROC by all pairs; average precision and FPR95 by all thresholds."""
    pairs = sum((o > i) + (o == i) / 2 for o in outside for i in inside) / (len(inside) * len(outside))
    precision, recalled, false = 0.0, 0.0, math.inf
    for threshold in sorted({*inside, *outside}, reverse=True):
        hits, misses = sum(o >= threshold for o in outside), sum(i >= threshold for i in inside)
        recall = hits / len(outside)
        precision += (recall - recalled) * hits / (hits + misses)
        recalled = recall
        if recall >= 0.95:
            false = min(false, misses / len(inside))
    return pairs, precision, false


def cases():
    generator = torch.Generator().manual_seed(3)
    yield torch.rand(40, generator=generator), torch.rand(30, generator=generator) + 0.3
    yield torch.randint(4, (50,), generator=generator).float(), torch.randint(2, 6, (60,), generator=generator).float()
    yield torch.zeros(5), torch.zeros(3)  # all tied
    yield torch.zeros(1), torch.ones(1)
    yield torch.ones(2), torch.zeros(3)  # the wrong way round
    yield 100 * torch.rand(20, generator=generator), 1000 * torch.rand(20, generator=generator)  # far above 1


@pytest.mark.parametrize(("inside", "outside"), list(cases()))
def test_rank_metrics_equal_double_loops(inside, outside):
    expected = loop_ranks(inside.tolist(), outside.tolist())
    found = (auroc(inside, outside), aupr(inside, outside), fpr95(inside, outside))
    assert found == pytest.approx(expected, abs=1e-6)


def test_the_other_side_as_positive():
    inside, outside = torch.tensor([0.1, 0.5, 0.3, 0.7]), torch.tensor([0.4, 0.9, 0.8])
    expected = loop_ranks([-s for s in outside.tolist()], [-s for s in inside.tolist()])
    options = {"positive": "in"}
    found = (auroc(inside, outside, **options), aupr(inside, outside, **options), fpr95(inside, outside, **options))
    assert found == pytest.approx(expected, abs=1e-6)


def test_a_constant_score_is_left_out():
    inside = {"entropy": torch.rand(20), "mutual_information": 1e-9 * torch.rand(20)}
    outside = {"far": {"entropy": torch.rand(10), "mutual_information": 1e-9 * torch.rand(10)}}
    metrics, histograms = compare_sets(inside, outside)
    assert set(metrics) == {"ood.far.entropy.auroc", "ood.far.entropy.aupr", "ood.far.entropy.fpr95"}
    assert sum(histograms[0]["inside"]) == 20
    assert sum(histograms[0]["outside"]) == 10
