"""Conformal sets and intervals: against brute force and MAPIE, their coverage over many splits, and on their way."""

import math
from fractions import Fraction

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import config
from leanbayes.conformal.config import Conformal, least_count, rank
from leanbayes.conformal.scores import class_scores, class_sets, interval, residual_scores, threshold, uniform_of
from leanbayes.convert import record
from leanbayes.errors import ConfigError, EvaluationError, LeanBayesWarning, PredictionError

from .cases import _part, case, forecasts


def brute_score(p, label, score, lam, k_reg, u):
    """By the definition, one class of one datum: classes before it, itself, and the penalty of its rank."""
    if score == "lac":
        return 1 - p[label]
    order = sorted(range(len(p)), key=lambda c: (-p[c], c))
    place = order.index(label)
    total = sum(p[c] for c in order[:place]) + (1 - u) * p[label]
    return total + (lam * max(0, place + 1 - k_reg) if score == "raps" else 0.0)


def brute_sets(cal, cal_labels, test, coverage, score, lam=0.05, k_reg=2, u=None, v=None, conditional=False):
    """Sets by sorting lists; u and v: the random numbers of the calibration and the test data."""
    u, v = u if u is not None else [0.0] * len(cal), v if v is not None else [0.0] * len(test)
    scores = [brute_score(p, y, score, lam, k_reg, a) for p, y, a in zip(cal, cal_labels, u, strict=True)]
    classes = len(test[0])
    limits = []
    for label in range(classes):
        own = sorted(s for s, y in zip(scores, cal_labels, strict=True) if not conditional or y == label)
        place = math.ceil(Fraction(len(own) + 1) * Fraction(str(coverage)))
        limits.append(own[place - 1] if place <= len(own) else math.inf)
    return [
        [brute_score(p, label, score, lam, k_reg, a) <= limits[label] + 1e-12 for label in range(classes)]
        for p, a in zip(test, v, strict=True)
    ]


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("coverage", [0.5, 0.9])
@pytest.mark.parametrize(
    ("score", "randomized"), [("lac", False), ("aps", False), ("raps", False), ("aps", True), ("raps", True)]
)
def test_sets_are_those_of_brute_force(score, randomized, coverage, conditional):
    """From predict to sets, against a loop over lists."""
    logits, labels = case(400)
    model = nn.Identity()
    lb.conformalize_(
        model, (logits[:300], labels[:300]), coverage, score=score, class_conditional=conditional,
        randomized=randomized, allow_empty=True, lam=0.05, k_reg=2, task="classification", progress=False,
    )  # fmt: skip
    found = lb.predict(model, logits[300:]).prediction_sets
    probs = lb.predict(model, logits).probs.double()
    u = uniform_of(probs.float()).tolist() if randomized else [0.0] * 400
    wanted = brute_sets(
        probs[:300].tolist(), labels[:300].tolist(), probs[300:].tolist(), coverage, score,
        u=u[:300], v=u[300:], conditional=conditional,
    )  # fmt: skip
    assert found.tolist() == wanted
    assert 0.02 < found.double().mean() < 0.98  # neither all nor nothing


@pytest.mark.parametrize(("score", "randomized"), [("lac", False), ("aps", False), ("aps", True), ("raps", True)])
def test_coverage_over_a_thousand_splits_is_within_binomial_bounds(score, randomized):
    """Over splits of exchangeable data the coverage is rank / (n + 1) exactly, where no scores are equal."""
    n, m, splits, coverage = 47, 20, 1000, 0.9
    logits, labels = case(200_000, 6, seed=3)
    probs = logits.softmax(1)
    uniform = uniform_of(probs) if randomized else None
    scores = class_scores(probs, score, lam=0.05, k_reg=2, uniform=uniform).gather(1, labels[:, None]).squeeze(1)
    generator = torch.Generator().manual_seed(1)
    covered = 0
    for _ in range(splits):
        rows = torch.randint(len(scores), (n + m,), generator=generator)
        covered += int((scores[rows[n:]] <= threshold(scores[rows[:n]], coverage)).sum())
    expected = rank(n, coverage) / (n + 1)  # 44 / 48: at least 0.9, at most 0.9 + 1 / 48
    assert coverage <= expected <= coverage + 1 / (n + 1)
    # The share of m test data below a threshold from n is beta-binomial: wider than a binomial over all of them.
    a = rank(n, coverage)
    spread = a * (n + 1 - a) * (n + 1 + m) / ((n + 1) ** 2 * (n + 2) * m)
    assert abs(covered / (splits * m) - expected) < 4 * math.sqrt(spread / splits)


@pytest.mark.parametrize("score", ["normalized", "absolute", "cqr"])
def test_intervals_cover_over_a_thousand_splits(score):
    """Of a regression whose own noise level is wrong by a factor of three."""
    n, m, splits, coverage = 39, 20, 1000, 0.8
    generator = torch.Generator().manual_seed(2)
    mean = torch.randn(100_000, generator=generator)
    std = 0.2 + mean.abs()
    y = mean + std * torch.randn(100_000, generator=generator)
    spread = (mean - std / 3, mean + std / 3) if score == "cqr" else std / 3
    scores, covered = residual_scores(y, mean, spread, score), 0
    for _ in range(splits):
        rows = torch.randint(len(y), (n + m,), generator=generator)
        cal, new = rows[:n], rows[n:]
        found = Conformal(coverage, score, (threshold(scores[cal], coverage),), (n,))
        chosen = tuple(part[new] for part in spread) if isinstance(spread, tuple) else spread[new]
        low, high = interval(mean[new], chosen, found)
        covered += int(((low <= y[new]) & (y[new] <= high)).sum())
    a = rank(n, coverage)
    variance = a * (n + 1 - a) * (n + 1 + m) / ((n + 1) ** 2 * (n + 2) * m)
    assert abs(covered / (splits * m) - a / (n + 1)) < 4 * math.sqrt(variance / splits)


def test_each_class_is_covered_where_each_has_a_threshold():
    """A model that never believes in class 0 covers it by class-conditional thresholds, and not by one for all."""
    logits, labels = case(6000, 3)
    spoilt = logits - torch.tensor([4.0, 0.0, 0.0])
    model = nn.Identity()
    shares = {}
    for conditional in (False, True):
        lb.conformalize_(
            model, (spoilt[:3000], labels[:3000]), 0.9, class_conditional=conditional, task="classification",
            progress=False,
        )  # fmt: skip
        sets = lb.predict(model, spoilt[3000:]).prediction_sets
        held = sets.gather(1, labels[3000:, None]).squeeze(1)
        shares[conditional] = [float(held[labels[3000:] == c].double().mean()) for c in range(3)]
    assert shares[False][0] < 0.8
    assert min(shares[True]) > 0.9 - 4 * math.sqrt(0.09 / 900)


def test_equal_scores_are_counted_in():
    """A model with two answers only: all scores tie, and the sets cover more, never less."""
    logits = torch.tensor([[3.0, 0.0], [0.0, 3.0]]).repeat(50, 1)
    labels = torch.tensor([0, 1]).repeat(50)
    model = nn.Identity()
    found = lb.conformalize_(model, (logits, labels), 0.9, task="classification", progress=False)
    assert bool(lb.predict(model, logits).prediction_sets.gather(1, labels[:, None]).all())
    assert found.thresholds[0] == pytest.approx(1 - torch.tensor([3.0, 0.0]).softmax(0)[0].item(), abs=1e-6)


@pytest.mark.parametrize("coverage", [0.55, 0.7, 0.9, 0.95, 0.99])
def test_ranks_are_exact(coverage):
    """No rounding error of a float moves a rank; the least number of data is the first that has one."""
    share = Fraction(str(coverage))
    for n in range(1, 250):
        place = math.ceil((n + 1) * share)
        assert rank(n, coverage) == (place if place <= n else None)
    assert rank(least_count(coverage), coverage) is not None
    assert rank(least_count(coverage) - 1, coverage) is None


def test_too_few_data_are_refused_and_rare_classes_said():
    """No threshold at all is an error; a class without one is in every set, and a warning says which."""
    logits, labels = case(8, 2)
    model = nn.Identity()
    with pytest.raises(EvaluationError, match=r"expected at least 9 data for a coverage of 0.9, received 8"):
        lb.conformalize_(model, (logits, labels), 0.9, task="classification", progress=False)
    assert record.get(model) is None or record.get(model).conformal is None
    logits, labels = case(400, 3)
    rare = torch.cat([(labels != 2).nonzero().flatten(), (labels == 2).nonzero().flatten()[:4]])
    with pytest.warns(LeanBayesWarning, match="1 of 3 classes have fewer than 9 data.*in every set: 2"):
        lb.conformalize_(
            model, (logits[rare], labels[rare]), 0.9, class_conditional=True, task="classification", progress=False
        )
    assert bool(lb.predict(model, logits).prediction_sets[:, 2].all())


def test_sets_are_not_empty_unless_asked_for():
    """A sure and right model would have empty sets at a coverage below its accuracy."""
    logits, labels = case(2000, 4, scale=8.0)
    model, sizes = nn.Identity(), {}
    for allow in (True, False):
        lb.conformalize_(
            model, (logits[:1000], labels[:1000]), 0.5, allow_empty=allow, task="classification", progress=False
        )
        sizes[allow] = lb.predict(model, logits[1000:]).prediction_sets.sum(1)
    assert int(sizes[True].min()) == 0
    assert int(sizes[False].min()) == 1
    assert bool((sizes[False] == sizes[True].clamp_min(1)).all())


def small(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))


def fitted(task="classification"):
    """A Bayesian network fitted to a few data, and data to hold out."""
    model = small()
    x = torch.randn(300, 4)
    y = x[:, :3].argmax(1) if task == "classification" else x[:, :3] + 0.3 * torch.randn(300, 3)
    lb.bayesianize_(model, lb.MeanField())
    lb.fit(model, (x, y), task=task, epochs=20, lr=1e-2, progress=False)
    return model, x, y


def test_they_are_saved_loaded_extracted_and_evaluated(tmp_path):
    """The thresholds go where a temperature goes; another number of samples is said."""
    model, x, y = fitted()
    found = lb.conformalize_(model, (x[:150], y[:150]), 0.9, score="aps", samples=8, progress=False)
    sets = lb.predict(model, x[150:], samples=8).prediction_sets
    lb.save(model, tmp_path / "m.safetensors")
    again = lb.load(tmp_path / "m.safetensors", into=small(1))
    assert record.get(again).conformal == found
    assert torch.equal(lb.predict(again, x[150:], samples=8).prediction_sets, sets)
    result = lb.evaluate(again, (x[150:], y[150:]), samples=8, replicates=0, progress=False)
    held = sets.gather(1, y[150:, None]).double().mean()
    assert result["conformal.coverage"] == pytest.approx(float(held))
    assert result["conformal.size"] == pytest.approx(float(sets.sum(1).double().mean()))
    assert [row["class"] for row in result.curves["conformal"]["classes"]] == ["0", "1", "2"]
    assert "Conformal prediction" in str(result)
    plain = lb.extract(again)
    with pytest.warns(LeanBayesWarning, match="averaged 8 samples and this prediction 1"):
        lb.predict(plain, x).prediction_sets
    lb.conformalize_(plain, (x[:150], y[:150]), progress=False)
    assert lb.predict(plain, x).prediction_sets.shape == (300, 3)


@pytest.mark.parametrize("score", ["normalized", "absolute", "cqr"])
def test_intervals_of_a_regression_with_several_outputs(score, tmp_path):
    """Every output has a threshold of its own; predict gives the interval of each."""
    model, x, y = fitted("regression")
    found = lb.conformalize_(model, (x[:200], y[:200]), 0.8, score=score, samples=4, progress=False)
    assert len(found.thresholds) == 3
    pred = lb.predict(model, x[200:], samples=4)
    low, high = pred.prediction_intervals
    assert low.shape == (100, 3)
    inside = ((low <= y[200:]) & (y[200:] <= high)).double().mean(0)
    assert float(inside.min()) > 0.8 - 4 * math.sqrt(0.16 * (1 / 100 + 1 / 200))
    result = lb.evaluate(model, (x[200:], y[200:]), samples=4, replicates=0, progress=False)
    assert result["conformal.coverage"] == pytest.approx(float(inside.mean()))
    assert result["conformal.width"] == pytest.approx(float((high - low).double().mean()), rel=1e-5)
    lb.save(model, tmp_path / "m.safetensors")
    again = lb.load(tmp_path / "m.safetensors", into=small(1))
    assert torch.equal(lb.predict(again, x[200:], samples=4).prediction_intervals[0], low)


def test_thresholds_that_hold_no_more_are_not_used():
    """After another temperature or more training there are none, and the message says what to call."""
    model, x, y = fitted()
    with pytest.raises(PredictionError, match=r"call lb.conformalize_"):
        lb.predict(model, x).prediction_sets
    lb.conformalize_(model, (x, y), progress=False)
    lb.calibrate_(model, (x, y), progress=False)
    with pytest.raises(PredictionError, match="again after training it or changing its temperature"):
        lb.predict(model, x).prediction_sets
    lb.conformalize_(model, (x, y), progress=False)
    lb.fit(model, (x, y), task="classification", epochs=1, progress=False)
    with pytest.raises(PredictionError, match="conformalize_"):
        lb.predict(model, x).prediction_sets


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coverage": 1.0}, "coverage: expected a finite number above 0 and below 1"),
        ({"score": "cqr"}, "score: expected one of 'lac', 'aps', 'raps', received 'cqr'"),
        ({"randomized": True}, "randomized: expected score='aps' or 'raps', received 'lac'"),
        ({"lam": -1}, "lam: expected a finite number of at least 0"),
        ({"task": "regression", "class_conditional": True}, "class_conditional: expected a classification"),
        ({"task": "segmentation"}, "pixels of an image"),
    ],
)
def test_bad_arguments(options, message):
    logits, labels = case(20)
    with pytest.raises(EvaluationError, match=message):
        lb.conformalize_(nn.Identity(), (logits, labels), **{"task": "classification", "progress": False, **options})


def test_its_config_goes_through_json_and_refuses_nonsense():
    """Infinite thresholds are None; NaN, empty or uneven ones are refused."""
    found = Conformal(0.9, "lac", (0.5, None), (20, 3), class_conditional=True)
    assert config.from_dict(config.to_dict(found)) == found
    assert class_sets(torch.tensor([[0.4, 0.6]]), found).tolist() == [[False, True]]
    for change in ({"thresholds": [math.nan, 1]}, {"thresholds": []}, {"counts": [1]}, {"coverage": 0}):
        with pytest.raises(ConfigError, match="Conformal"):
            config.from_dict({**config.to_dict(found), **change})


def test_the_hash_is_uniform_and_does_not_depend_on_the_batch():
    probs = torch.randn(4000, 3).softmax(1)
    u = uniform_of(probs)
    counts = torch.histc(u.float(), 20, 0, 1)
    assert float(((counts - 200).square() / 200).sum()) < 45  # chi-squared with 19: P < 0.001
    assert torch.equal(uniform_of(probs[7:8]), u[7:8])
    assert 0 <= float(u.min()) <= float(u.max()) < 1


@pytest.mark.parametrize("score", ["normalized", "absolute", "cqr"])
def test_intervals_are_those_of_brute_force(score):
    """By sorted lists; a cqr interval that shrinks beyond its middle is a point."""
    mean, std, y = forecasts()
    cal, new, coverage = slice(0, 200), slice(200, 300), 0.85
    spread = (mean - std, mean + 1.5 * std) if score == "cqr" else std
    found = threshold(residual_scores(y[cal], mean[cal], _part(spread, cal), score), coverage)
    low, high = interval(mean[new], _part(spread, new), Conformal(coverage, score, (found,), (200,)))
    rows = [list(map(float, row)) for row in zip(mean.double(), std.double(), y.double(), strict=True)]
    if score == "cqr":
        ends = [(float(a), float(b)) for a, b in zip(*(part.double() for part in spread), strict=True)]
        scores = sorted(max(a - r[2], r[2] - b) for (a, b), r in zip(ends[cal], rows[cal], strict=True))
    else:
        scores = sorted(abs(r[2] - r[0]) / (1.0 if score == "absolute" else r[1]) for r in rows[cal])
    q = scores[math.ceil(Fraction("0.85") * 201) - 1]
    assert found == pytest.approx(q, abs=1e-9)
    for at, row in enumerate(rows[new]):
        half = q if score == "absolute" else q * row[1]
        ends_of = (ends[200 + at][0] - q, ends[200 + at][1] + q) if score == "cqr" else (row[0] - half, row[0] + half)
        assert (float(low[at]), float(high[at])) == pytest.approx(ends_of, abs=1e-5)
    point = interval(mean[new], _part(spread, new), Conformal(coverage, score, (-9.0,), (200,)))
    assert score != "cqr" or torch.equal(*point)
