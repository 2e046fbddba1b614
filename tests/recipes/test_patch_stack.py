"""Networks trained side by side equal the same networks trained one by one."""

import shutil
from functools import partial

import pytest
import torch
import torch._dynamo
from torch import nn

import leanbayes as lb
from leanbayes.methods.patch import norms
from leanbayes.recipes.patch.stack import Schedule, forward, kl, noise_of, stacked, train, write_back
from leanbayes.sampling import sites, using

STEPS = Schedule(epochs=3, batch_size=8, lr=0.01, decay=0.02)


def perceptron(method=None):
    model = nn.Sequential(
        nn.BatchNorm1d(4, momentum=0.3), nn.Linear(4, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.Linear(6, 1)
    )
    if method is not None:
        lb.bayesianize_(model, norms(method))
    return model


def data(networks=3, rows=21):
    """The last batch has 5 rows."""
    torch.manual_seed(1)
    return torch.randn(networks, rows, 4), torch.randn(networks, rows, 1)


@pytest.mark.parametrize(
    ("method", "compiled"),
    [
        (None, None),
        (lb.Patch(5, prior=None), None),
        (lb.Patch(5, prior=None), "aot_eager"),
        pytest.param(lb.Patch(5, prior=None), "inductor", marks=pytest.mark.long),
        (lb.Patch(3, cross=False, prior=None), None),
    ],
    ids=["plain", "ECMP", "ECMP traced", "ECMP compiled", "EMP"],
)
def test_training_equals_that_of_single_networks(method, compiled, monkeypatch):
    if compiled:
        if compiled == "inductor" and shutil.which("g++") is None:
            pytest.skip("torch.compile needs a C++ compiler")
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=compiled))
        torch._dynamo.utils.counters.clear()
        monkeypatch.setattr("leanbayes.recipes.patch.stack.COMPILED", 0)
    torch.manual_seed(0)
    models, (x, y) = [perceptron(method) for _ in range(3)], data()
    singles = [perceptron(method) for _ in range(3)]
    for one, model in zip(singles, models, strict=True):
        one.load_state_dict(model.state_dict())
    drawn = []

    def recorded(stack, rows):
        drawn.append(noise_of(stack, rows))
        return drawn[-1]

    monkeypatch.setattr("leanbayes.recipes.patch.stack.noise_of", recorded)
    stack = stacked(models)
    train(stack, x, y, STEPS, seed=5)
    write_back(stack, models)
    assert len(drawn) == 9
    assert not compiled or torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # batches of 8 and of 5

    for number, model in enumerate(singles):
        adam = torch.optim.Adam(model.parameters(), lr=STEPS.lr, weight_decay=STEPS.decay)
        generator, step = torch.Generator().manual_seed(5), 0
        for _ in range(STEPS.epochs):
            order = torch.rand(3, 1, 21, generator=generator).argsort(2)[number, 0]
            for rows in order.split(STEPS.batch_size):
                draws = {id(site): drawn[step][name][number] for name, site in sites(model).items()}
                with using(draws=draws):
                    loss = nn.functional.mse_loss(model(x[number, rows]), y[number, rows])
                adam.zero_grad()
                loss.backward()
                adam.step()
                step += 1
        found = models[number].state_dict()
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(found[name], tensor, atol=1e-5, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    inputs = torch.randn(7, 4)
    for one, model in zip(singles, models, strict=True):
        said = [lb.predict(m, inputs, samples=10, task="regression").mean for m in (one, model)]
        torch.testing.assert_close(*said, atol=1e-4, rtol=1e-4)


def test_without_a_compiler_training_is_the_same(monkeypatch):
    def broken(function, **options):
        def run(*args):
            raise RuntimeError("no compiler")

        return run

    found = []
    for steps in (0, 10**9):
        monkeypatch.setattr("leanbayes.recipes.patch.stack.COMPILED", steps)
        monkeypatch.setattr(torch, "compile", broken)
        torch.manual_seed(0)
        stack = stacked([perceptron() for _ in range(3)])
        train(stack, *data(), STEPS)
        found.append(stack.parameters)
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())


def noises(stack):
    """Draws of 400 steps, one after the other."""
    each = [noise_of(stack, 1) for _ in range(400)]
    return {name: torch.cat([one[name] for one in each]) for name in each[0]}


def test_assignments_are_uniform_and_shared_as_the_method_says():
    torch.manual_seed(0)
    emp, ecmp = (noises(stacked([perceptron(lb.Patch(4, cross=cross)) for _ in range(5)])) for cross in (False, True))
    assert {name: tuple(index.shape[1:]) for name, index in emp.items()} == {
        "0.posteriors.weight.assignment": (),
        "3.posteriors.weight.assignment": (),
    }
    assert {index.shape[1:] for index in ecmp.values()} == {(4,), (6,)}
    assert len(ecmp) == 4  # gamma and beta draw by themselves
    for index in (*emp.values(), *ecmp.values()):
        shares = torch.bincount(index.flatten(), minlength=4) / index.numel()
        assert (shares - 0.25).abs().max() < 4 * (0.1875 / index.numel()) ** 0.5


def test_dropout_has_a_rate_for_every_network():
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Dropout(rate), nn.Linear(1, 1)) for rate in (0.1, 0.5)]
    for model in models:
        lb.bayesianize_(model, lb.Dropout())
        nn.init.ones_(model[1].weight)
        nn.init.zeros_(model[1].bias)
    stack = stacked(models)
    out = forward(stack, torch.ones(2, 1, 40_000), noise_of(stack, 40_000)).squeeze(1)
    for said, rate in zip(out, (0.1, 0.5), strict=True):
        assert sorted(said.unique().tolist()) == pytest.approx([0, 1 / (1 - rate)])
        assert (said == 0).double().mean().item() == pytest.approx(rate, abs=4 * (rate * (1 - rate) / 40_000) ** 0.5)


def test_mean_field_has_the_moments_and_the_kl_of_the_library():
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(3, 2)) for _ in range(2)]
    for model in models:
        lb.bayesianize_(model, lb.MeanField(std=0.3, prior=lb.Normal()))
    stack, x = stacked(models), torch.randn(2, 3)
    count = 40_000
    out = forward(stack, x.unsqueeze(2).expand(-1, -1, count).contiguous(), noise_of(stack, count))
    for said, model, row in zip(out, models, x, strict=True):
        weight, bias = (model[0].posteriors[name] for name in ("weight", "bias"))
        mean = nn.functional.linear(row, weight.mean, bias.mean)
        variance = nn.functional.linear(row.square(), weight.variance, bias.variance)
        assert ((said.mean(1) - mean).abs() < 4 * (variance / count).sqrt()).all()
        assert ((said.var(1) / variance - 1).abs() < 4 * (2 / count) ** 0.5).all()
    assert kl(stack).item() == pytest.approx(sum(lb.kl_sum(model).item() for model in models), rel=1e-5)


def test_the_learned_noise_is_that_of_the_data():
    torch.manual_seed(0)
    x = torch.randn(2, 400, 3)
    stds = torch.tensor([0.2, 0.8])
    y = x.sum(2, keepdim=True) + stds.reshape(2, 1, 1) * torch.randn(2, 400, 1)
    models = [nn.Sequential(nn.Linear(3, 1)) for _ in range(2)]
    for model in models:
        lb.bayesianize_(model, lb.MeanField(std=0.01))
    stack = stacked(models)
    before = [p.clone() for model in models for p in model.parameters()]
    found = train(stack, x, y, Schedule(epochs=60, lr=0.05, decay=0.0, learn_noise=True))
    assert found.tolist() == pytest.approx(stds.tolist(), rel=0.12)  # of 400 data: 2 standard errors are 7 %
    assert all(torch.equal(a, b) for a, b in zip(before, [p for m in models for p in m.parameters()], strict=True))
    write_back(stack, models)
    assert lb.predict(models[0], torch.ones(1, 3), samples=50, task="regression").mean.item() == pytest.approx(
        3, abs=0.1
    )
