"""Class-wise calibration errors against plain loops and the package that defined one; histograms against all data."""

import importlib
import math
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from leanbayes.errors import EvaluationError
from leanbayes.evaluation import Classification
from leanbayes.evaluation.metrics import columns
from leanbayes.evaluation.metrics.classwise import classwise_ace, classwise_ece, classwise_l2, debiased_l2, l1
from leanbayes.evaluation.metrics.columns import OCTAVES, Columns, cell, equal_mass_table


def package(name):
    """An optional package; with LEANBAYES_REQUIRE_EXTRAS=1 its absence is a failure, not a skip."""
    required = os.environ.get("LEANBAYES_REQUIRE_EXTRAS") == "1"
    return importlib.import_module(name) if required else pytest.importorskip(name)


def random_case(seed, rows=311, classes=4, sharpness=3.0):
    generator = torch.Generator().manual_seed(seed)
    probs = (sharpness * torch.randn(rows, classes, generator=generator, dtype=torch.float64)).softmax(1)
    return probs, torch.randint(classes, (rows,), generator=generator)


def degenerate_cases():
    eye = torch.eye(3, dtype=torch.float64)
    ties = torch.tensor([[0.25, 0.25, 0.5]] * 20 + [[0.5, 0.25, 0.25]] * 13, dtype=torch.float64)
    return {
        "one class only": (random_case(1)[0], torch.zeros(311, dtype=torch.long)),
        "ties": (ties, torch.arange(33) % 3),
        "a single point": (torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64), torch.tensor([1])),
        "fewer points than bins": random_case(2, rows=7),
        "exactly 0 and 1": (eye[torch.arange(60) % 3], torch.arange(60) % 2),
        "all the same": (torch.full((50, 2), 0.5, dtype=torch.float64), torch.arange(50) % 2),
    }


CASES = {**{f"random {s}": random_case(s, sharpness=s + 0.5) for s in range(4)}, **degenerate_cases()}
each_case = pytest.mark.parametrize(("probs", "targets"), CASES.values(), ids=CASES.keys())


def loop_bins_of_equal_width(column, bins):
    found = [[] for _ in range(bins)]
    for i, p in enumerate(column):
        found[next((r for r in range(bins) if r / bins < p <= (r + 1) / bins), 0)].append(i)
    return found


def loop_bins_of_equal_mass(column, bins):
    parts = np.array_split(sorted(column), min(bins, len(column)))
    low, found = -1.0, []
    for high in sorted({part[-1] for part in parts}):
        found.append([i for i, p in enumerate(column) if low < p <= high])
        low = high
    return found


def loop_l1(probs, targets, cut, bins):
    total = 0.0
    for c in range(probs.shape[1]):
        column = probs[:, c].tolist()
        for members in cut(column, bins):
            total += abs(sum(column[i] - float(targets[i] == c) for i in members))
    return total / len(targets) / probs.shape[1]


def loop_l2(probs, targets, bins):
    errors = []
    for c in range(probs.shape[1]):
        column, error = probs[:, c].tolist(), 0.0
        for members in loop_bins_of_equal_mass(column, bins):
            n = len(members)
            if n > 1:
                f, p = sum(int(targets[i] == c) for i in members) / n, sum(column[i] for i in members) / n
                error += n / len(targets) * ((p - f) ** 2 - f * (1 - f) / (n - 1))
        errors.append(max(error, 0.0))
    return math.sqrt(sum(errors) / len(errors))


@each_case
@pytest.mark.parametrize("bins", [1, 7, 20])
def test_errors_equal_a_double_loop(probs, targets, bins):
    expected = loop_l1(probs, targets, loop_bins_of_equal_width, bins)
    assert classwise_ece(probs, targets, bins=bins) == pytest.approx(expected, abs=1e-9)
    expected = loop_l1(probs, targets, loop_bins_of_equal_mass, bins)
    assert classwise_ace(probs, targets, bins=bins) == pytest.approx(expected, abs=1e-9)
    assert classwise_l2(probs, targets, bins=bins) == pytest.approx(loop_l2(probs, targets, bins), abs=1e-9)


@pytest.mark.extra
@each_case
def test_errors_equal_the_package_uncertainty_calibration(probs, targets):
    calibration = package("calibration")
    p, y = probs.numpy(), targets.numpy()
    assert classwise_l2(probs, targets) == pytest.approx(calibration.lower_bound_scaling_ce(p, y), abs=1e-6)
    if not calibration.utils.is_discrete(p):  # then it takes a bin a value
        assert classwise_l2(probs, targets) == pytest.approx(
            calibration.get_calibration_error(p, y, p=2, debias=True, mode="marginal"), abs=1e-6
        )
    for bins in (15, 20):
        static = calibration.get_ece(p, y, num_bins=bins, mode="marginal")
        assert classwise_ece(probs, targets, bins=bins) == pytest.approx(static, abs=1e-6)
        adaptive = calibration.get_ece_em(p, y, num_bins=bins, mode="marginal")
        assert classwise_ace(probs, targets, bins=bins) == pytest.approx(adaptive, abs=1e-6)


@each_case
def test_the_stream_equals_the_pure_functions(probs, targets):
    stream, probs = Classification(), probs.float()
    for at in range(0, len(targets), 64):
        stream.update(probs[at : at + 64], targets[at : at + 64])
    found = stream.compute()
    for function in (classwise_ece, classwise_ace, classwise_l2):
        assert found[function.__name__] == pytest.approx(function(probs, targets), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(2, 4), st.integers(1, 25), st.integers(0, 10**6))
def test_any_grid_of_probabilities_equals_the_loops(rows, classes, bins, seed):
    """Multiples of 1/8: ties, empty bins, zeros, ones and values on the edges of bins."""
    generator = torch.Generator().manual_seed(seed)
    cuts = torch.randint(9, (rows, classes - 1), generator=generator).sort(1).values
    probs = torch.diff(cuts, dim=1, prepend=torch.zeros(rows, 1), append=torch.full((rows, 1), 8)).double() / 8
    targets = torch.randint(classes, (rows,), generator=generator)
    expected = loop_l1(probs, targets, loop_bins_of_equal_width, bins)
    assert classwise_ece(probs, targets, bins=bins) == pytest.approx(expected, abs=1e-9)
    expected = loop_l1(probs, targets, loop_bins_of_equal_mass, bins)
    assert classwise_ace(probs, targets, bins=bins) == pytest.approx(expected, abs=1e-9)
    assert classwise_l2(probs, targets, bins=bins) == pytest.approx(loop_l2(probs, targets, bins), abs=1e-9)


def test_the_order_of_the_data_does_not_matter():
    probs, targets = CASES["ties"]
    order = torch.randperm(len(targets))
    for function in (classwise_ece, classwise_ace, classwise_l2):
        assert function(probs[order], targets[order]) == pytest.approx(function(probs, targets), abs=1e-12)


def test_many_classes_are_worked_through_in_pieces(monkeypatch):
    probs, targets = random_case(0, rows=50, classes=30)
    whole = equal_mass_table(probs, targets, 15)
    monkeypatch.setattr(columns, "WORK", 350)  # seven classes at a time
    for one, other in zip(equal_mass_table(probs, targets, 15), whole, strict=True):
        torch.testing.assert_close(one, other)


def test_cells_are_in_order_and_finer_towards_both_ends():
    p = torch.cat([torch.logspace(-12, -0.302, 5000, dtype=torch.float64), torch.tensor([0.0, 0.5, 1.0])])
    p = torch.cat([p, 1 - p]).sort().values
    for bits in (2, 5, 8):
        where = cell(p, bits)
        assert bool((where.diff() >= 0).all())
        assert (int(where[0]), int(where[-1])) == (0, (2 * OCTAVES << bits) - 1)
        inside = (p > 2.0**-32) & (p < 0.5)
        for number in where[inside].unique():
            values = p[(where == number) & inside]
            assert values.max() / values.min() <= 1 + 2.0**-bits + 1e-6
    assert torch.equal(cell(torch.tensor([-1e-5, 1 + 1e-5]), 5), cell(torch.tensor([0.0, 1.0]), 5))  # within tolerance


@pytest.mark.parametrize(("classes", "rows"), [(2, 60_000), (10, 30_000), (300, 3_000)])
@pytest.mark.parametrize("sharpness", [1.0, 4.0])
@pytest.mark.parametrize("hotter", [1.0, 1.5])
def test_histograms_are_close_to_exact(classes, rows, sharpness, hotter):
    """Within 1 % or 0.0005, as `notes` says, for calibrated (1.0) and over-confident (1.5) models."""
    generator = torch.Generator().manual_seed(0)
    logits = sharpness * torch.randn(rows, classes, generator=generator)
    targets = torch.multinomial((logits / hotter).softmax(1), 1, generator=generator).squeeze(1)
    probs, state = logits.softmax(1), Columns(limit=rows * classes // 3)
    for at in range(0, rows, 5000):
        state.update(probs[at : at + 5000], targets[at : at + 5000])
    assert not state.exact
    assert not state.kept
    assert l1(state.table(20)) == pytest.approx(classwise_ace(probs, targets), rel=0.01, abs=5e-4)
    assert debiased_l2(state.table(15)) == pytest.approx(classwise_l2(probs, targets), rel=0.01, abs=5e-4)
    exact, coarse = equal_mass_table(probs.double(), targets, 15), state.table(15)
    for one, other in zip(exact, coarse, strict=True):  # nothing is lost
        torch.testing.assert_close(one.sum(1), other.sum(1), rtol=1e-6, atol=1e-6)


def test_a_note_says_when_histograms_were_used():
    probs, targets = random_case(0, rows=100)
    stream = Classification()
    stream.update(probs, targets)
    assert not [note for note in stream.notes() if "histogram" in note]
    stream.columns.limit = 500
    stream.update(probs, targets)
    assert [note for note in stream.notes() if "histograms of 16384 cells" in note]


def test_pixels_fold_and_bad_input_is_refused():
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(2, 3, 4, 5, generator=generator).softmax(1)
    targets = torch.randint(3, (2, 4, 5), generator=generator)
    targets[0, 0] = 255
    flat, labels = probs.movedim(1, -1).reshape(-1, 3), targets.flatten()
    for function in (classwise_ece, classwise_ace, classwise_l2):
        expected = function(flat[labels != 255], labels[labels != 255])
        assert function(probs, targets, ignore_index=255) == pytest.approx(expected, abs=1e-12)
        with pytest.raises(EvaluationError, match=r"targets\[0, 0, 0\].*received 255"):
            function(probs, targets)
        with pytest.raises(EvaluationError, match="whole number"):
            function(probs, targets, bins=0)
        with pytest.raises(EvaluationError, match=f"{function.__name__}: expected at least one datum"):
            function(flat[:0], labels[:0])
