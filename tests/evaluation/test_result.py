"""Results with replicates: their intervals, their differences, and their trip through JSON."""

import json
import math

import numpy as np
import pytest

from leanbayes.errors import EvaluationError
from leanbayes.evaluation import Evaluation, compare

DRAWS = (0.9 + 0.01 * np.random.default_rng(0).standard_normal(200)).tolist()


def evaluation(name="a", value=0.9, draws=DRAWS, metric="accuracy", count=100, **settings):
    replicates = {} if draws is None else {metric: list(draws)}
    return Evaluation(name, "classification", count, {metric: value}, settings=settings, replicates=replicates)


def test_intervals_are_percentiles():
    result = evaluation()
    assert result.interval("accuracy") == pytest.approx(tuple(np.quantile(DRAWS, [0.025, 0.975])))
    low, high = result.interval("accuracy", level=0.5)
    assert np.mean([(low <= v <= high) for v in DRAWS]) == pytest.approx(0.5, abs=0.01)
    assert evaluation(draws=None).interval("accuracy") is None
    assert evaluation(value=math.nan).interval("accuracy") is None
    with pytest.raises(EvaluationError, match="expected one of accuracy"):
        result.interval("nll")
    with pytest.raises(EvaluationError, match="level"):
        result.interval("accuracy", level=95)


def test_json_keeps_six_digits_and_what_is_undefined(tmp_path):
    result = evaluation(draws=[0.123456789, math.nan, 1e-9 / 3])
    path = result.save_json(tmp_path / "result.json")
    assert json.loads(path.read_text())["replicates"]["accuracy"] == [0.123457, None, 3.33333e-10]
    again = Evaluation.load_json(path)
    assert again.replicates["accuracy"] == pytest.approx([0.123457, math.nan, 3.33333e-10], nan_ok=True)
    assert again.to_dict() == result.to_dict()


def test_files_from_before_still_load():
    data = evaluation().to_dict()
    del data["replicates"]
    assert Evaluation.from_dict(data).replicates == {}
    assert Evaluation.from_dict(data).interval("accuracy") is None


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ([1.0], "replicates: expected dict"),
        ({"accuracy": 1.0}, r"replicates\['accuracy'\]: expected list, received float"),
        ({"accuracy": [0.5, "x"]}, r"replicates\['accuracy'\]\[1\]: expected a number, received str"),
        ({"accuracy": [True]}, r"\[0\]: expected a number, received bool"),
    ],
)
def test_foreign_replicates_are_refused(spoil, message):
    with pytest.raises(EvaluationError, match=message):
        Evaluation.from_dict(evaluation().to_dict() | {"replicates": spoil})


def test_differences_are_paired_only_on_the_same_data():
    better = [v + 0.005 for v in DRAWS]
    both = compare([evaluation("a", 0.905, better, data="x"), evaluation("b", 0.9, data="x")])
    found = both.difference("accuracy", "a", "b")
    assert (found.value, found.low, found.high) == pytest.approx((0.005, 0.005, 0.005))
    assert found.paired
    assert not found.within_noise
    assert both.difference("accuracy", "b", "a").value == pytest.approx(-0.005)
    for other in ({"data": "y"}, {}, {"data": "x", "count": 99}):
        apart = compare([evaluation("a", 0.905, better, data="x"), evaluation("b", 0.9, **other)])
        found = apart.difference("accuracy", "a", "b")
        assert not found.paired
        assert found.within_noise
        assert found.low < 0.005 < found.high
    unknown = compare([evaluation("a"), evaluation("b")])
    assert not unknown.difference("accuracy", "a", "b").paired  # no fingerprint is no proof


def test_pairing_needs_the_same_number_of_replicates():
    both = compare([evaluation("a", data="x"), evaluation("b", draws=DRAWS[:150], data="x")])
    assert not both.difference("accuracy", "a", "b").paired


def test_out_of_domain_differences_need_the_same_set_too():
    metric = "ood.a.b.entropy.auroc"

    def pair(first, second):
        rows = [evaluation(n, metric=metric, data="x", ood=o) for n, o in (("a", first), ("b", second))]
        return compare(rows).difference(metric, "a", "b").paired

    assert pair({"a.b": 10}, {"a.b": 10, "other": 3})
    assert not pair({"a.b": 10}, {"a.b": 11})
    assert not pair({"other": 3}, {"other": 3})


def test_no_replicates_no_verdict():
    both = compare([evaluation("a", data="x"), evaluation("b", draws=None, data="x")])
    assert both.difference("accuracy", "a", "b") is None
    nan = compare([evaluation("a", math.nan, data="x"), evaluation("b", data="x")])
    assert nan.difference("accuracy", "a", "b") is None
    with pytest.raises(EvaluationError, match="expected one of a, b"):
        both.difference("accuracy", "a", "c")
    with pytest.raises(EvaluationError, match="expected one of accuracy"):
        both.difference("nll", "a", "b")


def test_differences_survive_json(tmp_path):
    better = [v + 0.005 for v in DRAWS]
    both = compare([evaluation("a", 0.905, better, data="x"), evaluation("b", 0.9, data="x")])
    again = type(both).load_json(both.save_json(tmp_path / "both.json"))
    before, after = (c.difference("accuracy", "a", "b") for c in (both, again))
    assert (after.low, after.high) == pytest.approx((before.low, before.high), abs=3e-6)
    assert after.paired


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({"kind": "Other"}, "one Evaluation"),
        ({"version": 99}, "upgrade"),
        ({"extra": 1}, "unknown field 'extra'"),
        ({"count": "many"}, "expected int"),
        ({"metrics": {"accuracy": "good"}}, "expected a number"),
        ({"metrics": None}, "expected dict"),
    ],
)
def test_foreign_json_is_refused(spoil, message):
    good = Evaluation("a", "classification", 1, {"accuracy": 1.0}).to_dict()
    with pytest.raises(EvaluationError, match=message):
        Evaluation.from_dict(good | spoil)


def test_damaged_files_are_refused(tmp_path):
    (tmp_path / "bad.json").write_text('{"kind": ')
    for name in ("bad.json", "missing.json"):
        with pytest.raises(EvaluationError, match=name):
            Evaluation.load_json(tmp_path / name)


def test_comparisons():
    a, b = (Evaluation(name, "classification", 10, {"accuracy": 0.5}) for name in "ab")
    other = Evaluation("c", "regression", 10, {"rmse": 0.5})
    assert compare([a, b])["b"] is b
    for bad, message in (([], "at least one"), ([a, a], "twice"), ([a, other], "one task"), ([a, 3], "received 3")):
        with pytest.raises(EvaluationError, match=message):
            compare(bad)
    with pytest.raises(EvaluationError, match="expected one of a, b"):
        compare([a, b])["c"]
    with pytest.raises(EvaluationError, match="accuracy"):
        a["nll"]
