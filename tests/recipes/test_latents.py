"""Experiments of latent codes: their cells, runs in the smallest preset, and how the baselines are cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import leanbayes as lb
from leanbayes.recipes.catalogue import find
from leanbayes.recipes.experiment import reproduce
from leanbayes.recipes.latents.networks import SETUPS, as_ordered, by_kl


def test_all_presets_have_cells() -> None:
    for preset in ("smoke", "cpu", "paper"):
        cells = list(find("ordered-latents", preset).load().cells(preset))
        assert len({str(sorted(cell.key.items(), key=str)) for cell in cells}) == len(cells)
    methods = {cell.method for cell in find("ordered-latents").load().cells("cpu") if cell.dataset == "mnist"}
    assert {"VAE", "VND-AE", "nested dropout", "beta-VAE (4)", "Joint-VAE", "SWAE"} <= methods
    trained = SETUPS["cpu"][0].trainings()
    assert {training.limit for training in trained.values()} == {10_000}  # the same care for all of them
    assert {training.epochs for training in trained.values()} == {6}


def test_progressive_generation_draws_pictures(tmp_path: Path) -> None:
    result = reproduce("progressive-generation", resume=tmp_path / "progressive-generation.smoke")
    assert {row["method"] for row in result["rows"]} == {"VND-AE", "nested dropout", "test images"}
    names = {path.name for path in (tmp_path / "progressive-generation.smoke").glob("*.png")}
    kinds = ("progressive", "tree", "traversal", "reconstructions")
    assert {f"VND-AE-on-digits-{name}.png" for name in kinds} <= names


def test_the_least_kl_is_zero_where_all_kappas_are() -> None:
    found = find("posterior-collapse").load()
    cell = next(iter(found.cells("smoke")))
    rows = cell.measure(None, 0)["rows"]
    by_name = {(row["method"], row["setting"]): row["kl"] for row in rows}
    assert by_name["least KL, all kappas equal", 0.0] == pytest.approx(0, abs=1e-6)
    assert by_name["least KL, the first kappa alone", 1.0] == pytest.approx(1, abs=1e-5)


def test_a_vae_is_cut_in_the_order_of_its_kl() -> None:
    torch.manual_seed(0)
    model = lb.image_autoencoder(lb.GaussianLatents(6), (1, 8, 8), width=4).eval()
    x = torch.rand(30, 1, 8, 8)
    with torch.no_grad():
        for parameter in model.code.parameters():
            parameter.normal_()
    task = "bernoulli"
    ordered = by_kl(model, x)
    torch.testing.assert_close(ordered.reconstruct(x, task=task), model.reconstruct(x, task=task))  # the same model
    mean, std = ordered.code.head(ordered.features(x))
    kl = (0.5 * (mean.square() + std.square() - 1) - std.log()).mean(0)
    assert bool((kl.diff() <= 1e-5).all())
    cut = as_ordered(ordered)
    torch.testing.assert_close(cut.reconstruct(x, 6, task=task), model.reconstruct(x, task=task))
    assert not torch.equal(cut.reconstruct(x, 3, task=task), model.reconstruct(x, task=task))
