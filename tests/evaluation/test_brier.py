"""The decomposition of the Brier score: its identity, Murphy's own where it applies, plain loops."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings, strategies as st

from leanbayes.errors import EvaluationError
from leanbayes.evaluation import Classification, brier
from leanbayes.evaluation.metrics.brier import decomposition


def random_case(seed, rows=200, classes=4):
    generator = torch.Generator().manual_seed(seed)
    probs = (3 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)).softmax(1)
    return probs, torch.randint(classes, (rows,), generator=generator)


def loop(probs, targets, bins):
    """Murphy's three terms and the two inside the bins, by their definitions."""
    n, totals = len(targets), [0.0] * 5
    for c in range(probs.shape[1]):
        forecasts, truths = probs[:, c].tolist(), [float(t == c) for t in targets]
        base = sum(truths) / n
        totals[2] += base * (1 - base)
        for r in range(bins):
            inside = [i for i, p in enumerate(forecasts) if r / bins < p <= (r + 1) / bins or (r == 0 and p == 0)]
            if not inside:
                continue
            mean, rate = (sum(values[i] for i in inside) / len(inside) for values in (forecasts, truths))
            totals[0] += len(inside) / n * (mean - rate) ** 2
            totals[1] += len(inside) / n * (rate - base) ** 2
            totals[3] += sum((forecasts[i] - mean) ** 2 for i in inside) / n
            totals[4] += sum((forecasts[i] - mean) * (truths[i] - rate) for i in inside) / n
    return totals


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bins", [1, 10, 20])
def test_terms_equal_a_double_loop(seed, bins):
    probs, targets = random_case(seed)
    found = decomposition(probs, targets, bins=bins)
    reliability, resolution, uncertainty, variance, covariance = loop(probs, targets, bins)
    assert found.reliability == pytest.approx(reliability, abs=1e-9)
    assert found.uncertainty == pytest.approx(uncertainty, abs=1e-9)
    assert found.resolution == pytest.approx(resolution - variance + 2 * covariance, abs=1e-9)


def test_murphys_own_where_all_forecasts_in_a_bin_are_equal():
    """Forecasts of 0.1, 0.5 and 0.9: reliability, resolution and uncertainty by hand, of both classes together."""
    p = torch.tensor([0.1] * 10 + [0.5] * 4 + [0.9] * 6, dtype=torch.float64)
    y = torch.tensor([1] * 2 + [0] * 8 + [1] * 1 + [0] * 3 + [1] * 6)
    found = decomposition(torch.stack([1 - p, p], 1), y, bins=10)
    base = 9 / 20
    assert found.uncertainty == pytest.approx(2 * base * (1 - base))
    assert found.reliability == pytest.approx(2 * (10 * 0.1**2 + 4 * 0.25**2 + 6 * 0.1**2) / 20)
    assert found.resolution == pytest.approx(
        2 * (10 * (0.2 - base) ** 2 + 4 * (0.25 - base) ** 2 + 6 * (1 - base) ** 2) / 20
    )
    assert found.score == pytest.approx(2 * float((p - y).square().mean()))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.integers(2, 4), st.integers(1, 25), st.integers(0, 10**6))
def test_the_identity_holds_on_any_grid_of_probabilities(rows, classes, bins, seed):
    generator = torch.Generator().manual_seed(seed)
    cuts = torch.randint(9, (rows, classes - 1), generator=generator).sort(1).values
    probs = torch.diff(cuts, dim=1, prepend=torch.zeros(rows, 1), append=torch.full((rows, 1), 8)).double() / 8
    targets = torch.randint(classes, (rows,), generator=generator)
    found = decomposition(probs, targets, bins=bins)
    assert found.score == pytest.approx(brier(probs, targets), abs=1e-9)
    assert found.reliability >= 0
    assert 0 <= found.uncertainty < 1


def test_degenerate_inputs():
    certain = torch.eye(2, dtype=torch.float64)[torch.tensor([0, 1, 1, 0])]
    right = dataclasses.astuple(decomposition(certain, torch.tensor([0, 1, 1, 0])))
    assert right == pytest.approx((0.0, 0.5, 0.5))  # knows all there is to know
    wrong = decomposition(certain, torch.tensor([1, 0, 0, 1]))
    assert (wrong.reliability, wrong.score) == pytest.approx((2.0, 2.0))
    one = decomposition(torch.tensor([[0.7, 0.3]], dtype=torch.float64), torch.tensor([0]))
    assert dataclasses.astuple(one) == pytest.approx((0.18, 0.0, 0.0))
    base_rates = decomposition(torch.tensor([[0.75, 0.25]] * 4), torch.tensor([0, 0, 0, 1]))
    assert dataclasses.astuple(base_rates) == pytest.approx((0.0, 0.0, 0.375))  # calibrated, tells nothing apart


def test_the_stream_holds_the_identity_whatever_the_batches():
    probs, targets = random_case(7, rows=500)
    stream = Classification(bins=15)
    for at in range(0, 500, 37):
        stream.update(probs[at : at + 37], targets[at : at + 37])
    found, expected = stream.compute(), decomposition(probs, targets, bins=15)
    parts = [found[f"brier.{name}"] for name in ("reliability", "resolution", "uncertainty")]
    assert parts == pytest.approx(dataclasses.astuple(expected), abs=1e-9)
    assert found["brier"] == pytest.approx(parts[0] - parts[1] + parts[2], abs=1e-9)


def test_bad_input_is_refused():
    with pytest.raises(EvaluationError, match="at least one datum"):
        decomposition(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long))
    with pytest.raises(EvaluationError, match="whole number"):
        decomposition(torch.tensor([[0.5, 0.5]]), torch.tensor([0]), bins=0)
