"""The tables of the pages about papers have the figures of results/."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .figures import ROOT, by_method, load, rows, spread


@pytest.mark.parametrize("page", ["README.md", "docs/papers/cifar10.md"])
def test_cifar10(page: str) -> None:
    found = by_method("results/cifar10.cpu.json")
    names = (("accuracy", 1, 100), ("nll", 3, 1), ("ece", 3, 1), ("svhn AUROC", 3, 1), ("corruption error", 3, 1))
    table = rows(page, "| | accuracy, % | NLL")
    assert {row[0] for row in table} == found.keys()
    for method, *cells in table:
        metrics = found[method]
        expected = [spread(metrics[name], digits, scale) for name, digits, scale in names]
        costs = [f"{metrics['parameters']['mean']:,.0f}", *(f"{metrics[n]['mean']:.1f}" for n in ("epochs", "passes"))]
        assert cells == [*expected, *costs], method


def test_attempts_and_seeds_of_cifar10() -> None:
    measured = set()
    for path in (ROOT / "results" / "pieces" / "cifar10.cpu").glob("*.json"):
        piece = json.loads(path.read_text())
        for row in piece["curves"].get("rows") or [piece["metrics"]]:
            cells = f"{100 * row['accuracy']:.1f} / {row['nll']:.3f} / {row['svhn AUROC']:.3f}"
            measured.add((row.get("method", piece["key"]["row"]), piece["key"].get("seed"), cells))
    attempts = rows("docs/papers/cifar10.md", "| | sparse subspace, 10 % | RigL, 10 % |")
    assert len(attempts) == 3
    for _, ours, rigl in attempts:
        assert {("sparse subspace, 10 %", 0, ours), ("RigL, 10 %", 0, rigl)} <= measured
    for name, *seeds in rows("docs/papers/cifar10.md", "| | seed 0 | seed 1 | seed 2 |"):
        assert {(name, seed, cells) for seed, cells in enumerate(seeds)} <= measured
    found = by_method("results/cifar10.cpu.json")
    text = (ROOT / "docs/papers/cifar10.md").read_text(encoding="utf-8")
    for name in ("sparse subspace, 10 %", "RigL, 10 %"):
        assert spread(found[name]["svhn AUROC"], 3) in text


def test_widths_of_nested_networks() -> None:
    found = {
        (r["dataset"], r["method"], r["setting"]): r["metrics"] for r in load("results/nested-widths.cpu.json")["rows"]
    }
    data = {"Fashion": "fashion-mnist", "CIFAR-10": "cifar10"}
    table = rows("docs/papers/nested.md", "| | accuracy, % | NLL | ECE")
    assert len(table) == 10
    for name, *cells in table:
        kind, method = name.split(", ")
        for cell, (metric, digits, scale) in zip(
            cells, (("accuracy", 1, 100), ("nll", 3, 1), ("ece", 3, 1), ("AUROC", 2, 1)), strict=True
        ):
            at = [found.get((data[kind], method, width)) for width in (0.25, 0.5, 0.75, 1.0)]
            expected = ["-" if m is None else f"{scale * m[metric]['mean']:.{digits}f}" for m in at]
            assert cell == " / ".join(expected), (name, metric)


def test_ablation_of_nested_posteriors() -> None:
    found: dict[str, dict[Any, dict[str, Any]]] = {}
    for row in load("results/nested-ablation.cpu.json")["rows"]:
        found.setdefault(row["method"], {})[row["setting"]] = row["metrics"]
    table = rows("docs/papers/nested.md", "| | accuracy, % | NLL | ECE | AUPR | AUROC |")
    assert {row[0] for row in table} == found.keys()
    names = (("accuracy", 1, 100), ("nll", 3, 1), ("ece", 3, 1), ("AUPR", 2, 1), ("AUROC", 2, 1))
    for method, *cells in table:
        at = found[method].values()
        assert cells == [" / ".join(f"{s * m[name]['mean']:.{d}f}" for m in at) for name, d, s in names], method
    text = " ".join((ROOT / "docs/papers/nested.md").read_text(encoding="utf-8").split())
    told = ("learned tails, noise (BN3)", "learned tails, no noise", "BN3, longer", "BN3, legacy")
    moved = [f"{found[name][0.25]['tails moved']['mean']:.2f}" for name in told]
    assert "of {} with noise and {} without; in 36 it is {}, in the authors' form {}".format(*moved) in text


def test_accuracy_of_sparse_subspaces() -> None:
    parts = [by_method("results/sparse-accuracy.cpu.json", f"fashion-mnist, {net}") for net in ("lenet5", "mlp")]
    for name, *cells in rows("docs/papers/sparse-subspace.md", "| | LeNet-5: accuracy, %"):
        method = name.replace("the same", "sparse subspace, 10 %")
        for part, (accuracy, nll, ece, density) in zip(parts, (cells[:4], cells[4:]), strict=True):
            metrics = part[method]
            assert accuracy == spread(metrics["accuracy"], 1, 100), name
            assert nll == spread(metrics["nll"], 3), name
            assert ece == spread(metrics["ece"], 3), name
            assert float(density) == pytest.approx(100 * metrics["density"]["mean"], abs=0.051), name


def test_densities_of_sparse_subspaces() -> None:
    found = {(row["method"], row["setting"]): row["metrics"] for row in load("results/sparse-density.cpu.json")["rows"]}
    names = (("accuracy", 1, 100), ("nll", 3, 1), ("ece", 3, 1))
    for density, *cells in rows("docs/papers/sparse-subspace.md", "| density | sparse subspace: accuracy, %"):
        at = float(density.removesuffix(" %")) / 100
        methods = ("dense VI" if at == 1 else "sparse subspace", "RigL")
        each = [found.get((method, at)) for method in methods]
        assert cells == [spread(m[name], d, s) if m else "-" for m in each for name, d, s in names], density


def test_corruptions_of_sparse_subspaces() -> None:
    every = load("results/sparse-corruption.cpu.json")["rows"]
    found = {(row["dataset"].split(", ")[1], row["method"], row["setting"]): row["metrics"] for row in every}
    for name, *cells in rows("docs/papers/sparse-subspace.md", "| | LeNet-5: clean | severity 5"):
        expected = [
            f"{100 * m['accuracy']['mean']:.1f} / {m['nll']['mean']:.3f} / {m['ece']['mean']:.3f}"
            for network in ("lenet5", "mlp")
            for m in (found[network, name, at] for at in (0, 5))
        ]
        assert cells == expected, name


def test_costs_of_sparse_subspaces() -> None:
    every = load("results/sparse-cost.cpu.json")["rows"]
    found = {(row["dataset"], row["method"], row["setting"]): row["metrics"] for row in every}
    for density, *cells in rows("docs/papers/sparse-subspace.md", "| density | LeNet-5: x dense VI"):
        each = [found[data, "sparse subspace", float(density[:-2]) / 100] for data in ("fashion-mnist", "cifar10")]
        assert cells == [
            cell
            for m in each
            for cell in (
                *(f"{m[name]['mean']:.1f}" for name in ("x dense VI", "x plain")),
                f"{100 * m['share of bytes']['mean']:.1f} %",
            )
        ], density


def test_addition_and_new_weights() -> None:
    found = [row for name in ("addition", "init") for row in load(f"results/sparse-{name}.cpu.json")["rows"]]
    expected = [
        [row["method"], str(row["setting"]), spread(m["accuracy"], 1, 100), spread(m["nll"], 3), spread(m["ece"], 3)]
        for row in found
        for m in [row["metrics"]]
    ]
    assert rows("docs/papers/sparse-subspace.md", "| | setting | accuracy, % | NLL | ECE |") == expected


@pytest.mark.parametrize(
    ("dataset", "begins"), [("resnet18", "| vanilla | 0.0 % | 46.5"), ("pyramidnet", "| vanilla | 0.0 % | 53.1")]
)
def test_calibration_of_patches(dataset: str, begins: str) -> None:
    every = load("results/patch-calibration.cpu.json")["rows"]
    found = {row["method"]: row["metrics"] for row in every if dataset in row["dataset"]}
    heading = (
        "| | more parameters | accuracy | ECE | NLL | paper: accuracy / ECE |\n| --- | --- | --- | --- | --- | --- |\n"
    )
    for method, _, accuracy, ece, nll, _ in rows("docs/papers/patch.md", heading + begins):
        metrics = found[method]
        assert accuracy == spread(metrics["accuracy"], 1, 100), method
        assert ece == spread(metrics["ece"], 3), method
        assert nll == spread(metrics["nll"], 2), method


@pytest.mark.parametrize(
    ("first", "metric", "scale"),
    [
        ("| ELBO, nats |", "elbo", 1),
        ("| squared error x 1000 |", "mse", 1000),
        ("| feature distance |", "feature distance (LeNet-5 on the same data)", 1),
    ],
)
def test_ordered_latents(first: str, metric: str, scale: int) -> None:
    found: dict[tuple[str, str], dict[float, str]] = {}
    for row in load("results/ordered-latents.cpu.json")["rows"]:
        if metric in row["metrics"]:
            cell = spread(row["metrics"][metric], 1, scale)
            found.setdefault((row["method"], row["dataset"]), {})[row["setting"]] = cell
    table = {(method, data): cells for method, data, *cells in rows("docs/papers/ordered-latents.md", first)}
    assert table == {key: [at.get(part, "") for part in (0.25, 0.5, 0.75, 1.0)] for key, at in found.items()}


def test_ordered_latents_beside_the_paper() -> None:
    distance = "feature distance (LeNet-5 on the same data)"
    found = {
        (row["method"], f"{row['setting']:.0%}".replace("%", " %")): (
            f"{row['paper']['FID']:.2f}",
            spread(row["metrics"][distance], 1),
            f"{row['paper']['reconstruction error']:.3f}",
            spread(row["metrics"]["mse"], 1, 1000),
        )
        for row in load("results/ordered-latents.cpu.json")["rows"]
        if row["paper"] and distance in row["metrics"]
    }
    table = rows("docs/papers/ordered-latents.md", "| CIFAR-10 | part of the code |")
    assert {(method, part): tuple(cells) for method, part, *cells in table} == found


def test_samples_of_a_probabilistic_unet() -> None:
    ratios = load("benchmarks/results/segmentation.json")["ratios"]
    text = (ROOT / "docs/guide/segmentation.md").read_text(encoding="utf-8")
    for part, width in (("took {:.2f} times", "full width"), ("and {:.2f} times with a quarter", "quarter width")):
        assert part.format(ratios[f"{width}: 16 samples / pass"]) in text
    assert max(ratios.values()) < 2


def test_segmentation() -> None:
    found = {
        row["method"]: row["metrics"]
        for row in load("results/lung-segmentation.cpu.json")["rows"]
        if row["setting"] == 16
    }
    table = rows("docs/papers/segmentation.md", "| model | GED, unbiased |")
    assert {row[0] for row in table} == found.keys()
    for method, *cells in table:
        own = found[method]
        interval = " to ".join(f"{own[f'GED, unbiased, {end}']['mean']:.3f}" for end in ("low", "high"))
        unbiased, *others = (
            spread(own[name], 3) if own[name]["mean"] is not None else "-"  # all samples empty
            for name in ("GED, unbiased", "GED", "Dice of the mean", "correlation of variances")
        )
        assert cells == [unbiased, interval, *others], method
