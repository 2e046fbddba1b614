"""`save_pretrained` of a converted model warns; of a plain, restored or extracted one it does not."""

import copy
import warnings

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import LeanBayesWarning


class Hub(nn.Module):
    """A model that saves itself as those of the Hugging Face hub do."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(3, 2)

    def forward(self, x):
        return self.dense(x)

    def save_pretrained(self, folder, **options):
        folder.mkdir(exist_ok=True)
        torch.save(self.state_dict(), folder / "weights.pt")
        return sorted(self.state_dict())


def quiet(model, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return model.save_pretrained(folder)


def test_it_warns_while_layers_are_bayesian(tmp_path):
    model = Hub()
    plain = quiet(model, tmp_path)
    lb.bayesianize_(model, lb.MeanField())
    for converted in (model, copy.deepcopy(model)):
        with pytest.warns(LeanBayesWarning, match=r"from_pretrained does not know and would initialise anew.*lb.save"):
            names = converted.save_pretrained(tmp_path / "out")
        assert "dense.posteriors.weight.rho" in names
    assert quiet(lb.extract(model), tmp_path) == plain
    lb.restore_(model)
    assert quiet(model, tmp_path) == plain


def test_a_model_inside_another_is_found_and_one_that_was_loaded_too(tmp_path):
    outer = nn.Sequential(Hub(), nn.ReLU())
    lb.bayesianize_(outer, lb.MeanField())
    lb.save(outer, tmp_path / "m.safetensors", task="classification")
    again = lb.load(tmp_path / "m.safetensors", into=nn.Sequential(Hub(), nn.ReLU()))
    with pytest.warns(LeanBayesWarning, match="save_pretrained writes Bayesian layers"):
        again[0].save_pretrained(tmp_path)
