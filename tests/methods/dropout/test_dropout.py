import pytest
from torch import nn

import leanbayes as lb


def converted(model, **options):
    return lb.plan(model, lb.Dropout(**options)).converted


def test_alone_it_takes_the_models_own_dropout():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1), nn.Linear(2, 2), nn.Dropout2d(0.3))
    assert converted(model) == ["1", "3"]
    lb.bayesianize_(model, lb.Dropout())
    assert (model[1].rate, model[3].rate) == (0.1, 0.3)


def test_without_any_it_takes_all_weight_layers_but_the_first():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(2, 2))
    assert converted(model) == ["1", "3"]
    lb.bayesianize_(model, lb.Dropout())
    assert model[3].mask.rate == lb.Dropout().elsewhere == 0.05
    assert converted(nn.Sequential(nn.Linear(2, 2))) == ["0"]
    assert converted(nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 2), nn.Linear(2, 2))) == ["2"]


def test_own_dropout_of_rate_zero_makes_no_noise_so_it_does_not_count_unless_a_rate_is_given():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0), nn.Linear(2, 2))
    assert converted(model) == ["2"]
    assert converted(model, rate=0.2) == ["1"]


def test_own_dropout_of_rate_one_is_refused_unless_a_rate_is_given():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(1.0))
    with pytest.raises(lb.LeanBayesError, match="drops everything"):
        lb.plan(model, {nn.Dropout: lb.Dropout()})
    assert converted(model, rate=0.2) == ["1"]


def test_embeddings_are_refused():
    with pytest.raises(lb.LeanBayesError, match="its inputs are indices"):
        lb.plan(nn.Sequential(nn.Embedding(3, 2)), {nn.Embedding: lb.Dropout()})


def test_it_adds_no_parameters_and_no_kl():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    names = list(model.state_dict())
    plan = lb.bayesianize_(model, lb.Dropout(0.2))
    assert plan.growth == 1
    assert list(model.state_dict()) == names
    assert lb.kl_sum(model) == 0
