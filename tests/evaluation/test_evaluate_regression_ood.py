"""Regression and rank metrics against scikit-learn, scipy-free closed forms and plain double loops."""

import math

import pytest
import torch

from leanbayes.errors import EvaluationError
from leanbayes.evaluation import (
    Regression,
    aupr,
    auroc,
    coverage,
    fpr95,
    interval_width,
    log_density,
    mae,
    rmse,
)
from leanbayes.evaluation.metrics.ood import compare_sets, scores
from leanbayes.likelihoods import Custom


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
    expected["interval_error"] = sum(abs(expected[f"coverage.{q}"] - q) for q in (0.5, 0.9)) / 2
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
    yield torch.zeros(40), torch.tensor([1.0] * 19 + [0.0])  # exactly 95 % found before the tie
    yield torch.tensor([1e-300, 0.0]).double(), torch.tensor([2e-300]).double()  # no smaller a difference is a tie
    yield torch.tensor([-5.0, -7.5, -5.0]), torch.tensor([-5.0, -1.0])  # energies are negative
    yield 100 * torch.rand(20, generator=generator), 1000 * torch.rand(20, generator=generator)  # far above 1


@pytest.mark.parametrize(("inside", "outside"), list(cases()))
def test_rank_metrics_equal_double_loops(inside, outside):
    expected = loop_ranks(inside.tolist(), outside.tolist())
    found = (auroc(inside, outside), aupr(inside, outside), fpr95(inside, outside))
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("inside", "outside"), list(cases()))
def test_the_other_side_as_positive(inside, outside):
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


def test_small_variances_are_ranked_all_the_same():
    inside, outside = {"variance": torch.tensor([1e-9, 2e-9])}, {"far": {"variance": torch.tensor([3e-9])}}
    assert compare_sets(inside, outside)[0]["ood.far.variance.auroc"] == 1.0
    same = {"energy": torch.full((3,), -1e4) + 1e-3 * torch.tensor([0.0, 1.0, 2.0])}  # rounding errors of float32
    assert compare_sets(same, {"far": same})[0] == {}


def test_scores_of_every_task():
    import leanbayes as lb

    torch.manual_seed(0)
    model, x = torch.nn.Linear(4, 3), torch.randn(6, 4)
    found = scores(lb.predict(model, x, task="classification"))
    logits = model(x).detach()
    assert torch.allclose(found["energy"], -logits.logsumexp(1), atol=1e-6)
    assert torch.allclose(found["max_prob"], 1 - logits.softmax(1).amax(1), atol=1e-6)
    images = lb.predict(torch.nn.Conv2d(1, 3, 1), torch.randn(2, 1, 4, 5), task="segmentation")
    assert {name: tuple(values.shape) for name, values in scores(images).items()} == dict.fromkeys(found, (2,))
    assert set(scores(lb.predict(model, x, task="regression"))) == {"variance"}
    own = Custom(lambda f, y: f.sum(1), probs=lambda f: f.softmax(1))
    assert "energy" not in scores(lb.predict(model, x, task=own))


def test_bad_scores_are_named():
    good = torch.tensor([0.1, 0.2])
    for inside, outside, message in (
        (torch.tensor([0.0, math.nan]), good, r"inside\[1\]"),
        (good, torch.tensor([0.0, 1.0, math.inf]), r"outside\[2\]"),
        (good, torch.empty(0), "outside: expected at least one"),
        (good, good[None], r"outside: .*\(1, 2\)"),
    ):
        for metric in (auroc, aupr, fpr95):
            with pytest.raises(EvaluationError, match=message):
                metric(inside, outside)
