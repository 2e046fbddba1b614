"""`evaluate` on images that several experts annotated: what it finds, its intervals by group, what it refuses."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import ArtifactError, EvaluationError
from leanbayes.evaluation import annotated, dice, diversity, ged, hungarian_iou, pixel_calibration, variance_correlation
from leanbayes.evaluation.metrics.experts import Sums

QUIET = {"task": "segmentation", "progress": False}


def images(count=12, annotators=3, size=8, seed=0):
    """Noise, and what each annotator makes of it: the bright pixels, by thresholds of their own."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 1, size, size, generator=generator)
    return x, x > torch.randn(count, annotators, 1, 1, generator=generator)


def network(method=None, classes=2, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, classes, 1))
    return model if method is None else lb.bayesianize_(model, method) and model


class Shifted(nn.Module):
    """Marks what is brighter than a threshold that it draws by itself."""

    def forward(self, x):
        mark = 4 * (x[:, 0] - torch.randn(len(x), 1, 1))
        return torch.stack([torch.zeros_like(mark), mark], 1)


def test_metrics_are_those_of_the_samples_that_predict_draws():
    x, y = images()
    model = network(lb.Dropout(0.4))
    found = lb.evaluate(model, (x, y), samples=6, seed=3, **QUIET)
    pred = lb.predict(model, x, samples=6, seed=3, task="segmentation", keep_samples=True)
    masks = pred.masks().transpose(0, 1)
    wanted = {
        "ged.unbiased": ged(masks, y, unbiased=True).mean(),
        "ged.plug_in": ged(masks, y).mean(),
        "hungarian_iou": hungarian_iou(masks, y).mean(),
        "dice": dice(pred.labels, y).mean(),
        "diversity": diversity(masks).mean(),
        "diversity.experts": diversity(y).mean(),
        "variance_correlation": variance_correlation(masks, y),
        "pixel_ece": pixel_calibration(pred.probs[:, 1], y).ece(),
    }
    for name, value in wanted.items():
        assert found[name] == pytest.approx(float(value), abs=1e-9), name
        assert found.interval(name) is not None
    majority = (2 * y.sum(1) > y.shape[1]).long()
    assert found["accuracy"] == pytest.approx(float((pred.labels == majority).double().mean()))
    assert found["human.distance"] == pytest.approx(
        float((pred.probs[:, 1] - y.double().mean(1)).abs().mean()), abs=1e-6
    )


def test_batches_and_pieces_of_them_give_the_same_numbers(monkeypatch):
    x, y = images()
    model = network(lb.Dropout(0.4))
    whole = lb.evaluate(model, (x, y), samples=4, **QUIET)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=5)
    batches = lb.evaluate(model, loader, samples=4, **QUIET)
    monkeypatch.setattr(annotated, "NUMBERS", 4 * 64 * 2)
    pieces = lb.evaluate(model, (x, y), samples=4, **QUIET)
    for other in (batches, pieces):
        assert other.metrics == pytest.approx(whole.metrics, abs=1e-6)
        assert [e["index"] for e in other.curves["examples"]] == [e["index"] for e in whole.curves["examples"]]


def test_models_of_every_kind_are_compared_and_those_with_few_answers_exactly():
    x, y = images()
    plain = lb.evaluate(network(), (x, y), samples=8, **QUIET)
    labels = lb.predict(network(), x, task="segmentation").labels.unsqueeze(1)
    assert plain["ged.unbiased"] == pytest.approx(
        float(ged(labels, y, unbiased=True, exhaustive=True).mean()), abs=1e-9
    )
    assert plain["diversity"] == 0
    assert math.isnan(plain["variance_correlation"])
    assert any("variance_correlation is undefined" in note for note in plain.notes)
    several = [lb.evaluate(network(lb.Ensemble(4)), (x, y), samples=n, **QUIET) for n in (4, 16)]
    assert several[0]["ged.unbiased"] == several[1]["ged.unbiased"]  # four members are all there are
    for model in (network(lb.MeanField()), network(lb.Nested()), Shifted()):
        found = lb.evaluate(model, (x, y), samples=4, **QUIET)
        assert np.isfinite([found["ged.unbiased"], found["dice"]]).all()


def test_a_model_that_draws_as_experts_do_is_at_distance_zero_and_others_are_not():
    x, y = images(400, annotators=4)
    as_experts = lb.evaluate(Shifted(), (x, y), samples=16, groups=range(400), replicates=400, **QUIET)
    low, high = as_experts.interval("ged.unbiased", 0.9999)
    assert low < 0 < high < 0.1
    assert as_experts["ged.plug_in"] > 0.1  # the plug-in estimate of the same distance
    assert as_experts["variance_correlation"] > 0.4  # four experts say little of the variance in a pixel
    assert lb.evaluate(network(), (x, y), samples=16, **QUIET)["ged.unbiased"] > 0.3


def clustered(rng, groups, each):
    """Scores of images, of which those of a group share most of their error; the mean is 0."""
    values = rng.normal(size=(groups, 1)) + 0.3 * rng.normal(size=(groups, each))
    scores = {"score": torch.from_numpy(values.ravel())}
    rest = torch.ones(groups * each, 6, dtype=torch.float64), torch.ones(groups * each, 2, 3, dtype=torch.float64)
    return Sums(scores, *rest), np.repeat(np.arange(groups), each), values


def test_the_spread_of_replicates_by_group_is_the_closed_form():
    sums, groups, values = clustered(np.random.default_rng(0), 30, 5)
    drawn = np.array(sums.replicates(groups, replicates=4000)["score"])
    means = values.mean(1)
    exact = means.std() / math.sqrt(30)  # groups of one size: the plain bootstrap of their means
    assert drawn.std() == pytest.approx(exact, rel=4.5 / math.sqrt(2 * 4000))
    assert drawn.mean() == pytest.approx(means.mean(), abs=4.5 * exact / math.sqrt(4000))
    single = np.array(sums.replicates(replicates=1000)["score"]).std()
    assert single < 0.6 * exact  # resampling images promises too much


def test_intervals_by_group_hold_the_truth_as_often_as_they_say():
    rng, hits = np.random.default_rng(1), {"group": 0, "image": 0}
    for _ in range(200):
        sums, groups, _ = clustered(rng, 40, 6)
        for name, chosen in (("group", groups), ("image", None)):
            low, high = np.quantile(sums.replicates(chosen, replicates=100)["score"], [0.025, 0.975])
            hits[name] += low <= 0 <= high
    assert hits["group"] / 200 > 0.95 - 0.03 - 4 * math.sqrt(0.95 * 0.05 / 200)  # percentiles of 40 groups: 3 % short
    assert hits["image"] / 200 < 0.75


def test_replicates_are_the_metrics_of_resampled_images():
    x, y = images(9)
    model, groups = network(lb.Dropout(0.4)), np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
    found = lb.evaluate(model, (x, y), samples=4, groups=groups, replicates=5, **QUIET)
    from leanbayes.evaluation.metrics.bootstrap import resamplings

    for number, weights in enumerate(resamplings(3, replicates=5)):
        rows = torch.from_numpy(np.repeat(np.arange(9), weights[groups].astype(int)))
        again = lb.evaluate(model, (x[rows], y[rows]), samples=4, replicates=0, **QUIET)
        for name in ("ged.unbiased", "dice", "variance_correlation", "pixel_ece"):
            assert found.replicates[name][number] == pytest.approx(again[name], abs=1e-6), name


def test_the_result_says_what_was_resampled_and_pairs_only_what_is_the_same(tmp_path):
    x, y = images()
    grouped, other, alone = (
        lb.evaluate(network(lb.Dropout(0.4)), (x, y), samples=2, groups=g, replicates=20, **QUIET)
        for g in (["a", "b", "c"] * 4, [0, 1] * 6, None)
    )
    assert "intervals by group (3)" in str(grouped)
    assert "intervals by image" in str(alone)
    assert grouped.difference("ged.unbiased", grouped).paired
    assert not grouped.difference("ged.unbiased", other).paired
    assert not grouped.difference("ged.unbiased", alone).paired
    again = lb.Evaluation.load_json(grouped.save_json(tmp_path / "a.json"))
    assert again.curves["examples"] == grouped.curves["examples"]
    page = again.save_html(tmp_path / "a.html").read_text(encoding="utf-8")
    assert "What the experts see" in page
    assert page.count("mutual information of Sequential") == len(grouped.curves["examples"])


def test_examples_do_not_depend_on_the_model():
    x, y = images(60)
    chosen = [
        [(e["index"], e["experts"]) for e in lb.evaluate(model, (x, y), samples=2, **QUIET).curves["examples"]]
        for model in (network(), network(lb.Dropout(0.3), seed=5))
    ]
    assert chosen[0] == chosen[1]
    assert len({index for index, _ in chosen[0]}) == len(chosen[0]) > 4


def test_groups_resample_classifications_and_their_ranks_too():
    x, y = torch.randn(40, 4), torch.randint(3, (40,))
    groups = torch.arange(40) // 4
    options = {"task": "classification", "progress": False, "samples": 1, "replicates": 20}
    options["ood"] = {"noise": torch.randn(20, 4)}
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    grouped, single = (lb.evaluate(model, (x, y), groups=g, **options) for g in (groups, None))
    assert grouped.metrics == single.metrics
    key = "ood.noise.entropy.auroc"
    assert grouped.replicates[key] != single.replicates[key]
    assert grouped.replicates["accuracy"] != single.replicates["accuracy"]
    assert np.std(grouped.replicates["accuracy"]) > 0


def test_an_interrupted_evaluation_goes_on_with_its_groups_alone(tmp_path):
    x, y = images()
    options = {"samples": 2, "resume": tmp_path / "run.eval", **QUIET}
    first = lb.evaluate(network(), (x, y), groups=[0, 1] * 6, **options)
    assert lb.evaluate(network(), (x, y), groups=[0, 1] * 6, **options).metrics == pytest.approx(
        first.metrics, nan_ok=True
    )
    with pytest.raises(ArtifactError, match="groups"):
        lb.evaluate(network(), (x, y), groups=[0, 0, 1] * 4, **options)


def test_pixels_that_an_expert_left_out_count_for_nobody():
    x, y = images()
    labels = y.long()
    labels[:, 1, :, :4] = 255
    found = lb.evaluate(network(lb.Dropout(0.4)), (x, labels), samples=4, ignore_index=255, **QUIET)
    pred = lb.predict(network(lb.Dropout(0.4)), x, samples=4, task="segmentation", keep_samples=True)
    assert found["ged.plug_in"] == pytest.approx(
        float(ged(pred.masks().transpose(0, 1)[..., 4:], y[..., 4:]).mean()), abs=1e-9
    )


def test_several_classes_one_annotator_and_empty_masks_are_handled():
    x, y = images()
    labels = torch.randint(4, (12, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    found = lb.evaluate(network(lb.Dropout(0.4), classes=4), (x, labels), samples=3, **QUIET)
    assert 0 < found["ged.unbiased"] < 2
    one = lb.evaluate(network(lb.Dropout(0.4)), (x, y[:, :1]), samples=3, **QUIET)
    assert "ged.unbiased" not in one.metrics
    assert np.isfinite(one["ged.plug_in"])
    assert any("One annotator" in note for note in one.notes)
    empty = lb.evaluate(network(lb.Dropout(0.4)), (x, torch.zeros_like(y)), samples=3, **QUIET)
    assert empty["diversity.experts"] == 0
    assert any("variance_correlation is undefined" in note for note in empty.notes)


X, Y = images(4)


@pytest.mark.parametrize(
    ("targets", "options", "text"),
    [
        (Y, {"groups": [0, 1]}, "one for each of 4 data"),
        (Y, {"groups": [0.5, 1.0, 2.0, 3.0]}, "a whole number or a text for each datum"),
        (Y, {"groups": [[0], [1], [2], [3]]}, "a whole number or a text for each datum"),
        (Y, {"groups": ["a"] * 4}, "two groups or more"),
        (Y.long() + 1, {}, "expected a label in 0..1, received 2"),
        (Y[:, :, :4], {}, "targets: expected shape"),
        (Y[:, :0], {}, "at least one"),
        (Y.float() / 2, {}, "targets"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(targets, options, text):
    with pytest.raises(EvaluationError, match=text):
        lb.evaluate(network(), (X, targets), samples=2, **options, **QUIET)


def test_annotators_must_be_as_many_in_every_batch():
    with pytest.raises(EvaluationError, match="expected 3 annotators"):
        lb.evaluate(network(), [(X, Y), (X, Y[:, :2])], samples=2, **QUIET)
