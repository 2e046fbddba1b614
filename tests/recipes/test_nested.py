"""Recipes of nested posteriors: networks that are shared, widths as they are cut, and the paper's figures in place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import leanbayes as lb
from leanbayes.recipes.catalogue import find
from leanbayes.recipes.experiment import reproduce
from leanbayes.recipes.nested import limited_parameters, networks, snr_pruning, tails

NAMES = ("nested-widths", "nested-tails", "snr-pruning", "limited-parameters", "bn-statistics", "nested-cost")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, dict], Path]:
    """All smoke presets, one after the other in one folder."""
    folder = tmp_path_factory.mktemp("runs")
    return {name: reproduce(name, "smoke", resume=folder / f"{name}.smoke") for name in NAMES}, folder


def _rows(result: dict, method: str) -> dict:
    rows = [row for row in result["rows"] if row["method"] == method]
    return {row["setting"]: {k: v["mean"] for k, v in row["metrics"].items()} for row in rows}


def test_every_network_is_trained_once(results: tuple[dict[str, dict], Path]) -> None:
    files = list((results[1] / "networks").iterdir())
    assert len(files) == 5  # BN3, FN3, IBNN at two widths, SVB


def test_all_widths_are_asked(results: tuple[dict[str, dict], Path]) -> None:
    found = results[0]["nested-widths"]
    for method in ("BN3", "DT-BN3", "FN3", "FN3-TS", "IBNN"):
        rows = _rows(found, method)
        assert list(rows) == [0.25, 1.0]
        assert all(0 <= row["accuracy"] <= 1 and row["nll"] > 0 for row in rows.values())
    assert _rows(found, "FN3")[1.0]["accuracy"] == _rows(found, "FN3-TS")[1.0]["accuracy"]  # one network, one argmax
    assert _rows(found, "FN3")[1.0]["nll"] > _rows(found, "FN3-TS")[1.0]["nll"]


def test_tails_are_probabilities_that_have_moved(results: tuple[dict[str, dict], Path]) -> None:
    layers = _rows(results[0]["nested-tails"], "BN3")
    curves = {row["setting"]: row["curves"]["tails"] for row in results[0]["nested-tails"]["rows"]}
    assert set(layers) == {"conv2", "conv3", "conv4"}
    for layer, found in layers.items():
        assert [point["node"] for point in curves[layer]] == [1, 2, 3, 4]
        beta = [point["probability"]["mean"] for point in curves[layer]]
        assert len(beta) == 4
        assert sum(beta) == pytest.approx(1)
        assert found["moved"] == pytest.approx(sum(abs(p - 0.25) for p in beta) / 2)
    assert max(found["moved"] for found in layers.values()) > 0
    assert tails.average([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]) == pytest.approx(2 / 3)


def test_weights_in_use(results: tuple[dict[str, dict], Path]) -> None:
    used = {row["method"]: row["metrics"]["weight usage"]["mean"] for row in results[0]["limited-parameters"]["rows"]}
    assert used["smallest BN3"] < used["BN3-MC"] < used["BN3"] == 1
    for setting, row in _rows(results[0]["snr-pruning"], "SNR").items():
        assert row["removed"] == pytest.approx(setting, abs=1e-3)
    removed = [row["removed"] for row in _rows(results[0]["snr-pruning"], "BN3").values()]
    assert removed == sorted(removed)
    assert removed[0] == 0


def test_costs_are_relative_to_a_bayesian_network(results: tuple[dict[str, dict], Path]) -> None:
    rows = {row["method"]: row for row in results[0]["nested-cost"]["rows"]}
    assert rows["IBNN"]["metrics"]["train x IBNN"]["mean"] == 1
    assert rows["BN3"]["paper"]["train x IBNN"] == pytest.approx(1.99, abs=0.01)
    assert rows["DT-BN3"]["metrics"]["test"]["mean"] > 0


def test_figures_are_drawn(results: tuple[dict[str, dict], Path]) -> None:
    for name in ("nested-widths", "nested-tails", "snr-pruning", "bn-statistics"):
        draw = find(name).load().figure
        assert draw is not None
        assert draw(results[0][name]).lstrip().startswith("<svg")


def fresh(setup, width=1.0):
    torch.manual_seed(0)
    return setup.of("IBNN", width).network(setup.training.load())


def test_the_share_of_weights_by_hand() -> None:
    setup = networks.digits()
    model = fresh(setup)
    lb.bayesianize_(model, setup.methods("FN3"))
    full = [8, 16, 32, 32]  # channels of the convolutions; the first is not ordered

    def weights(channels: list[int]) -> int:
        pairs = zip([1, *channels], channels, strict=False)
        return sum(9 * a * b for a, b in pairs) + channels[-1] * 16 + 16 * 10

    assert networks.share_of_weights(model, 0.25) == weights([8, 4, 8, 8]) / weights(full)
    assert networks.weights_in_all(fresh(setup, 0.25)) == weights([8, 4, 8, 8])
    width, share = snr_pruning.nearest_width(model, 0.55)
    assert width == 0.75
    assert share == weights([8, 12, 24, 24]) / weights(full)


def test_shares_that_are_drawn_follow_the_tails() -> None:
    setup = networks.digits()
    model = fresh(setup)
    lb.bayesianize_(model, setup.methods("FN3"))
    shares = limited_parameters.drawn_shares(model, draws=400)
    each = [networks.share_of_weights(model, width) for width in lb.widths(model)]
    expected, spread = sum(each) / 4, torch.tensor(each).std(correction=0).item()
    assert sum(shares) / 400 == pytest.approx(expected, abs=4 * spread / 20)
    assert set(shares) == set(each)


def test_the_paper_preset_keeps_two_thirds_of_one_and_a_half() -> None:
    setup = networks.published()
    run = replace(setup.training, data="digits", model="vgg_small")
    assert run.options == {"width": 1.5}
    alone = fresh(replace(setup, training=run))
    assert [alone.get_submodule(f"conv{n}").out_channels for n in (1, 2, 3, 4)] == [24, 32, 64, 64]
    assert setup.methods("BN3")["conv*"].weights.log_alpha == -1.0
