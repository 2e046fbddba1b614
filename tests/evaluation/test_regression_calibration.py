"""PIT, CRPS, sharpness and interval error: calibrated and miscalibrated forecasts whose answers are known."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Normal

import leanbayes as lb
from leanbayes.errors import EvaluationError
from leanbayes.evaluation import Regression, coverage
from leanbayes.evaluation.metrics.forecast import crps, interval_error, pit_histogram, sharpness
from leanbayes.prediction import mixture

LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9, 0.95)


def gaussian_stream(scale, n=20000, outputs=(), bins=10):
    """A forecast N(m, (scale * std)^2) of targets N(m, std^2), in three batches."""
    generator = torch.Generator().manual_seed(0)
    shape = (n, *outputs)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    std = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5
    y = mean + std * torch.randn(shape, generator=generator, dtype=torch.float64)
    forecast = Normal(mean, scale * std)
    stream = Regression(levels=LEVELS, bins=bins)
    for part in torch.arange(n).chunk(3):
        each = (mean[part], scale * std[part], y[part])
        pieces = (each[0][None], each[1].square()[None], torch.zeros(1, len(part), dtype=torch.float64))
        stream.update(
            y[part],
            mean=each[0],
            pit=Normal(each[0], each[1]).cdf(each[2]),
            crps=mixture.crps(pieces, each[2]),
            variance=each[1].square(),
        )
    return stream, forecast, y


@pytest.mark.parametrize("outputs", [(), (2,)])
def test_a_calibrated_forecast_has_a_flat_pit_and_honest_intervals(outputs):
    from scipy.stats import chisquare

    stream, forecast, y = gaussian_stream(1.0, outputs=outputs)
    count = np.array(stream.curves()["pit"]["count"])
    assert count.sum() == y.numel()
    assert chisquare(count).pvalue > 1e-3
    metrics = stream.compute()
    for q in LEVELS:
        error = 4 * math.sqrt(q * (1 - q) / y.numel())
        assert metrics[f"coverage.{q}"] == pytest.approx(q, abs=error)
    assert metrics["interval_error"] < 0.01
    assert metrics["sharpness"] == pytest.approx(float(forecast.variance.mean().sqrt()), abs=1e-9)
    expected = float((forecast.stddev / math.sqrt(math.pi)).mean())  # E CRPS of N(m, s^2) under itself is s / sqrt(pi)
    assert metrics["crps"] == pytest.approx(expected, abs=4 * float(forecast.stddev.max()) / math.sqrt(y.numel()))


def test_too_sure_is_a_bowl_and_too_unsure_a_hump():
    sure, unsure = (np.array(gaussian_stream(scale)[0].curves()["pit"]["count"]) for scale in (0.5, 2.0))
    assert sure[0] > 2 * sure[4]
    assert unsure[4] > 2 * unsure[0]
    best = gaussian_stream(1.0)[0].compute()
    for scale in (0.5, 2.0):
        other = gaussian_stream(scale)[0].compute()
        assert other["crps"] > best["crps"]  # a proper score
        assert other["interval_error"] > 0.1


def test_coverage_from_the_pit_is_that_of_the_intervals():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 2)).double()
    lb.bayesianize_(model, lb.MeanField(std=0.5))
    x, y = torch.randn(2, 300, 4, dtype=torch.float64)
    y = y[:, :2]
    pred = lb.predict(model, x, samples=20, task="regression")
    by_pit, by_interval = Regression(levels=LEVELS), Regression(levels=LEVELS)
    by_pit.update(y, mean=pred.mean, pit=pred.cdf(y))
    by_interval.update(y, mean=pred.mean, intervals={q: pred.interval(q) for q in LEVELS})
    for q in LEVELS:
        assert by_pit.compute()[f"coverage.{q}"] == pytest.approx(by_interval.compute()[f"coverage.{q}"], abs=1e-12)
        assert by_pit.compute()[f"coverage.{q}"] == pytest.approx(coverage(*pred.interval(q), y))
    assert by_pit.compute()["interval_error"] == by_interval.compute()["interval_error"]
    assert by_pit.curves()["coverage"]["width"] == [None] * len(LEVELS)
    assert "pit" not in by_interval.curves()


def test_the_pure_functions():
    u = torch.tensor([0.0, 0.05, 0.0999, 0.1, 0.95, 1.0, 1.0])
    expected = np.histogram(u.double().numpy(), 20, (0, 1))[0]
    assert pit_histogram(u).tolist() == expected.tolist()
    assert interval_error({0.5: 0.4, 0.9: 1.0}) == pytest.approx(0.1)
    assert sharpness(torch.tensor([[1.0, 4.0], [9.0, 2.0]])) == 2.0
    generator = torch.Generator().manual_seed(0)
    means, variances = torch.randn(7, 5, 2, generator=generator), torch.rand(7, 5, 2, generator=generator)
    y, total = torch.randn(5, 2, generator=generator), 0.0

    def magnitude(m, v):
        return 2 * v**0.5 * math.exp(-m * m / (2 * v)) / math.sqrt(2 * math.pi) + m * math.erf(m / math.sqrt(2 * v))

    for i in range(5):
        for d in range(2):
            m, v = means[:, i, d].double().tolist(), variances[:, i, d].double().tolist()
            total += sum(magnitude(float(y[i, d]) - m[s], v[s]) for s in range(7)) / 7
            total -= sum(magnitude(m[s] - m[t], v[s] + v[t]) for s in range(7) for t in range(7)) / 98
    assert crps(means, variances, y) == pytest.approx(total / 10, abs=1e-9)


def test_points_are_what_the_means_are_of():
    stream, *_ = gaussian_stream(1.0, n=100, outputs=(2,))
    points, metrics = stream.points(), stream.compute()
    assert {len(values) for values in points.values()} == {100}
    assert {values.dtype for values in points.values()} == {torch.float32}
    assert float(points["squared"].mean()) ** 0.5 == pytest.approx(metrics["rmse"], abs=1e-6)
    assert float(points["crps"].mean()) == pytest.approx(metrics["crps"], abs=1e-6)
    assert float(points["coverage.0.9"].mean()) == pytest.approx(metrics["coverage.0.9"], abs=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pit": [0.5, 1.2]}, r"pit\[11\].*\[0, 1\].*1.2"),
        ({"pit": [0.5, math.nan]}, r"pit\[11.*nan"),
        ({"variance": [-1.0, 1.0]}, r"variance\[10\].*0 or more.*-1"),
        ({"crps": [math.inf, 1.0]}, r"crps\[10"),
        ({"crps": [1.0]}, r"crps: expected shape \(2,\)"),
    ],
)
def test_bad_parts_are_named_and_nothing_is_counted(given, message):
    stream = Regression()
    full = {"pit": torch.full((10,), 0.5), "crps": torch.ones(10), "variance": torch.ones(10)}
    stream.update(torch.zeros(10), mean=torch.zeros(10), **full)
    before = stream.compute(), stream.curves()
    two = {name: values[:2] for name, values in full.items()}
    with pytest.raises(EvaluationError, match=message):
        stream.update(
            torch.zeros(2), mean=torch.zeros(2), **two | {name: torch.tensor(values) for name, values in given.items()}
        )
    assert (stream.compute(), stream.curves()) == before
    assert stream.count == len(stream.points()["squared"]) == 10


def test_other_bad_input():
    with pytest.raises(EvaluationError, match=r"variances\[0, 1\]"):
        crps(torch.zeros(1, 2), torch.tensor([[1.0, -1.0]]), torch.zeros(2))
    with pytest.raises(EvaluationError, match="one shape"):
        crps(torch.zeros(1, 2), torch.ones(2, 2), torch.zeros(2))
    with pytest.raises(EvaluationError, match="at least one"):
        sharpness(torch.empty(0))
    with pytest.raises(EvaluationError, match="at least one"):
        interval_error({})
    for bins in (0, True, 2.0):
        with pytest.raises(EvaluationError, match="bins"):
            Regression(bins=bins)


def test_a_single_datum():
    stream = Regression(levels=(0.5,))
    stream.update(torch.zeros(1), mean=torch.zeros(1), pit=torch.tensor([0.5]), crps=torch.zeros(1))
    assert stream.compute() == {"rmse": 0.0, "mae": 0.0, "crps": 0.0, "coverage.0.5": 1.0, "interval_error": 0.5}
