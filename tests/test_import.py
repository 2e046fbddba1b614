"""What importing costs, and that the benchmarks run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = (
    "torch",
    "matplotlib",
    "sklearn",
    "lightning_fabric",
    "torchmetrics",
    "scipy",
    "safetensors",
    "tyro",
    "pooch",
    "PIL",
    "rich",
)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True, cwd=ROOT)


def import_seconds(module: str, runs: int = 2) -> float:
    """The least time of a few, as ``-X importtime`` sums it up for the module itself."""
    pattern = re.compile(rf"\|\s+(\d+) \| {module}$", re.MULTILINE)
    times = (python("-X", "importtime", "-c", f"import {module}").stderr for _ in range(runs))
    return min(int(pattern.findall(text)[-1]) for text in times) / 1e6


def loaded_by(statement: str) -> set[str]:
    """The top-level packages in memory after a statement."""
    code = f"import sys; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    return set(python("-c", code).stdout.split())


def test_importing_leanbayes_costs_little_more_than_torch() -> None:
    assert import_seconds("leanbayes") <= 1.3 * import_seconds("torch")


def test_the_names_a_user_begins_with_cost_little_more_than_torch() -> None:
    """Lazy names must not be a trick: the converter, training and prediction count too."""
    code = "from time import perf_counter as now; a = now(); import torch; b = now(); import leanbayes as lb; "
    code += "lb.bayesianize_, lb.MeanField, lb.ELBO, lb.predict; print(b - a, now() - b)"
    runs = [tuple(map(float, python("-c", code).stdout.split())) for _ in range(2)]
    assert min(extra for _, extra in runs) <= 0.3 * min(torch for torch, _ in runs)


@pytest.mark.parametrize("module", ["leanbayes", "leanbayes.methods", "leanbayes.priors", "leanbayes.registry"])
def test_what_only_describes_loads_nothing_heavy(module: str) -> None:
    assert not loaded_by(f"import {module}") & set(HEAVY)


def test_configs_are_usable_without_torch() -> None:
    assert "torch" not in loaded_by("import leanbayes as lb; lb.MeanField(prior=lb.Normal(std=0.1)); lb.Dropout(0.1)")


BENCHMARKS = ["step", "predict", "streaming", "attack", "corruptions", "balanced", "norm_statistics", "sparse", "noise"]
OFTEN = ("noise",)  # the others take a minute in all


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.long) for name in BENCHMARKS]
)
def test_benchmarks_print_the_shape_that_all_results_have(name: str, tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    arguments = ("--quick", "--json", "--threads", "1", "--output", str(output))
    data: dict[str, Any] = json.loads(python(f"benchmarks/{name}.py", *arguments).stdout)
    assert data == json.loads(output.read_text())
    check_shape(data, name)
    assert data["threads"] == 1


@pytest.mark.parametrize("name", BENCHMARKS)
def test_committed_results_have_that_shape_too(name: str) -> None:
    check_shape(json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text()), name)


@pytest.mark.long
def test_patches_are_a_result_of_their_own() -> None:
    arguments = ("--patches", "--quick", "--json", "--threads", "1")
    data: dict[str, Any] = json.loads(python("benchmarks/predict.py", *arguments).stdout)
    committed = json.loads((ROOT / "benchmarks" / "results" / "predict_patches.json").read_text())
    for found in (data, committed):
        check_shape(found, "predict")
        assert all(name.endswith("200 samples / 200 passes") for name in found["ratios"])
    assert "--patches" in committed["command"]


def check_shape(data: dict[str, Any], name: str) -> None:
    assert data["benchmark"] == name
    assert data["command"].startswith(f"python benchmarks/{name}.py")
    assert data["ratios"]
    assert all(isinstance(value, float) and value > 0 for value in data["ratios"].values())
    if name == "step":
        assert "leanbayes local" in data["ratios"]
        missing = [entry for entry, found in data["raw"].items() if "missing" in found]
        assert not data["ratios"].keys() & set(missing), "a missing peer has no ratio"
        for entry, found in data["raw"].items():
            if entry not in missing and entry != "deterministic" and not entry.startswith("leanbayes nested"):
                assert found["gradient"]["mean"]["variance"] > 0
