"""Several models, sample counts and procedures in one comparison."""

import contextlib

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import EvaluationError
from leanbayes.evaluation.several_models import Row, evaluate_each, evaluate_rows, rows


@pytest.fixture
def pair():
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(3, (150,), generator=generator)
    return torch.randn(150, 4, generator=generator) + 2 * nn.functional.one_hot(y, 4), y


def network(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    lb.bayesianize_(model, lb.MeanField(std=0.3))
    return model


QUIET = {"task": "classification", "progress": False, "replicates": 50}


def test_rows_are_what_evaluate_gives_alone(pair):
    a, b = network(0), network(1)
    table = evaluate_each({"a": a, "b": b}, pair, samples=(2, 4), **QUIET)
    assert [e.name for e in table] == ["a, 2 samples", "a, 4 samples", "b, 2 samples", "b, 4 samples"]
    alone = lb.evaluate(b, pair, samples=4, **QUIET)
    assert table["b, 4 samples"].metrics == alone.metrics
    assert table["b, 4 samples"].replicates == alone.replicates


def test_procedures(pair):
    model = network()
    table = evaluate_each(model, pair, samples=8, procedures=("stochastic", "deterministic", "ensemble"), **QUIET)
    assert [e.name for e in table] == ["stochastic", "deterministic", "ensemble"]
    assert [e.settings["samples"] for e in table] == [1, 1, 8]
    assert table["deterministic"].settings["engine"] == "mean"
    assert table["deterministic"]["nll"] == lb.evaluate(model, pair, mean_only=True, **QUIET)["nll"]
    assert table["stochastic"]["nll"] == lb.evaluate(model, pair, samples=1, **QUIET)["nll"]


def test_what_a_model_cannot_do_becomes_a_note(pair):
    from leanbayes.layers.bayes import BayesLayer
    from leanbayes.posteriors import ZeroMeanGaussian

    model = network()
    for layer in [m for m in model.modules() if isinstance(m, BayesLayer)]:
        weight = layer.posteriors["weight"]
        layer.posteriors["weight"] = ZeroMeanGaussian.from_tensor(weight.mean.detach(), std=0.5)
    table = evaluate_each(model, pair, samples=4, procedures=("stochastic", "deterministic", "ensemble"), **QUIET)
    assert [e.name for e in table] == ["stochastic", "ensemble"]
    assert "deterministic is missing" in table["stochastic"].notes[-1]
    assert "deterministic is missing" in str(table)
    with pytest.raises(EvaluationError, match="received none; deterministic is missing"):
        evaluate_each(model, pair, procedures=("deterministic",), **QUIET)


def test_differences_are_paired_on_the_same_data(pair):
    table = evaluate_each({"a": network(0), "b": network(1)}, pair, samples=2, **QUIET)
    found = table.difference("accuracy", "a", "b")
    assert found.paired
    assert found.low <= found.value <= found.high
    x, y = pair
    other = lb.evaluate(network(1), (x.flip(0), y.flip(0)), samples=2, name="c", **QUIET)
    assert not lb.compare([table["a"], other]).difference("accuracy", "a", "c").paired


def test_a_row_may_set_the_model_and_puts_it_back(pair):
    """What widths of a nested model will use."""
    model = network()

    def scaled(by):
        @contextlib.contextmanager
        def within(model):
            before = model[0].posteriors["weight"].loc.data.clone()
            model[0].posteriors["weight"].loc.data.mul_(by)
            try:
                yield
            finally:
                model[0].posteriors["weight"].loc.data.copy_(before)

        return within

    before = {k: v.clone() for k, v in model.state_dict().items()}
    each = [Row(f"x{by}", model, {"samples": 2}, scaled(by)) for by in (1.0, 3.0)]
    table = evaluate_rows(each, pair, **QUIET)
    assert table["x1.0"]["nll"] != table["x3.0"]["nll"]
    assert table["x1.0"]["nll"] == lb.evaluate(model, pair, samples=2, **QUIET)["nll"]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_each_row_has_a_file_to_resume_from(pair, tmp_path):
    options = {"samples": (1, 2), "resume": tmp_path / "run.eval", **QUIET}
    first = evaluate_each(network(), pair, **options)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.1-sample.eval", "run.2-samples.eval"]
    again = evaluate_each(network(), pair, **options)
    assert [e.metrics for e in first] == [e.metrics for e in again]
    assert [e.cost for e in first] == [e.cost for e in again]  # not measured again


def test_a_generator_serves_all_rows(pair):
    x, y = pair
    table = evaluate_each(
        network(), ((x[at : at + 50], y[at : at + 50]) for at in (0, 50, 100)), samples=(1, 2), **QUIET
    )
    assert [e.count for e in table] == [150, 150]


@pytest.mark.parametrize(
    ("models", "options", "said"),
    [
        ([nn.Linear(1, 1)], {}, "by name, received list"),
        ({}, {}, "at least one"),
        ({"a": 3}, {}, r"models\['a'\]"),
        (nn.Linear(4, 3), {"samples": (2, 2)}, "each number once"),
        (nn.Linear(4, 3), {"samples": ()}, "at least one number"),
        (nn.Linear(4, 3), {"samples": (0,)}, "at least 1"),
        (nn.Linear(4, 3), {"samples": "many"}, "several whole numbers"),
        (nn.Linear(4, 3), {"procedures": ("magic",)}, "'stochastic', 'deterministic', 'ensemble'"),
        (nn.Linear(4, 3), {"procedures": "ensemble"}, "several procedures"),
        (nn.Linear(4, 3), {"name": "x"}, "every row has its own"),
    ],
)
def test_bad_calls(pair, models, options, said):
    with pytest.raises(EvaluationError, match=said):
        evaluate_each(models, pair, **options, **QUIET)


def test_names():
    assert [row.name for row in rows(nn.Linear(1, 1), 8, None)] == ["Linear"]
    assert [row.name for row in rows({"a": nn.Linear(1, 1)}, 8, None)] == ["a"]
    assert [row.name for row in rows(nn.Linear(1, 1), (1, 8), ("stochastic", "ensemble"))] == [
        "stochastic",
        "ensemble of 1",
        "ensemble of 8",
    ]
