import math

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, MixtureSameFamily, Normal

import leanbayes as lb
from leanbayes.errors import DataError, PredictionError
from leanbayes.likelihoods import Regression, Segmentation
from leanbayes.prediction.accumulate import Accumulator
from leanbayes.prediction.predictive import entropy


def classifier():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    lb.bayesianize_(model, lb.MeanField(std=0.5))
    return lb.predict(model, torch.randn(20, 4), samples=12, task="classification", keep_samples=True)


def regressor(noise="heteroscedastic", outputs=4, settle=None, n=6):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs)).double()
    lb.bayesianize_(model, lb.MeanField(std=0.5))
    x = torch.randn(n, 4, dtype=torch.float64)
    return lb.predict(model, x, samples=24, task=Regression(noise, std=0.3), settle=settle)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entropy_is_that_of_torch(dtype):
    small = torch.finfo(dtype).tiny
    given = torch.tensor([[0.0, 1.0], [small / 4, 1.0], [small, 1.0], [1e-8, 1 - 1e-8], [0.3, 0.7]], dtype=dtype)
    assert torch.allclose(entropy(given), torch.special.entr(given).sum(1), atol=1e-12, rtol=1e-6)


def test_entropy_splits_into_aleatoric_and_mutual_information():
    pred = classifier()
    each = entropy(pred.samples, dim=2)
    assert torch.allclose(pred.probs, pred.samples.mean(0), atol=1e-6)
    assert torch.allclose(pred.variance, pred.samples.var(0, unbiased=False), atol=1e-6)
    assert torch.allclose(pred.aleatoric, each.mean(0), atol=1e-6)
    assert (pred.mutual_information >= 0).all()
    assert pred.mutual_information.max() > 1e-3
    assert torch.allclose(pred.entropy, pred.aleatoric + pred.mutual_information, atol=1e-6)
    assert pred.entropy.max() <= math.log(3) + 1e-6
    assert torch.equal(pred.labels, pred.probs.argmax(1))
    assert len(pred) == 20
    assert repr(pred) == f"Predictive(classification, 20 data, 12 samples, by {pred.engine})"


def test_log_prob_of_labels():
    pred, y = classifier(), torch.randint(3, (20,))
    assert torch.allclose(pred.log_prob(y), pred.probs[range(20), y].log())
    assert torch.allclose(pred.log_prob(y.unsqueeze(1)), pred.log_prob(y))
    for bad in (torch.full((20,), 3), torch.full((20,), -1), torch.zeros(19).long(), 5):
        with pytest.raises(DataError, match="expected"):
            pred.log_prob(bad)


def test_a_single_logit_is_two_classes():
    model = nn.Sequential(nn.Linear(4, 1))
    lb.bayesianize_(model, lb.MeanField(std=0.5))
    pred = lb.predict(model, torch.randn(5, 4), samples=4, task="classification")
    assert pred.probs.shape == (5, 2)
    assert torch.allclose(pred.probs.sum(1), torch.ones(5))


def test_segmentation_is_classification_in_every_pixel():
    model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1))
    lb.bayesianize_(model, lb.MeanField(std=0.5))
    pred = lb.predict(model, torch.randn(2, 1, 5, 4), samples=6, task="segmentation")
    y = torch.randint(3, (2, 5, 4))
    assert pred.probs.shape == (2, 3, 5, 4)
    assert pred.entropy.shape == pred.labels.shape == (2, 5, 4)
    assert torch.allclose(pred.entropy, pred.aleatoric + pred.mutual_information, atol=1e-5)
    expected = pred.probs.gather(1, y.unsqueeze(1)).log().flatten(1).sum(1)
    assert torch.allclose(pred.log_prob(y), expected)


def mixture(pred, datum):
    """torch's own mixture of the samples that a datum took: one for each output dimension."""
    n = int(pred.counts[datum])
    means, std = pred.samples[:n, datum].T, pred.noise[:n, datum].sqrt().T
    return MixtureSameFamily(Categorical(torch.ones(means.shape[0], n, dtype=torch.float64)), Normal(means, std))


@pytest.mark.parametrize("settle", [None, 0.2])
def test_regression_is_a_mixture_of_gaussians(settle):
    pred = regressor(settle=settle)
    if settle:
        assert pred.counts.min() < pred.counts.max()
    y = torch.randn(6, 2, dtype=torch.float64)
    low, high = pred.interval(0.9)
    for i in range(6):
        reference, n = mixture(pred, i), int(pred.counts[i])
        assert torch.allclose(pred.mean[i], reference.mean)
        assert torch.allclose(pred.variance[i], reference.variance)
        for q, x in ((0.05, low[i]), (0.95, high[i]), (1e-6, pred.quantile(1e-6)[i]), (0.5, pred.quantile(0.5)[i])):
            assert torch.allclose(reference.cdf(x), torch.tensor(q, dtype=torch.float64), atol=1e-9)
        joint = Normal(pred.samples[:n, i], pred.noise[:n, i].sqrt()).log_prob(y[i]).sum(1)
        assert torch.allclose(pred.log_prob(y)[i], joint.logsumexp(0) - math.log(n))
    assert torch.allclose(pred.variance, pred.aleatoric + pred.epistemic)
    assert torch.allclose(pred.entropy, 0.5 * torch.log(2 * math.pi * math.e * pred.variance))


def test_outputs_without_a_second_dimension():
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    lb.bayesianize_(model, lb.MeanField(std=0.5))
    x, y = torch.randn(5, 4), torch.randn(5)
    flat = lb.predict(model, x, samples=8, task="regression")
    column = lb.predict(nn.Sequential(model[0]), x, samples=8, task="regression")
    assert flat.mean.shape == (5,)
    assert torch.allclose(flat.log_prob(y), column.log_prob(y))
    assert torch.allclose(flat.log_prob(y.unsqueeze(1)), column.log_prob(y.unsqueeze(1)))
    assert torch.allclose(flat.quantile(0.1), column.quantile(0.1).squeeze(1))


def test_a_far_away_mean_does_not_drown_a_small_spread():
    model = nn.Sequential(nn.Linear(1, 1)).double()
    with torch.no_grad():
        model[0].bias.fill_(1e7)
    lb.bayesianize_(model, lb.MeanField(std=1e-3))
    pred = lb.predict(model, torch.ones(1, 1, dtype=torch.float64), samples=500, task="regression")
    assert pred.epistemic.item() == pytest.approx(2e-6, rel=0.3)


@pytest.mark.parametrize("weighed", [False, True])
def test_large_outputs_are_averaged_sample_by_sample_to_the_same_answer(monkeypatch, weighed):
    outputs, found = torch.randn(5, 3, 2, 8, 8), []
    weights = torch.full((5,), 0.2, dtype=torch.float64) if weighed else None
    for apart in (1, 2**20):
        monkeypatch.setattr(Accumulator, "apart", apart)
        total = Accumulator(Segmentation(), keep=False, settle=None, weights=weights)
        total.add(outputs[:3], [0, 1, 2])
        total.add(outputs[3:], [3, 4])
        found.append(total.result("loop"))
    one, other = found
    for name in ("mean", "variance", "aleatoric", "epistemic", "energies"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-6, atol=1e-7)
    probs = outputs.double().softmax(2)
    torch.testing.assert_close(one.mean.double(), probs.mean(0), atol=1e-6, rtol=0)
    torch.testing.assert_close(one.variance.double(), probs.var(0, correction=0), atol=1e-6, rtol=0)


def test_masks_are_the_most_probable_classes_of_every_sample():
    x = torch.randn(3, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    for classes in (1, 2, 4):
        model = nn.Sequential(nn.Conv2d(1, classes, 3, padding=1))
        lb.bayesianize_(model, lb.MeanField(std=0.3))
        pred = lb.predict(model, x, samples=5, task="segmentation", keep_samples=True)
        assert torch.equal(pred.masks().long(), pred.samples.argmax(2))
        assert pred.masks().shape == (5, 3, 6, 6)
        assert pred.masks().dtype is (torch.long if classes == 4 else torch.bool)
        if classes == 4:
            with pytest.raises(PredictionError, match="expected two classes, received a prediction of 4"):
                pred.masks(0.3)
        else:
            assert torch.equal(pred.masks(0.3), pred.samples[:, :, 1] > 0.3)
            for threshold in (0, 1, -1.0, math.nan, "0.5"):
                with pytest.raises(PredictionError, match="threshold: expected"):
                    pred.masks(threshold)
    with pytest.raises(PredictionError, match="without settle="):
        lb.predict(model, x, samples=64, task="segmentation", keep_samples=True, settle=0.05).masks()
    with pytest.raises(PredictionError, match="keep_samples=True"):
        lb.predict(model, x, samples=2, task="segmentation").masks()
    with pytest.raises(PredictionError, match="masks exist for segmentation"):
        classifier().masks()


def test_wrong_questions_are_refused():
    pred = regressor(outputs=4)
    for name in ("probs", "labels", "mutual_information"):
        with pytest.raises(PredictionError, match=f"{name} exist for classification and segmentation"):
            getattr(pred, name)
    for q in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(PredictionError, match="above 0 and below 1"):
            pred.quantile(q)
        with pytest.raises(PredictionError, match="above 0 and below 1"):
            pred.interval(q)
    for shape in ((2, 6), (6,), (6, 1), (12,)):
        with pytest.raises(DataError, match="expected targets of shape"):
            pred.log_prob(torch.zeros(shape))
    classes = classifier()
    with pytest.raises(PredictionError, match="regression"):
        classes.quantile(0.5)
    model = nn.Sequential(nn.Linear(4, 3))
    lb.bayesianize_(model, lb.MeanField())
    with pytest.raises(PredictionError, match="keep_samples=True"):
        lb.predict(model, torch.ones(1, 4), samples=2, task="classification").samples
