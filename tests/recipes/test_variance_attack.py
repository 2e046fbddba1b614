"""The attack on ensembles: every method at every iteration, and the figure."""

import json
from dataclasses import replace

import pytest

import leanbayes as lb
from leanbayes.recipes.experiment import reproduce
from leanbayes.recipes.table import result_table
from leanbayes.recipes.variance import attack


@pytest.fixture(scope="module")
def result():
    return reproduce("variance-attack", "smoke")


def test_a_row_for_every_method_and_iteration(result):
    json.dumps(result, allow_nan=False)
    setup = attack.SETUPS["smoke"]
    expected = [(name, i) for name in attack.ORDER for i in range(setup.iterations + 1)]
    assert [(row["method"], row["setting"]) for row in result["rows"]] == expected
    for row in result["rows"]:
        values = {name: metric["mean"] for name, metric in row["metrics"].items()}
        assert set(values) == {"success", "entropy", "clean_entropy", "accuracy"}
        assert 0 <= values["success"] + values["accuracy"] <= 1
        if row["setting"] == 0:
            assert values["entropy"] == values["clean_entropy"]
    assert "variance ensemble" in result_table(result)


def test_attacks_succeed_more_and_more_on_a_plain_network(result):
    found = [r["metrics"]["success"]["mean"] for r in result["rows"] if r["method"] == "plain network"]
    assert found == sorted(found)
    assert found[-1] > found[0] + 0.1


def test_the_figure_names_every_method(result):
    figure = attack.EXPERIMENT.figure(result)
    assert figure.startswith("<svg")
    for name in attack.ORDER:
        assert name in figure


def test_every_member_is_trained_as_long_as_a_network_alone():
    setup = attack.SETUPS["cpu"]
    plain, dropout, variance = (attack.training(setup, f) for f in attack.FAMILIES)
    assert plain.epochs == variance.epochs == 5 * dropout.epochs
    assert plain.methods == {"*": lb.Ensemble(5, init="fresh")}
    assert variance.methods["dense1"] == lb.Ensemble(5, method=lb.Variance(log_alpha=12.0), init="fresh")
    assert (plain.lr_scale, variance.lr_scale) == (None, 1e-3)


def test_the_paper_preset_can_be_planned():
    from leanbayes.models import build

    setup = attack.SETUPS["paper"]
    setup = replace(setup, training=replace(setup.training, options={"width": 1 / 16}))
    for family in attack.FAMILIES:
        run = attack.training(setup, family)
        model = build(run.model, **run.options)
        plan = lb.plan(model, dict(run.methods))
        assert ("drop1" in plan.converted) == (family != "plain")
        assert (family == "dropout") == (plan.growth == 1)
