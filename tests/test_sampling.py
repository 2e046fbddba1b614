import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import sampling


def layer(std=0.5):
    model = nn.Sequential(nn.Linear(3, 2))
    lb.bayesianize_(model, lb.MeanField(std=std))
    return model


def test_using_restores_what_was_there_also_after_an_error():
    with pytest.raises(ZeroDivisionError), lb.using(estimator="weight", mean_only=True):
        1 / 0
    context = sampling.context
    assert (context.estimator, context.mean_only, context.draws) == (None, False, None)
    with lb.using(estimator="weight"):
        with lb.using(mean_only=True):
            assert context.mean_only
        assert context.estimator == "weight"


def test_sites_are_listed_once_in_a_stable_order():
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2, bias=False), "d": nn.Dropout(0.1)})
    model["again"] = model["a"]
    lb.bayesianize_(model, {nn.Linear: lb.MeanField(), nn.Dropout: lb.Dropout()})
    assert list(sampling.sites(model)) == ["a.posteriors.weight", "a.posteriors.bias", "b.posteriors.weight", "d"]


def test_noise_is_a_function_of_its_key_alone():
    site = next(iter(sampling.sites(layer()).values()))
    first = sampling.noise_of(site, 1, 2, 3)
    torch.rand(5)
    assert torch.equal(first, sampling.noise_of(site, 1, 2, 3))
    for key in ((1, 2, 4), (1, 3, 3), (2, 2, 3), (3, 2, 1), (-1, 2, 3)):
        assert not torch.equal(first, sampling.noise_of(site, *key))
    state = torch.get_rng_state()
    sampling.noise_of(site, 1, 2, 3)
    assert torch.equal(state, torch.get_rng_state())


def test_mixed_keys_are_valid_seeds_without_collisions():
    keys = {
        sampling.mix(seed, site, sample) for seed in (-5, 0, 1, 2**63) for site in range(50) for sample in range(50)
    }
    assert len(keys) == 4 * 50 * 50
    assert all(0 <= key < 2**63 for key in keys)
    low_bits = torch.tensor([key & 1 for key in keys], dtype=torch.float64)
    assert abs(low_bits.mean().item() - 0.5) < 4.5 * 0.5 / math.sqrt(len(keys))


def test_given_draws_are_used_and_other_sites_draw_afresh():
    model = layer()
    q = model[0].posteriors
    noise = {id(q["weight"]): torch.zeros(2, 3)}
    with lb.using(estimator="weight", draws=noise):
        first, second = model(torch.ones(1, 3)), model(torch.ones(1, 3))
    assert not torch.equal(first, second)  # the bias was not given
    noise[id(q["bias"])] = torch.zeros(2)
    with lb.using(estimator="weight", draws=noise):
        drawn = model(torch.ones(1, 3))
    with lb.using(mean_only=True):
        assert torch.equal(drawn, model(torch.ones(1, 3)))


def test_training_draws_from_the_global_generator():
    model = layer()
    answers = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        answers.append(model(torch.ones(1, 3)))
    assert torch.equal(answers[0], answers[1])
    assert not torch.equal(answers[0], answers[2])


def test_watching_tells_of_every_draw_and_ends():
    model, seen = layer(), []
    with lb.using(estimator="weight"), sampling.watching(seen.append):
        model(torch.ones(1, 3))
    assert seen == list(sampling.sites(model).values())
    assert sampling.context.watch is None
