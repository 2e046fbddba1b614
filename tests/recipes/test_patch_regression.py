"""The UCI recipe of ensemble model patching: what it trains on what, and what it measures."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from leanbayes.recipes.experiment import reproduce
from leanbayes.recipes.paper import printed
from leanbayes.recipes.patch import regression as recipe
from leanbayes.recipes.patch.density import TAU, best_precision, ceiling, log_density, quality
from leanbayes.recipes.patch.regression import EXPERIMENT, METHODS, SETUPS, RegressionSetup
from leanbayes.recipes.patch.splits import Split, Task
from leanbayes.recipes.patch.stack import Schedule, stacked
from leanbayes.recipes.table import result_table


def split_of(rows, seed=0, features=3):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows + 10, features, generator=generator)
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(rows + 10, 1, generator=generator)
    return Split(x[:rows], y[:rows], x[rows:], y[rows:], scale=2.0)


def test_smoke(tmp_path, monkeypatch):
    result = reproduce("patch-regression", "smoke", resume=tmp_path)
    json.dumps(result, allow_nan=False)
    assert [row["method"] for row in result["rows"]] == list(METHODS)
    for row in result["rows"]:
        found = row["metrics"]
        assert found["rmse"]["n"] == 2
        assert found["rmse SE"]["n"] == 1
        assert found["rmse SE"]["mean"] == pytest.approx(found["rmse"]["std"] / math.sqrt(2))
        assert found["lpd"]["mean"] <= ceiling(TAU)
    assert result_table(result)
    assert EXPERIMENT.figure(result).startswith("<svg")
    monkeypatch.setattr(recipe, "measured", lambda *args: pytest.fail("trained twice"))
    assert reproduce("patch-regression", "smoke", resume=tmp_path)["rows"] == result["rows"]


def test_the_presets_are_as_published():
    for preset in ("cpu", "paper"):
        tasks = {task.data: task for task in SETUPS[preset].tasks}
        assert set(tasks) == set(printed("patch-regression")) - {"columns"}
        assert all(tasks[f"uci/{name}"].hidden == (100 if name == "protein" else 50) for name in ("protein", "boston"))
        for name in ("boston", "concrete", "energy", "kin8nm", "power", "wine", "yacht"):
            assert tasks[f"uci/{name}"].splits == 20
        assert min(tasks["uci/naval"].splits, tasks["uci/protein"].splits) >= 5
        for name in ("boston", "concrete", "energy", "wine", "yacht"):
            assert tasks[f"uci/{name}"].epochs == 4000
    assert all(task.epochs == 4000 for task in SETUPS["paper"].tasks)
    assert SETUPS["paper"].samples == 10_000
    assert Schedule() == Schedule(epochs=4000, batch_size=100, lr=1e-3, decay=0.01)
    known = {"rmse": 1.59, "rmse SE": 0.23, "lpd": -2.25, "lpd SE": 0.02}
    assert printed("patch-regression", "uci/yacht", "ECMP") == known
    assert round(ceiling(TAU), 3) == -2.070


@pytest.mark.parametrize("method", METHODS)
def test_networks_start_as_published(method):
    model = recipe.network(method, 7, 50, 0.05)
    assert model(torch.randn(9, 7)).shape == (9, 1)
    norms = [layer for layer in model if hasattr(layer, "running_mean")]
    assert len(norms) == (0 if method == "mean-field" else 2)
    for norm in norms:
        gamma = norm.posteriors["weight"].mean if method in ("EMP", "ECMP") else norm.weight
        assert gamma.mean().item() == pytest.approx(0.2, abs=1e-6)
    rates = [layer.rate for layer in model if hasattr(layer, "rate")]
    assert rates == ([0.05, 0.05] if method == "dropout" else [])
    assert len(stacked([model]).layers) == len(model)  # no layer is met only once because it is used twice


def test_splits_of_other_sizes_are_trained_beside_their_like():
    torch.manual_seed(0)
    data = [split_of(rows, seed) for seed, rows in enumerate((23, 24, 23))]
    models = [recipe.network("vanilla", 3, 5) for _ in data]
    alone = [recipe.network("vanilla", 3, 5) for _ in data]
    for one, model in zip(alone, models, strict=True):
        one.load_state_dict(model.state_dict())
    schedule = Schedule(epochs=2, batch_size=10)
    recipe.fit("vanilla", models, data, schedule)
    recipe.fit("vanilla", [alone[1]], [data[1]], schedule)
    recipe.fit("vanilla", [alone[0], alone[2]], [data[0], data[2]], schedule)
    for one, model in zip(alone, models, strict=True):
        for a, b in zip(one.state_dict().values(), model.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b)


def test_nothing_is_learned_from_test_rows():
    data = [split_of(30, seed) for seed in range(2)]
    blind = [replace(split, x_test=split.x_test * math.nan, y_test=split.y_test * math.nan) for split in data]
    task, schedule = Task("none", splits=2, hidden=5), Schedule(epochs=2)
    rates = []
    for splits in (data, blind):
        torch.manual_seed(0)
        models = [recipe.network("ECMP", 3, 5) for _ in splits]
        recipe.fit("ECMP", models, splits, schedule)
        rates.append(
            (recipe.tuned(task, splits, (0.05, 0.5), schedule), [p.sum().item() for p in models[0].parameters()])
        )
    assert rates[0] == rates[1]
    assert all(map(math.isfinite, rates[1][1]))


def test_the_rate_that_does_best_on_held_out_rows_is_chosen():
    torch.manual_seed(0)
    data = [split_of(60, seed) for seed in range(2)]  # hardly any noise: dropping inputs only hurts
    rates = recipe.tuned(Task("none", hidden=20), data, (0.6, 0.001), Schedule(epochs=60, lr=0.02))
    assert rates == [0.001, 0.001]


def test_densities_agree_with_scipy():
    rng = np.random.default_rng(0)
    outputs, y = rng.normal(size=(6, 5, 1)), rng.normal(size=(5, 1))
    by_hand = np.log(stats.norm.pdf(y, outputs, 1 / np.sqrt(3.0)).mean(0)).mean()
    assert log_density(torch.tensor(outputs), torch.tensor(y), 3.0) == pytest.approx(by_hand, rel=1e-9)
    noisy = torch.zeros(1, 5000, 1, dtype=torch.double), torch.tensor(rng.normal(scale=0.5, size=(5000, 1)))
    assert best_precision(*noisy) == pytest.approx(4.0, rel=0.15)  # the grid's step is 26 %


def test_metrics_are_in_the_units_of_the_target():
    split = split_of(40)
    model = torch.nn.Linear(3, 1)
    found = quality([model], split, 5)
    error = (model(split.x_test) - split.y_test).detach().numpy() * split.scale
    assert found["rmse"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-5)
    assert found["lpd"] == pytest.approx(stats.norm.logpdf(error, scale=np.sqrt(10)).mean(), rel=1e-5)
    assert found["lpd, own noise"] < 0
    both = quality([model, model], split, 5)
    assert both == pytest.approx(found, rel=1e-5)


def test_an_ensemble_has_five_networks_a_split(monkeypatch):
    asked = []
    monkeypatch.setattr(recipe, "splits_of", lambda task: [split_of(20, seed) for seed in range(task.splits)])
    monkeypatch.setattr(recipe, "quality", lambda models, split, samples: asked.append(models) or {"rmse": 1.0})
    setting = RegressionSetup((), samples=5)
    recipe.measured(Task("none", splits=2, epochs=1, hidden=4), "ensemble", setting)
    assert [len(models) for models in asked] == [5, 5]
    assert len({id(model) for models in asked for model in models}) == 10


def test_starts_are_averaged_and_statistics_settled(monkeypatch):
    """Three networks a split, each asked alone, before and after their statistics are re-estimated."""
    asked = []
    monkeypatch.setattr(recipe, "splits_of", lambda task: [split_of(20, seed) for seed in range(task.splits)])

    def quality(models, split, samples):
        asked.append((id(models[0]), [b.clone() for n, b in models[0].named_buffers() if "running" in n]))
        return {"rmse": float(len(asked)), "lpd": -1.0}

    monkeypatch.setattr(recipe, "quality", quality)
    found = recipe.measured(Task("none", splits=2, epochs=1, hidden=4), "ECMP", RegressionSetup((), samples=5))
    assert [split["rmse"] for split in found] == [2.0, 8.0]
    assert [split["rmse, settled"] for split in found] == [5.0, 11.0]
    before, after = ([*asked[at : at + 3], *asked[at + 6 : at + 9]] for at in (0, 3))
    assert len({one for one, _ in asked}) == 6
    for (one, left), (same, new) in zip(before, after, strict=True):
        assert one == same
        assert not any(torch.equal(a, b) for a, b in zip(left, new, strict=True))
