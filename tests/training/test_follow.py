"""Loops of one's own with `follow`, held against `fit` and against what was forgotten."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import ConfigError, LeanBayesError, TrainingError
from leanbayes.sampling import mix, sites
from leanbayes.training import rng

METHODS = {
    "mean-field": lb.MeanField(),
    "sparse": lb.SparseSubspace(density=0.3, interval=3),
    "mean addition": lb.SparseSubspace(density=0.3, interval=3, addition="steps", addition_steps=2),
    "rigl": lb.Rigl(density=0.3, interval=3),
    "learned mixing": lb.Patch(3, cross=False, mixing="learned"),
    "ensemble": lb.Ensemble(2),
    "annealed": lb.Nested(anneal_steps=5, final_temperature=0.2),
}
STEPS = 12


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


def batches():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(STEPS, 20, 4, generator=generator)
    return list(zip(x, torch.randint(3, (STEPS, 20), generator=generator), strict=True))


def state(model):
    return {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("name", METHODS)
def test_a_loop_of_ones_own_ends_where_fit_does(name):
    fitted, own = network(), network()
    for model in (fitted, own):
        torch.manual_seed(0)
        lb.bayesianize_(model, METHODS[name])
    before = copy.deepcopy(state(own))
    data = batches()
    lb.fit(
        fitted, data, num_data=240, epochs=1, task="classification", kl_weight=1.0, seed=3, progress=False,
        optimizer=torch.optim.SGD(fitted.parameters(), lr=0.1, momentum=0.9),
    )  # fmt: skip

    optimizer = torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9)
    elbo = lb.ELBO("classification", num_data=240)
    following = lb.follow(own, optimizer, elbo, total_steps=STEPS)
    own.train()
    rng.seed_all(mix(3, 0))  # as fit(seed=3) does
    for x, y in data:
        optimizer.zero_grad()
        elbo(own, own(x), y).loss.backward()
        optimizer.step()
        with torch.random.fork_rng(devices=()), torch.no_grad():
            own.eval()(x)  # validation does not count
        own.train()
    following.stop()
    assert following.state.step == STEPS
    moved = state(own)
    assert any(not torch.equal(moved[k], v) for k, v in before.items())
    if name in ("sparse", "mean addition", "rigl"):
        index = [k for k in moved if k.endswith("index")]
        assert any(not torch.equal(moved[k], before[k]) for k in index)
    if name == "learned mixing":
        assert any((site.logits - site.logits.mean()).abs().max() > 1e-4 for site in sites(own).values())
    assert all(torch.equal(moved[key], value) for key, value in state(fitted).items())
    said = [lb.predict(m, data[0][0], samples=4, seed=0).probs for m in (own, fitted)]  # both know their task
    assert torch.equal(*said)


def test_a_deterministic_network_is_trained_bit_for_bit_as_by_fit():
    fitted, own = network(), network()
    data = batches()
    lb.fit(
        fitted, data, num_data=240, epochs=1, task="classification", progress=False,
        optimizer=torch.optim.SGD(fitted.parameters(), lr=0.1),
    )  # fmt: skip
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    elbo = lb.ELBO("classification", num_data=240)
    lb.follow(own, optimizer, elbo)
    for x, y in data:
        optimizer.zero_grad()
        elbo(own, own(x), y).loss.backward()
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(state(fitted).values(), state(own).values(), strict=True))


def test_a_learned_noise_level_is_trained_remembered_and_saved(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 1))
    lb.bayesianize_(model, lb.MeanField())
    x = torch.randn(200, 4)
    y = x[:, :1] + 0.1 * torch.randn(200, 1)
    elbo = lb.ELBO(lb.Regression(noise="learned"), num_data=200)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    lb.follow(model, optimizer, elbo)
    for _ in range(150):
        optimizer.zero_grad()
        elbo(model, model(x), y).loss.backward()
        optimizer.step()
    noise = elbo.likelihood.mean_and_noise(y)[1].mean()
    assert noise < 0.2
    lb.save(model, tmp_path / "own.safetensors")
    loaded = lb.load(tmp_path / "own.safetensors", into=nn.Sequential(nn.Linear(4, 1)))
    for one in (model, loaded):
        assert lb.predict(one, x, samples=2).aleatoric.mean().item() == pytest.approx(noise.item(), rel=1e-4)


def test_save_can_be_told_the_task(tmp_path):
    model = nn.Sequential(nn.Linear(4, 3))
    lb.bayesianize_(model, lb.MeanField())
    lb.save(model, tmp_path / "m.safetensors", task=lb.ELBO("classification", num_data=1).likelihood)
    loaded = lb.load(tmp_path / "m.safetensors", into=nn.Sequential(nn.Linear(4, 3)))
    assert lb.predict(loaded, torch.randn(2, 4), samples=2).task == "classification"


def test_an_optimiser_from_before_the_conversion_is_refused():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lb.bayesianize_(model, {"4": lb.Patch(3)})
    with pytest.raises(ConfigError, match="make it after bayesianize_"):
        lb.follow(model, optimizer, lb.ELBO("classification", num_data=10))


@pytest.mark.parametrize("name", ["sparse", "learned mixing", "annealed"])
def test_hooks_out_of_order_are_an_error_not_a_silence(name):
    model = network()
    lb.bayesianize_(model, METHODS[name])
    (callback,) = lb.callbacks(model)
    with pytest.raises(TrainingError, match=r"lb\.follow"):
        callback.after_step(None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": 3}, "expected an nn.Module"),
        ({"optimizer": None}, "expected a torch optimizer"),
        ({"elbo": "classification"}, "expected lb.ELBO"),
        ({"total_steps": 0}, "total_steps"),
        ({"callbacks": [3]}, "callbacks"),
    ],
)
def test_nonsense_is_refused_before_anything_is_attached(change, message):
    model = network()
    given = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    given |= {"elbo": lb.ELBO("classification", num_data=10), **change}
    with pytest.raises(LeanBayesError, match=message):
        lb.follow(given.pop("model"), given.pop("optimizer"), given.pop("elbo"), **given)
    assert not model._forward_pre_hooks


def test_stop_lets_go_of_everything():
    model = network()
    optimizer, elbo = torch.optim.SGD(model.parameters(), lr=0.1), lb.ELBO("classification", num_data=10)
    following = lb.follow(model, optimizer, elbo)
    following.stop()
    following.stop()
    assert not model._forward_pre_hooks
    assert not elbo._forward_hooks
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


class Keys(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, a):
        return self.layer(a)


def test_batches_that_a_model_cannot_take_are_explained():
    batch = {"a": torch.randn(4, 4), "y": torch.zeros(4).long()}
    with pytest.raises(LeanBayesError, match=r"'labels', 'label' or 'targets'.*a, y"):
        lb.fit(Keys(), [batch], num_data=4, epochs=1, task="classification", progress=False)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    with pytest.raises(LeanBayesError, match="a batch of one datum"):
        lb.fit(
            model, (torch.randn(5, 4), torch.zeros(5).long()), batch_size=4, epochs=1, task="classification",
            progress=False,
        )  # fmt: skip
    words = np.array(["a", "b"]), np.zeros(2, dtype=int)
    with pytest.raises(LeanBayesError, match=r"train_loader: expected arrays of numbers .*np.unique"):
        lb.fit(model, words, epochs=1, task="classification", progress=False)
    for lists in (([[0.5, 1.0]], [1]), [[0.5, 1.0]]):
        with pytest.raises(LeanBayesError, match=r"received numbers in lists; pass np.asarray\(x\)"):
            lb.fit(model, lists, epochs=1, task="classification", progress=False)
