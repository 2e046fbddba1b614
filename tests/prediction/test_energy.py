"""The energy score: against the logits that a hook saw, and the same however it was computed."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import PredictionError
from leanbayes.likelihoods import Classification, Custom


def network(outputs=3):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))
    lb.bayesianize_(model, lb.MeanField(std=0.5))
    return model


def overheard(model, x, **options):
    """The prediction, and the outputs (S, N, ...) of every pass behind it."""
    seen = []
    hook = model.register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))
    pred = lb.predict(model, x, strategy="loop", **options)
    hook.remove()
    return pred, torch.stack(seen)


@pytest.mark.parametrize("outputs", [1, 3])
def test_energy_is_the_mean_over_samples_of_the_logits_of_each(outputs):
    x = torch.randn(10, 4)
    pred, logits = overheard(network(outputs), x, samples=12, task="classification")
    pair = torch.cat([torch.zeros_like(logits), logits], 2) if outputs == 1 else logits
    each = [[-sum(v.exp() for v in row.double()).log() for row in sample] for sample in pair]
    assert len(logits) == 12
    assert torch.allclose(pred.energy.double(), torch.tensor(each, dtype=torch.float64).mean(0), atol=1e-6)


def test_settled_data_average_what_they_took():
    x = torch.cat([torch.randn(4, 4) * 0.01, torch.randn(4, 4) * 10])
    pred, logits = overheard(network(), x, samples=64, task="classification", settle=0.05)
    assert pred.counts.min() < pred.counts.max()
    for i, count in enumerate(pred.counts.tolist()):
        assert pred.energy[i] == pytest.approx(-float(logits[:count, i].logsumexp(1).mean()), abs=1e-5)


def test_a_temperature_does_not_enter():
    x = torch.randn(5, 4)
    plain, warm = (lb.predict(network(), x, samples=4, task=Classification(temperature=t)) for t in (1.0, 3.0))
    assert torch.equal(plain.energy, warm.energy)
    assert warm.entropy.min() > plain.entropy.min()


def test_pixels_have_an_energy_each():
    model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1))
    lb.bayesianize_(model, lb.MeanField(std=0.5))
    pred, logits = overheard(model, torch.randn(2, 1, 5, 4), samples=6, task="segmentation")
    assert torch.allclose(pred.energy, -logits.logsumexp(2).mean(0), atol=1e-6)
    assert pred.energy.shape == (2, 5, 4)


def test_where_there_is_none():
    x = torch.randn(5, 4)
    with pytest.raises(PredictionError, match="energies exist for classification and segmentation"):
        lb.predict(network(1), x, samples=2, task="regression").energy
    own = Custom(lambda f, y: f.sum(1), probs=lambda f: f.softmax(1))
    pred = lb.predict(network(), x, samples=2, task=own)
    with pytest.raises(PredictionError, match="where the outputs are logits"):
        pred.energy
    joined = lb.predict(network(), iter([x[:2], x[2:]]), samples=2, task=own)
    assert joined.energies is None
    assert len(joined) == 5


def test_half_precision_does_not_overflow():
    model = nn.Linear(1, 2).half()
    with torch.no_grad():
        model.weight.fill_(6e4)
        model.bias.zero_()
    pred = lb.predict(model, torch.ones(1, 1).half(), task="classification")
    assert pred.energy.item() == pytest.approx(-6e4, rel=1e-3)


def test_two_classes_are_added_as_many_are() -> None:
    logits = torch.tensor([[1e4, -1e4], [0.0, 1.0], [-torch.inf, 2.0], [-torch.inf, -torch.inf], [3e38, 3e38]])
    torch.testing.assert_close(Classification().energy(logits), -logits.logsumexp(1))
