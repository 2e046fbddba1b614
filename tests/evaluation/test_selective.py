"""Selective prediction against plain double loops over data and thresholds."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from leanbayes.errors import EvaluationError
from leanbayes.evaluation.metrics.selective import NEVER, best_aurc, risk_coverage


def loop_curve(confidence, correct):
    """Coverage, risk and threshold of every distinct confidence, the highest first."""
    rows = []
    for threshold in sorted(set(confidence), reverse=True):
        answered = [c for s, c in zip(confidence, correct, strict=True) if s >= threshold]
        rows.append((len(answered) / len(confidence), 1 - sum(answered) / len(answered), threshold))
    return rows


def loop_aurc(confidence, correct):
    """Each datum in turn sets the threshold."""
    total = 0.0
    for own in confidence:
        answered = [c for s, c in zip(confidence, correct, strict=True) if s >= own]
        total += 1 - sum(answered) / len(answered)
    return total / len(confidence)


def loop_best(correct):
    """No two data equally confident, all errors last."""
    ranked, total = sorted(correct, reverse=True), 0.0
    for k in range(1, len(ranked) + 1):
        total += 1 - sum(ranked[:k]) / k
    return total / len(ranked)


def loop_at(confidence, correct, accuracy):
    found = (NEVER, 0.0)
    for coverage, risk, threshold in loop_curve(confidence, correct):
        if risk <= 1 - accuracy + 1e-9:
            found = (threshold, coverage)
    return found


points = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 0.5, 0.9, 0.95, 1.0]), st.integers(0, 1)), min_size=1, max_size=25
)


@settings(max_examples=150, deadline=None)
@given(points, st.sampled_from([0.5, 0.7, 0.9, 0.95, 1.0]))
def test_everything_equals_the_loops(data, accuracy):
    confidence, correct = [s for s, _ in data], [c for _, c in data]
    curve = risk_coverage(torch.tensor(confidence, dtype=torch.float64), torch.tensor(correct))
    rows = list(zip(curve.coverage.tolist(), curve.risk.tolist(), curve.threshold.tolist(), strict=True))
    assert rows == [pytest.approx(row, abs=1e-12) for row in loop_curve(confidence, correct)]
    assert curve.aurc() == pytest.approx(loop_aurc(confidence, correct), abs=1e-9)
    assert curve.eaurc() == pytest.approx(loop_aurc(confidence, correct) - loop_best(correct), abs=1e-9)
    assert curve.eaurc() >= -1e-12
    assert curve.at_accuracy(accuracy) == pytest.approx(loop_at(confidence, correct, accuracy), abs=1e-12)


def test_random_data_and_any_order():
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(300, generator=generator)
    correct = torch.rand(300, generator=generator) < confidence
    curve, order = risk_coverage(confidence, correct), torch.randperm(300, generator=generator)
    assert curve.aurc() == pytest.approx(loop_aurc(confidence.tolist(), correct.tolist()), abs=1e-9)
    again = risk_coverage(confidence[order], correct[order])
    assert torch.equal(curve.risk, again.risk)
    threshold, coverage = curve.at_accuracy(0.8)
    answered = confidence.double() >= threshold
    assert float(answered.double().mean()) == pytest.approx(coverage)
    assert float(correct[answered].double().mean()) >= 0.8 - 1e-9


def test_degenerate_data():
    one = risk_coverage(torch.tensor([0.3]), torch.tensor([True]))
    assert (one.aurc(), one.eaurc(), one.at_accuracy(1.0)[1]) == (0.0, 0.0, 1.0)
    all_wrong = risk_coverage(torch.rand(7), torch.zeros(7))
    assert (all_wrong.aurc(), all_wrong.eaurc()) == pytest.approx((1.0, 0.0))
    assert all_wrong.at_accuracy(0.01) == (NEVER, 0.0)
    assert NEVER > 1
    tied = risk_coverage(torch.ones(4), torch.tensor([1, 1, 1, 0]))
    assert len(tied.risk) == 1
    assert tied.aurc() == 0.25
    assert tied.at_accuracy(0.9) == (NEVER, 0.0)  # the error cannot be told from the rest
    rounded = risk_coverage(torch.tensor([1.0000001, 1.0]), torch.ones(2))  # a softmax may add up to a little more
    assert rounded.aurc() == 0


def test_accuracies_that_binary_fractions_only_nearly_hold():
    for n, wrong, accuracy in ((10, 1, 0.9), (20, 1, 0.95), (100, 1, 0.99), (10, 3, 0.7), (1000, 1, 0.999)):
        correct = torch.tensor([1.0] * (n - wrong) + [0.0] * wrong)
        assert risk_coverage(torch.ones(n), correct).at_accuracy(accuracy) == (1.0, 1.0)


def test_the_best_area_of_many_data():
    for n, wrong in ((1, 0), (5, 5), (1000, 37), (1000, 999)):
        total = sum(j / (n - wrong + j) for j in range(1, wrong + 1)) / n
        assert best_aurc(n, wrong) == pytest.approx(total, abs=1e-12)
    r = 0.03  # the integral that the paper gives, r + (1 - r) ln(1 - r)
    assert best_aurc(10**6, 3 * 10**4) == pytest.approx(r + (1 - r) * math.log(1 - r), abs=1e-6)


def test_a_drawn_curve_is_short_and_keeps_its_ends():
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(5000, generator=generator).double()
    curve = risk_coverage(confidence, torch.rand(5000, generator=generator) < confidence)
    drawn = curve.to_dict(points=50)
    assert len(drawn["risk"]) == len(drawn["coverage"]) == len(drawn["threshold"]) == 50
    assert drawn["coverage"][0] == 1 / 5000
    assert drawn["coverage"][-1] == 1.0
    where = dict(zip(curve.coverage.tolist(), curve.risk.tolist(), strict=True))
    assert all(where[c] == r for c, r in zip(drawn["coverage"], drawn["risk"], strict=True))
    assert max(torch.diff(torch.tensor(drawn["coverage"])).tolist()) < 0.022
    few = risk_coverage(torch.tensor([0.5, 0.6]), torch.ones(2)).to_dict()
    assert few["coverage"] == [0.5, 1.0]


@pytest.mark.parametrize(
    ("confidence", "correct", "message"),
    [
        ([0.1, math.nan], [1, 1], r"confidence\[1\].*nan"),
        ([0.1, 1.5, 0.2], [1, 1, 1], r"confidence\[1\].*\[0, 1\].*1.5"),
        ([0.1, 0.2], [1.0, 0.5], r"correct\[1\].*0 or 1.*0.5"),
        ([0.1, 0.2], [1.0], r"correct: .*\(1,\)"),
        ([[0.1]], [1], r"confidence: .*\(1, 1\)"),
        ([], [], "at least one"),
    ],
)
def test_bad_answers_are_named(confidence, correct, message):
    with pytest.raises(EvaluationError, match=message):
        risk_coverage(torch.tensor(confidence), torch.tensor(correct))


@pytest.mark.parametrize("accuracy", [0.0, 1.01, -1, math.nan, True, "0.9"])
def test_bad_wishes_are_refused(accuracy):
    with pytest.raises(EvaluationError, match="above 0 and of at most 1"):
        risk_coverage(torch.tensor([0.5]), torch.ones(1)).at_accuracy(accuracy)
