import pytest
import torch
from torch import nn

from leanbayes.convert.apply import bayesianize_
from leanbayes.errors import TrainingError
from leanbayes.likelihoods import Regression
from leanbayes.methods import MeanField
from leanbayes.training.fit import fit

X, Y = torch.ones(8, 2), torch.ones(8, 1)


class Log(nn.Module):
    def forward(self, x):
        return (x - x).log() * 0  # 0 * -inf


def train(model, x=X, task="regression", **options):
    fit(model, (x, Y), task=task, epochs=2, progress=False, **options)


def test_the_layer_is_named():
    with pytest.raises(
        TrainingError, match=r"step 0 \(epoch 0\): loss is nan: .* layer '1.0' \(Log\), whose inputs .* finite"
    ):
        train(nn.Sequential(nn.Linear(2, 2), nn.Sequential(Log(), nn.ReLU()), nn.Linear(2, 1)))


def test_a_bad_parameter_is_named():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[1].bias.data.fill_(torch.inf)
    with pytest.raises(
        TrainingError, match=r"loss is inf: .* layer '1' \(Linear\), whose 'bias' was non-finite already"
    ):
        train(model)


def test_bad_inputs_are_told_from_bad_layers():
    x = X.clone()
    x[3, 1] = torch.nan
    with pytest.raises(TrainingError, match="inputs of this batch are non-finite"):
        train(nn.Linear(2, 1), x)


def test_the_kl_is_told_from_the_likelihood():
    class Impossible(nn.ReLU):
        def kl_terms(self):
            yield self, lambda: torch.tensor(torch.inf)

    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(Impossible(), nn.Linear(2, 1)))
    bayesianize_(model, MeanField())
    with pytest.raises(TrainingError, match=r"loss is inf: nll is .* but the KL is inf, because of layer '1\.0'"):
        train(model)


def test_the_likelihood_is_told_from_the_layers():
    class Huge(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1e30))

        def forward(self, x):
            return x[:, :1] * self.scale

    with pytest.raises(TrainingError, match="every layer's output is finite, but the regression log-likelihood"):
        train(Huge(), task=Regression(std=1e-6))


def test_the_noise_of_the_bad_step_is_drawn_again():
    """A layer that fails for some noise only: the second look must see the same noise."""

    class Rare(nn.Module):
        def forward(self, x):
            return x / (torch.rand(()) > 0.2)

    with pytest.raises(TrainingError, match=r"layer '1' \(Rare\)"):
        fit(nn.Sequential(nn.Linear(2, 2), Rare(), nn.Linear(2, 1)), (X, Y), task="regression", epochs=100, lr=1e-6)


def test_parameters_stay_as_they_were():
    model = nn.Sequential(nn.Linear(2, 1), Log())
    before = model[0].weight.clone()
    with pytest.raises(TrainingError):
        train(model)
    assert torch.equal(model[0].weight, before)
    assert not model[0]._forward_hooks
