"""The tables of README and of the guide have the figures of results/ and benchmarks/results/."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .figures import ROOT, by_method, load, rows, spread


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
