"""`Cascade`: each datum is answered by the cheapest stage that is sure, and the rest goes on."""

import copy
import itertools

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.compress import thresholds
from leanbayes.compress.thresholds import routes
from leanbayes.errors import ArtifactError, ConfigError, ConversionError, EvaluationError, LeanBayesError

INF = float("inf")


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


@pytest.fixture(scope="module")
def digits():
    parts = lb.data.load("digits").parts
    return {name: part.tensors for name, part in parts.items()}


@pytest.fixture(scope="module")
def nested(digits):
    torch.manual_seed(0)
    model = network()
    lb.bayesianize_(model, lb.Nested(groups=4, base_groups=1))
    lb.fit(model, digits["train"], epochs=6, lr=3e-3, progress=False)
    return model


MADE = {}


def cascade_of(nested, digits, **options):
    """A cascade of three widths, which is made once and copied."""
    if not MADE:
        MADE["plain"] = lb.Cascade(nested, widths=(0.25, 0.5, 1.0), loader=digits["train"])
    found = copy.deepcopy(MADE["plain"])
    if options:
        found.set_thresholds(**options)
    return found


class TestWidths:
    def test_the_stages_are_small_plain_networks(self, nested, digits):
        cascade = cascade_of(nested, digits)
        assert [stage[0].out_channels for stage in cascade.stages] == [4, 8, 16]
        assert all(type(stage[4]) is nn.Conv2d for stage in cascade.stages)
        macs = cascade.count_macs(digits["val"][0][:1])
        assert macs[0] < macs[2] / 8

    def test_each_datum_has_the_answer_of_its_stage_and_pays_for_those_before(self, nested, digits):
        cascade = cascade_of(nested, digits)
        x = digits["val"][0]
        cascade.set_thresholds((0.3, 0.2))
        pred = lb.predict(cascade, x)
        alone = [lb.predict(stage, x) for stage in cascade.stages]
        doubt = [1 - one.probs.amax(1) for one in alone]
        expected = torch.where(doubt[0] <= 0.3, 0, torch.where(doubt[1] <= 0.2, 1, 2))
        assert torch.equal(pred.stages, expected)
        assert len(expected.unique()) == 3  # otherwise this says little
        paid = torch.tensor(list(itertools.accumulate(cascade.stage_macs)))
        assert torch.equal(pred.macs, paid[expected].float())
        for k, one in enumerate(alone):
            torch.testing.assert_close(pred.probs[expected == k], one.probs[expected == k], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(cascade(x).exp(), pred.probs, rtol=1e-5, atol=1e-6)
        single = torch.cat([cascade(one) for one in x[:20].split(1)])
        torch.testing.assert_close(single.exp(), pred.probs[:20], rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("score", ["entropy", "margin"])
    def test_one_datum_and_many_are_answered_alike(self, nested, digits, score):
        cascade = cascade_of(nested, digits, thresholds=(0.3, 0.2))
        cascade.score, x = score, digits["val"][0][:40]
        assert len(lb.predict(cascade, x).stages.unique()) > 1
        single = torch.cat([cascade(one) for one in x.split(1)])
        torch.testing.assert_close(single, cascade(x), rtol=1e-5, atol=1e-5)

    def test_thresholds_at_the_ends_leave_stages_out(self, nested, digits):
        cascade = cascade_of(nested, digits, thresholds=(-INF, INF))
        pred = lb.predict(cascade, digits["val"][0][:5])
        assert pred.stages.tolist() == [1] * 5
        assert pred.macs.tolist() == [cascade.stage_macs[1]] * 5

    def test_statistics_of_every_width_are_its_own(self, nested, digits):
        with pytest.warns(lb.LeanBayesWarning, match="loader=train_loader"):
            without = lb.Cascade(nested, widths=(0.25, 1.0))
        x, y = digits["test"]
        right = [(lb.predict(c.stages[0], x).labels == y).float().mean() for c in (cascade_of(nested, digits), without)]
        assert right[0] > right[1] + 0.05


class TestTune:
    @pytest.fixture(scope="class")
    def cascade(self, nested, digits):
        return cascade_of(nested, digits)

    def test_a_loss_that_may_be(self, cascade, digits):
        found = cascade.tune(digits["val"], max_loss=0.03)
        assert found.accuracy >= found.last_accuracy - 0.03
        assert found.macs < found.last_macs
        pred = lb.predict(cascade, digits["val"][0])
        assert float(pred.macs.mean()) == pytest.approx(found.macs, rel=1e-4)
        assert float((pred.labels == digits["val"][1]).float().mean()) == pytest.approx(found.accuracy, abs=1e-6)
        assert [float((pred.stages == k).float().mean()) for k in range(3)] == pytest.approx(found.shares, abs=1e-6)
        assert "max_probability" in str(found)

    def test_more_confidence_costs_more(self, cascade, digits):
        costs = [cascade.tune(digits["val"], max_loss=0.03, confidence=c).macs for c in (0.5, 0.9, 0.99)]
        assert costs == sorted(costs)
        assert costs[0] < costs[2]

    def test_a_budget(self, cascade, digits):
        half = cascade.tune(digits["val"], macs=0.5)
        assert half.macs <= 0.5 * half.last_macs
        assert cascade.tune(digits["val"], macs=0.2).accuracy <= half.accuracy

    def test_a_deadline_holds_for_the_longest_way(self, cascade, digits):
        found = cascade.tune(digits["val"], milliseconds=1e5)
        assert found.accuracy >= found.last_accuracy
        few = sorted(found.milliseconds)
        cascade.tune(digits["val"], milliseconds=0.75 * (few[0] + few[1]))  # one stage alone, whichever is fast enough
        assert len(cascade.asked()) == 1

    def test_the_cheapest_in_time_is_not_the_cheapest_in_macs(self, cascade, digits, monkeypatch):
        assert cascade.tune(digits["val"], max_loss=0.03).shares[0] > 0
        monkeypatch.setattr(thresholds, "_times", lambda cascade, example: [9.0, 1.0, 10.0])
        found = cascade.tune(digits["val"], max_loss=0.03, cheapest="milliseconds")
        assert found.thresholds[0] == -INF  # for its time the narrow stage answers too few
        assert found.milliseconds == (9.0, 1.0, 10.0)
        assert found.stage_macs[1] == cascade.stage_macs[1]  # costs are told in MACs all the same

    @pytest.mark.parametrize("score", ["entropy", "margin"])
    def test_other_scores(self, cascade, digits, score):
        cascade.score = score
        found = cascade.tune(digits["val"], max_loss=0.05)
        assert found.score == score
        assert found.macs < found.last_macs
        cascade.score = "max_probability"

    @pytest.mark.parametrize(
        ("wish", "says"),
        [
            ({"accuracy": 0.999}, "accuracy of at most 0.9"),
            ({"macs": 10}, "macs: expected at least"),
            ({"milliseconds": 1e-6}, "the fastest stage takes"),
            ({}, "one of accuracy, max_loss"),
            ({"accuracy": 0.5, "macs": 0.5}, "received accuracy, macs"),
            ({"macs": 0.5, "cheapest": "milliseconds"}, "cheapest: expected accuracy or max_loss"),
            ({"accuracy": 0.5, "cheapest": "time"}, "cheapest: expected"),
        ],
    )
    def test_what_cannot_be_had_is_said_and_changes_nothing(self, cascade, digits, wish, says):
        before = cascade.thresholds
        with pytest.raises(LeanBayesError, match=says):
            cascade.tune(digits["val"], **wish)
        assert cascade.thresholds == before

    def test_no_data(self, cascade, digits):
        x, y = digits["val"]
        with pytest.raises(EvaluationError, match="at least one datum"):
            cascade.tune((x[:0], y[:0]), max_loss=0.1)

    def test_the_search_agrees_with_brute_force(self):
        torch.manual_seed(0)
        scores, correct, costs = torch.rand(2, 30), (torch.rand(1, 3, 30) < 0.7).float(), torch.tensor([1.0, 3.0, 9.0])
        tried, spent, means = routes(scores, correct, costs)
        for row in torch.randperm(len(tried))[:50].tolist():
            (first, second), right, paid = tried[row].tolist(), 0.0, 0.0
            for n in range(30):
                cost = 0.0
                for k, limit in ((0, first), (1, second), (2, INF)):
                    cost += float(costs[k]) if limit > -INF else 0.0
                    if k == 2 or scores[k, n] <= limit:
                        right, paid = right + float(correct[0, k, n]), paid + cost
                        break
            assert (right / 30, paid / 30) == pytest.approx((float(means[0, row]), float(spent[row])), abs=1e-5)


class TestSamples:
    def test_samples_go_on_where_they_stopped(self, nested, digits):
        x = digits["val"][0][:40]
        cascade = lb.Cascade(nested, samples=(1, 4, 12), thresholds=(-1.0, -1.0))  # nobody is ever sure
        found, whole = lb.predict(cascade, x, keep_samples=True), lb.predict(nested, x, samples=12, keep_samples=True)
        torch.testing.assert_close(found.probs, whole.probs)
        torch.testing.assert_close(found.epistemic, whole.epistemic, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found.samples, whole.samples)
        one = cascade.stage_macs[0]
        assert found.macs.tolist() == [12.0 * one] * 40

    def test_sure_data_take_few(self, nested, digits):
        cascade = lb.Cascade(nested, samples=(2, 16), score="mutual_information", thresholds=(0.01,))
        pred = lb.predict(cascade, digits["val"][0])
        assert set(pred.counts.tolist()) == {2, 16}

    def test_members_of_an_ensemble_one_after_the_other(self, digits):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        lb.bayesianize_(model, lb.Ensemble(members=3, init="fresh"))
        cascade = lb.Cascade(model, samples=(1, 3, 9), thresholds=(-1.0, -1.0))
        x = digits["val"][0][:8]
        pred = lb.predict(cascade, x, task="classification")
        torch.testing.assert_close(pred.probs, lb.predict(model, x, samples=3, task="classification").probs)

    def test_narrow_stages_stay_bayesian(self, nested, digits):
        cascade = lb.Cascade(nested, widths=(0.25, 1.0, 1.0), samples=(2, 2, 8), loader=digits["train"])
        assert cascade.stages[1] is cascade.stages[2]
        pred = lb.predict(cascade.stages[0], digits["val"][0][:9], samples=4)
        assert float(pred.epistemic.max()) > 0
        assert cascade.tune(digits["val"], macs=0.6).macs <= 0.6 * cascade.stage_macs[2] * 8


class TestAsModel:
    def test_save_and_load(self, nested, digits, tmp_path):
        cascade = lb.Cascade(nested, widths=(0.25, 0.5, 1.0), loader=digits["train"], fold_batchnorm=True)
        lb.calibrate_(cascade.stages[0], digits["val"], progress=False)
        cascade.tune(digits["val"], max_loss=0.05)
        path = lb.save(cascade, tmp_path / "cascade.safetensors")
        again = lb.load(path, into=lb.Cascade([network(), network(), network()]))
        assert (again.thresholds, again.score, again.stage_macs) == (
            cascade.thresholds, cascade.score, cascade.stage_macs
        )  # fmt: skip
        assert str(again.likelihood(0)) == str(cascade.likelihood(0))
        x = digits["test"][0]
        assert torch.equal(lb.predict(again, x).probs, lb.predict(cascade, x).probs)
        for wrong in (network(), lb.Cascade([network(), network()])):
            with pytest.raises(ArtifactError, match=r"Cascade|stages"):
                lb.load(path, into=wrong)

    def test_evaluate_says_what_was_spent(self, nested, digits):
        cascade = cascade_of(nested, digits)
        cascade.tune(digits["val"], max_loss=0.05)
        found = lb.evaluate(cascade, digits["test"], progress=False, replicates=0)
        pred = lb.predict(cascade, digits["test"][0])
        assert found.cost["macs"] == pytest.approx(float(pred.macs.mean()), rel=1e-5)
        assert found.cost["macs_p95"] >= found.cost["macs_median"]
        assert sum(row["share"] for row in found.curves["stages"]) == pytest.approx(1)
        assert "Stage" in str(found)

    def test_a_cascade_stays_in_evaluation_mode(self, nested, digits):
        assert not any(m.training for m in cascade_of(nested, digits).train().modules())


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: lb.Cascade(network(), widths=(0.25, 1.0)), ConversionError, "ordered channels"),
        (lambda: lb.Cascade(network()), ConversionError, "widths="),
        (lambda: lb.Cascade(network(), samples=(1, 4)), ConversionError, "random weights"),
        (lambda: lb.Cascade([network()]), ConfigError, "two stages or more"),
        (lambda: lb.Cascade([network(), network()], score="mutual_information"), ConfigError, "is 0 at stage 0"),
        (lambda: lb.Cascade([network(), network()], thresholds=(1, 2)), ConfigError, "1 numbers"),
        (lambda: lb.Cascade([network(), network()], thresholds=(float("nan"),)), ConfigError, "a number"),
        (lambda: lb.Cascade([network(), network()], widths=(0.5, 1)), ConfigError, "several models"),
        (lambda: lb.Cascade([network(), 3]), ConfigError, "nn.Module"),
    ],
)
def test_what_is_no_cascade(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_stages_of_other_classes():
    x, y = torch.randn(8, 4), torch.randint(2, (8,))
    cascade = lb.Cascade([nn.Linear(4, 3), nn.Linear(4, 2)], thresholds=(-1.0,))
    for ask in (lambda: lb.predict(cascade, x), lambda: cascade.tune((x, y), macs=1.0)):
        with pytest.raises(LeanBayesError, match="expected 3 classes"):
            ask()
    with pytest.raises(LeanBayesError, match="settle"):
        lb.predict(cascade, x, settle=0.1)
    with pytest.raises(EvaluationError, match="every stage"):
        lb.calibrate_(cascade, (x, y))
