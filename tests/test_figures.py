"""The tables of README and of the pages about papers have the figures of results/ and benchmarks/results/."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def load(path: str) -> dict[str, Any]:
    """One file of results."""
    return dict(json.loads((ROOT / path).read_text(encoding="utf-8")))


def rows(page: str, first: str) -> list[list[str]]:
    """The cells of the table whose heading begins with `first`, below the heading."""
    text = (ROOT / page).read_text(encoding="utf-8")
    table = text[text.index(first) :].split("\n\n")[0].strip().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def spread(metric: dict[str, Any], digits: int, scale: float = 1.0) -> str:
    """Mean and standard deviation, as pages write them."""
    mean = f"{scale * metric['mean']:.{digits}f}"
    return mean if metric["std"] is None else f"{mean} ± {scale * metric['std']:.{digits}f}"


def by_method(path: str, dataset: str = "") -> dict[str, dict[str, Any]]:
    """The metrics of a result by method, of data sets whose name begins like this."""
    return {row["method"]: row["metrics"] for row in load(path)["rows"] if row["dataset"].startswith(dataset)}


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


def test_baselines() -> None:
    found = by_method("results/baselines.cpu.json")
    names = ("accuracy", "nll", "ece", "not-digits/letters AUROC", "not-digits/photos AUROC")
    table = rows("docs/papers/baselines.md", "| | accuracy | NLL")
    assert {row[0] for row in table} == found.keys()
    for method, *cells in table:
        expected = [spread(found[method][name], 3) for name in names]
        assert cells == [*expected, f"{found[method]['parameters']['mean']:,.0f}"], method


GUIDE = {
    "Patch": "patched output", "Dropout": "MC dropout", "Variance": "variance network", "MeanField": "mean-field",
    "VariationalDropout": "variational dropout", "Ensemble": "deep ensemble of 3", "Nested": "nested, width 100 %",
    "SparseSubspace": "sparse subspace, 10 %",
}  # fmt: skip


def test_which_method_for_which_budget() -> None:
    found = by_method("results/baselines.cpu.json")
    ratios = load("benchmarks/results/predict_methods.json")["ratios"]
    tasks: dict[str, dict[str, float]] = {}
    for row in load("results/defaults.cpu.json")["rows"]:
        tasks.setdefault(row["dataset"], {})[row["method"]] = row["metrics"]["nll"]["mean"]
    table = rows("docs/methods/index.md", "| method | parameters | prediction")
    assert len(table) == len(GUIDE)
    for link, *cells in table:
        method = link.split("`")[1]
        metrics = found[GUIDE[method]]
        parameters = metrics["parameters"]["mean"] / found["plain network"]["parameters"]["mean"]
        seconds = ratios[f"demo, 64 data, {method}: 32 samples / plain predictions"]
        worse = [nll[method] - nll["plain"] for nll in tasks.values() if method in nll]
        held = f"{sum(w < 0.02 for w in worse)} of {len(worse)}"
        letters = metrics["not-digits/letters AUROC"]["mean"]
        assert cells == [f"{parameters:.2f}x", f"{seconds:.1f}", f"{letters:.3f}", held], method


BESIDE = "plain, beside SparseSubspace"
IMAGES = "Fashion-MNIST, 3,000 images, "
DEFAULTS = {
    "| | BatchNorm: accuracy": {"BatchNorm": f"{IMAGES}BatchNorm", "GroupNorm": f"{IMAGES}GroupNorm"},
    "| | tokens: accuracy": {"tokens": "tokens, transformer", "CIFAR-10": "CIFAR-10, 5,000 images, ResNet"},
    "| | digits: accuracy": {name: f"{name}, MLP" for name in ("digits", "breast_cancer", "wine")},
    "| | boston: NLL": {name: f"UCI {name}, MLP" for name in ("boston", "concrete", "energy", "yacht")},
}


def gain(metrics: dict[str, Any], name: str) -> str:
    """What a method gains on plain: a star beyond two standard errors, red beyond the limit of the recipe."""
    if (found := metrics.get(f"{name} gain")) is None:
        return ""
    sure = abs(found["mean"]) > 2 * found["std"] / found["n"] ** 0.5 and abs(found["mean"]) >= 0.0005
    return f"{found['mean']:+.3f}{'*' * sure}"


def test_defaults() -> None:
    found = {(row["dataset"], row["method"]): row["metrics"] for row in load("results/defaults.cpu.json")["rows"]}
    page = (ROOT / "docs/methods/defaults.md").read_text(encoding="utf-8")
    missed, seen = dict.fromkeys(found, 0), set()
    shown_coverage = [key for key, metrics in found.items() if "coverage" in metrics and key[1] != "as it was"]
    for first, tasks in DEFAULTS.items():
        heading = next(line for line in page.splitlines() if line.startswith(first))
        columns = [cell.strip().split(": ") for cell in heading.strip("|").split("|")][1:]
        for method, *cells in rows("docs/methods/defaults.md", first):
            for (task, name), cell in zip(columns, cells, strict=True):
                if (key := (tasks[task], method)) not in found:
                    assert cell == "", (key, name)
                    continue
                metrics = found[key]
                absolute = method in ("plain", BESIDE) or name == "coverage"
                if name.lower() not in metrics:
                    assert cell == "", (key, name)
                    continue
                shown = f"{metrics[name.lower()]['mean']:.3f}" if absolute else gain(metrics, name.lower())
                assert re.sub("<.*?>", "", cell) == shown, (key, name)
                missed[key] += cell.startswith('<b class="miss">')
                seen.add(key)
    assert seen == {key for key in found if key[1] != "as it was"}
    costs = [
        found[task, "as it was"]["accuracy"]["mean"] - metrics["converted"]["mean"]
        for (task, _), metrics in found.items()
        if "converted" in metrics
    ]
    assert f"at most {100 * max(costs):.1f} points of accuracy" in page
    limited = {key: metrics["misses"]["mean"] for key, metrics in found.items() if "misses" in metrics}
    assert {key: missed[key] for key in limited} == limited
    assert f"{sum(map(bool, limited.values()))} of {len(limited)} rows miss" in page
    covered = [found[key]["coverage"]["mean"] for key in shown_coverage]
    assert f"95 % cover {min(covered):.2f} to {max(covered):.2f}" in page


def test_steps() -> None:
    ratios = load("benchmarks/results/step.json")["ratios"]
    table = rows("README.md", "| estimator | time of a step")
    for name, cell, _ in table:
        key = re.sub(r"\*|,| \(default\)", "", name).lower()
        assert cell == f"{ratios[key]:.2f}x", name
    assert f"takes {ratios['nested / local']:.2f}x its step" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("file", "first"), [("sparse", "| AVX-512 |"), ("sparse_avx2", "| AVX2 |")])
def test_costs_of_sparse_training(file: str, first: str) -> None:
    ratios = load(f"benchmarks/results/{file}.json")["ratios"]
    table = rows("docs/methods/sparse-subspace.md", first)
    assert len(table) == 6
    for name, *cells in table:
        key = name.lower().replace("resnet-18", "resnet18_cifar").replace("-", "").replace(",", "").replace(" %", "%")
        plain = [ratios[f"{key}: plain{more} / sparse"] for more in ("", " in torch's default format")]
        expected = [f"{ratios[f'{key}: dense VI / sparse']:.1f}", " / ".join(f"{r:.1f}" for r in plain)]
        expected += [f"{100 * ratios[f'{key}: bytes of dense VI']:.1f} %"]
        expected += [f"{ratios[f'{key}: step with an update / step']:.1f} steps"]
        assert cells == [*expected, f"{ratios[f'{key}: 16 samples / plain pass']:.1f}"], name


def test_sparse_training_in_words() -> None:
    ratios = load("benchmarks/results/sparse.json")["ratios"]
    page = (ROOT / "docs/methods/sparse-subspace.md").read_text(encoding="utf-8")
    same = min(ratios[f"resnet18_cifar {share}%: new weights as by single precision"] for share in (5, 10))
    assert f"ResNet-18, {100 * same:.1f} % or more are those of single precision" in page
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    dense, plain, default = (
        f"{ratios[f'resnet18_cifar 5%: {other} / sparse']:.1f}"
        for other in ("dense VI", "plain", "plain in torch's default format")
    )
    assert f"is {dense} times faster than dense variational inference in leanbayes and {plain} times" in readme
    assert f"their faster format ({default} times in torch's default)" in readme


def test_sparse_layers_beside_sparseprop() -> None:
    kinds = [load(f"benchmarks/results/sparse_layers{kind}.json")["ratios"] for kind in ("", "_avx2")]
    table = rows("docs/methods/sparse-subspace.md", "| | SparseProp beside Rigl")
    assert len(table) == 4
    for name, *cells in table:
        channels, side = re.findall(r"^\d+|\d+$", name)
        for cell, pair in zip(
            cells, ("SparseProp / sparse", "SparseProp / sparse VI", "plain / sparse VI"), strict=True
        ):
            assert cell == " / ".join(f"{r[f'{channels}@{side} 3x3 5%: {pair}']:.1f}" for r in kinds), (name, pair)
    stem = " / ".join(f"{r['3->64@32 3x3 100%: plain / sparse VI']:.2f}" for r in kinds)
    assert f"({stem} of its speed)" in (ROOT / "docs/methods/sparse-subspace.md").read_text(encoding="utf-8")


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


def test_a_server_under_load() -> None:
    found = load("benchmarks/results/serve.json")
    raw, ratios = found["raw"], found["ratios"]
    before, after = raw["one client before"], raw["one client after"]
    one, many = max(before, after, key=lambda seen: seen["answers_per_second"]), raw["50 clients"]
    assert (many["clients"], many["errors"], many["wrong"]) == (50, 0, 0)
    assert many["seconds"] >= 60
    assert all(ratio >= 5 for ratio in ratios.values())
    for (name, *cells), seen in zip(rows("docs/deploy/serve.md", "| | answers/s | p50"), (one, many), strict=True):
        numbers = [f"{seen['answers_per_second']:.2f}", f"{seen['p50_seconds']:.2f} s", f"{seen['p99_seconds']:.2f} s"]
        numbers += [str(seen["errors"]), str(seen["wrong"]), f"{seen['answers_per_cpu_second']:.1f}"]
        assert cells == numbers, name
    text = " ".join((ROOT / "docs/deploy/serve.md").read_text(encoding="utf-8").split())
    told = [f"{ratio:.1f} times" for ratio in ratios.values()]
    assert f"50 clients have {told[0]} the throughput of one, and {told[1]} for the same processor time" in text
    assert f"Batches held {many['data_per_batch']:.1f} images" in text
    assert f"was {many['largest_gap']:.1e}".replace("e-0", "e-") in text


def test_two_servers() -> None:
    found = load("benchmarks/results/servers.json")
    table = rows("docs/deploy/serve.md", "| network | clients | server |")
    assert {f"{network}, {server}, {clients}" for network, clients, server, *_ in table} == found["raw"].keys()
    for network, clients, server, *cells in table:
        seen = found["raw"][f"{network}, {server}, {clients}"]
        numbers = [f"{seen['answers_per_cpu_second']:.1f}", f"{seen['answers_per_second']:.1f}"]
        numbers += [f"{1000 * seen[name]:.0f} ms" for name in ("p50_seconds", "p99_seconds")]
        assert cells == [*numbers, str(seen["errors"]), str(seen["wrong"])], (network, clients, server)
    text = " ".join((ROOT / "docs/deploy/serve.md").read_text(encoding="utf-8").split())
    assert found["command"] in text
    assert f"LitServe) {found['settings']['litserve']}" in text
    many, one = (
        f"{found['ratios'][f'{network}, 50 clients, answers per CPU second: leanbayes serve / LitServe']:.1f} times"
        for network in ("ResNet-18, width 16", "one layer")
    )
    assert f"gives {many} the answers of LitServe to 50 clients of the ResNet, and {one} to those of one layer" in text
    clock = {name: ratio for name, ratio in found["ratios"].items() if ", throughput: " in name}
    one, many, one_layer, many_layer = clock.values()
    assert f"by the clock it is {many:.1f} and {many_layer:.1f} times as many" in text
    assert f"({one:.2f} and {one_layer:.2f} times as many answers a second)" in text


def test_eight_bits() -> None:
    found = load("benchmarks/results/int8.json")
    table = rows("docs/deploy/export.md", "| | accuracy | ECE | NLL | one image")
    assert {row[0] for row in table} == found["raw"].keys()
    digits = {"accuracy": 4, "ece": 4, "nll": 4, "milliseconds, batch 1": 3, "milliseconds, batch 128": 2}
    for name, *cells in table:
        means = {what: cell["mean"] for what, cell in found["raw"][name].items()}
        assert cells[:-1] == [f"{means[what]:.{number}f}" for what, number in digits.items()], name
        assert cells[-1] == f"{means['bytes'] / 1000:.0f} kB", name
    text = (ROOT / "docs/deploy/export.md").read_text(encoding="utf-8")
    assert found["command"] in " ".join(text.split())
    assert f"{found['settings']['tested']:,} test images" in text
    ratios: dict[str, list[float]] = {}
    for name, ratio in found["ratios"].items():
        ratios.setdefault(name.partition(":")[0].partition(", ")[2], []).append(ratio)
    one, many = sorted(ratios["milliseconds, batch 1"]), sorted(1 / r for r in ratios["milliseconds, batch 128"])
    assert f"answered {one[0]:.2f} to {one[1]:.2f} times as fast" in text
    assert f"take {many[0]:.2f} to {many[1]:.2f} times as" in text


def test_pruning() -> None:
    found = {(r["dataset"], r["method"], r["setting"]): r["metrics"] for r in load("results/pruning.cpu.json")["rows"]}
    data, names = {"LeNet-5": "fashion-mnist", "ResNet-18": "cifar10"}, {"accuracy": 3, "nll": 2, "ece": 3}
    shown = lambda metrics: ", ".join(spread(metrics[name], digits) for name, digits in names.items())  # noqa: E731
    table = rows("docs/deploy/compress.md", "| network | removed | by")
    for network, kind, by, *cells, parameters in table:
        key = (data[network], f"{by.strip('`')}, {kind}")
        assert cells == [shown(found[*key, share]) for share in (0.25, 0.5, 0.75, 0.9)], (network, kind, by)
        half = found[*key, 0.5]
        assert parameters == (spread(half["parameters"], 2) if kind == "channels" else ""), (network, kind, by)
    assert len(table) == len({key[:2] for key in found})
    text = " ".join((ROOT / "docs/deploy/compress.md").read_text(encoding="utf-8").split())
    lenet, resnet = (shown(found[dataset, "snr, weights", 0.0]) for dataset in data.values())
    assert f"LeNet-5 has {lenet} (accuracy, NLL, ECE)" in text
    assert f"has {resnet} on CIFAR-10" in text


def test_students() -> None:
    every = load("results/student.cpu.json")["rows"]
    found = {(row["dataset"], row["method"]): row["metrics"] for row in every if row["metrics"]}
    names = {"accuracy": 4, "nll": 3, "ece": 3, "AUROC, entropy": 3, "AUROC, mutual information": 3}
    table = rows("docs/deploy/distill.md", "| data | | accuracy | NLL")
    shown = {(data.lower().replace("cifar-10", "cifar10"), method): cells for data, method, *cells in table}
    assert shown == {
        key: [
            *(spread(metrics[name], digits) if name in metrics else "" for name, digits in names.items()),
            *(f"{metrics[name]['mean']:,.0f}" for name in ("passes", "parameters")),
        ]
        for key, metrics in found.items()
    }


def test_cascades() -> None:
    found = {(row["dataset"], row["method"]): row["metrics"] for row in load("results/cascade.cpu.json")["rows"]}
    names = {"accuracy": 4, "nll": 3, "ece": 3, "MACs": 3, "time, batch 1": 2, "time, batch 64": 2}
    table = rows("docs/deploy/cascade.md", "| data | | accuracy | NLL")
    shown = {(data.lower().replace("cifar-10", "cifar10"), method): cells for data, method, *cells in table}
    assert shown == {
        key: [spread(metrics[name], digits) if name in metrics else "" for name, digits in names.items()]
        for key, metrics in found.items()
    }


def test_one_pass() -> None:
    networks = {"fashion-mnist, lenet5": "LeNet-5", "fashion-mnist, resnet18, width 16": "ResNet-18"}
    every = load("results/one-pass.cpu.json")["rows"]
    found = {(f"{networks[row['dataset']]}, {row['method']}", row["setting"]): row["metrics"] for row in every}
    names = {
        "nll": 3,
        "ece": 3,
        "AUROC, entropy": 3,
        "AUROC, mutual information": 3,
        "variance, logits": 2,
        "x plain": 1,
    }
    table = rows("docs/guide/one-pass.md", "| network, posterior | | NLL")
    assert {tuple(row[:2]) for row in table} == found.keys()
    for method, setting, *cells in table:
        values = {name: found[method, setting].get(name, {"mean": None}) for name in names}
        assert cells == ["" if v["mean"] is None else spread(v, names[n]) for n, v in values.items()], (method, setting)


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


def test_times_of_one_pass_and_of_cascades() -> None:
    found = load("benchmarks/results/one_pass.json")["ratios"]
    page = (ROOT / "docs/guide/one-pass.md").read_text(encoding="utf-8")
    said = page[page.index("Time: one pass") : page.index("Three was the aim")]
    assert set(re.findall(r"\d\.\d\d", said)) == {
        f"{value:.2f}" for name, value in found.items() if "resnet" not in name or "default" not in name
    }
    found = load("benchmarks/results/cascade.json")["ratios"]
    page = (ROOT / "docs/deploy/cascade.md").read_text(encoding="utf-8")
    said = page[page.index("Where the machine is idle") : page.index("for 0.07 of")]
    names = [name for name in found if name.endswith("cascade")] + ["cifar10, batch 1, stage 1"]
    assert set(re.findall(r"\d\.\d\d", said)) == {f"{found[name]:.2f}" for name in names}
