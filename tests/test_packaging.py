"""Dependencies, extras, versions, wheels and the workflow of the continuous integration."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import leanbayes as lb
from leanbayes import data, optional
from leanbayes.errors import MissingExtraError

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMPORTED_AS = {"scikit-learn": "sklearn", "pillow": "PIL", "lightning-fabric": "lightning_fabric"} | {
    "mlflow-skinny": "mlflow",
    "torch-fidelity": "torch_fidelity",
}
OPTIONAL = ("matplotlib", "sklearn", "scipy", "PIL", "pooch")


def packages(requirements: list[str]) -> set[str]:
    """The names that requirements are imported by."""
    names = (re.split(r"[^\w-]", requirement, maxsplit=1)[0] for requirement in requirements)
    return {IMPORTED_AS.get(name, name) for name in names}


def extra(name: str) -> set[str]:
    """The packages of an extra, with those of the extras that it includes."""
    found = set()
    for requirement in PROJECT["optional-dependencies"][name]:
        inner = re.match(r"leanbayes\[(.*)\]", requirement)
        found |= set().union(*map(extra, inner[1].split(","))) if inner else packages([requirement])
    return found


def test_what_is_imported_is_a_dependency() -> None:
    known = (
        packages(PROJECT["dependencies"])
        | extra("all")
        | extra("tensorboard")
        | extra("trackers")
        | extra("hub")
        | extra("cluster")
        | extra("trainers")
        | extra("tables")
        | extra("onnx")
        | extra("serve")
        | extra("generation")
        | set(sys.stdlib_module_names)
    )
    known |= {"leanbayes", "requests", "pytorch_lightning"}  # pooch installs requests; Lightning has two names
    found = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            found |= {name: path.name for name in names if name.partition(".")[0] not in known}
    assert found == {}


def test_required_packages_are_in_the_extra_that_the_error_names() -> None:
    calls = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("require", "missing"):
                calls.append([getattr(argument, "value", None) for argument in node.args[:2]])
    assert len(calls) > 10
    for package, name in calls:
        if isinstance(package, str) and isinstance(name, str):
            assert package.partition(".")[0] in extra(name), f"leanbayes[{name}] does not install {package}"
    assert extra("all") == set(OPTIONAL)
    assert not extra("all") & packages(PROJECT["dependencies"])


@pytest.mark.parametrize(
    ("package", "name", "call"),
    [
        (
            "matplotlib",
            "plots",
            lambda model, xy: lb.evaluate(model, xy, replicates=0, progress=False).save_html("r.html"),
        ),
        ("sklearn", "evaluation", lambda model, xy: lb.evaluate(model, xy, ood={"other": xy[0]}, progress=False)),
        ("scipy", "evaluation", lambda model, xy: lb.evaluate(model, xy, temperature=xy, progress=False)),
        ("scipy", "evaluation", lambda model, xy: lb.calibrate_(model, xy, progress=False)),
        ("PIL", "evaluation", lambda model, xy: lb.evaluate(model, xy, corruptions=True, progress=False)),
        ("pooch", "data", lambda model, xy: data.load("cifar10")),
    ],
)
def test_a_missing_package_is_an_error_that_names_the_extra(
    package: str, name: str, call: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # import raises, as where it is not installed
    monkeypatch.delenv("LEANBAYES_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    lb.bayesianize_(model, lb.MeanField())
    x, y = torch.rand(12, 1, 8, 8), torch.arange(12) % 3
    lb.fit(model, (x, y), epochs=1, progress=False)
    with pytest.raises(MissingExtraError, match=rf"{package}, which .* pip install 'leanbayes\[{name}\]'"):
        call(model, (x, y))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command", [["demo"], ["reproduce", "baselines"], ["evaluate", "a.safetensors", "--html", "a.html"]]
)
def test_commands_miss_packages_before_they_begin(
    command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from leanbayes.cli import main

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    assert "pip install 'leanbayes[" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_core_runs_the_example_of_readme(tmp_path: Path) -> None:
    """Also what happens to the estimators without scikit-learn, in a process of its own."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({OPTIONAL!r}))\n"
    after = "try:\n    lb.BayesClassifier\nexcept ImportError as error:\n    print('ERROR', error)\n"
    arguments = [sys.executable, "-c", blocked + found[1] + after]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("pip install 'leanbayes[sklearn]'")


def test_a_server_misses_its_packages_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from leanbayes.cli import main

    for package in ("starlette", "uvicorn"):
        monkeypatch.setitem(sys.modules, package, None)
    assert main(["serve", str(tmp_path / "no.safetensors")]) == 2
    assert "pip install 'leanbayes[serve]'" in capsys.readouterr().err


def test_require_is_silent_where_a_package_is_there() -> None:
    optional.require("torch", "plots", "anything")


def test_the_digits_are_those_of_scikit_learn() -> None:
    sklearn_data = pytest.importorskip("sklearn.datasets").load_digits()
    with np.load(ROOT / "src/leanbayes/data/digits.npz") as ours:
        np.testing.assert_array_equal(ours["images"], sklearn_data.images)
        np.testing.assert_array_equal(ours["labels"], sklearn_data.target)


def test_the_changelog_begins_with_this_version() -> None:
    sections = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sections[0] == lb.__version__
    assert "0.1.0" in sections


@pytest.mark.parametrize(
    "compiler",
    [pytest.param("none", id="without a compiler"), pytest.param(None, marks=pytest.mark.long, id="with one")],
)
def test_wheels(compiler: str | None, tmp_path: Path) -> None:
    """Built from a copy, since the library is compiled beside its sources."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    source = tmp_path / "source"
    for name in ("src", "pyproject.toml", "README.md", "LICENSE", "hatch_build.py"):
        copy(ROOT / name, source / name)
    environment = {key: value for key, value in os.environ.items() if key != "CC"}
    arguments = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path), str(source)]
    subprocess.run(arguments, env=environment | ({"CC": compiler} if compiler else {}), check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"leanbayes/data/digits.npz", "leanbayes/py.typed"} <= set(names)
    compiled = "leanbayes/kernels/native/kernels.so" in names
    able = sys.platform == "linux" and any(map(shutil.which, ("gcc", "cc", "clang")))
    assert compiled == (able and compiler is None)
    assert wheel.name.endswith("-none-any.whl") != compiled


def copy(source: Path, target: Path) -> None:
    """Files as they are, without what was compiled before."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    else:
        shutil.copy(source, target)


def test_the_workflow_has_the_form_that_github_reads() -> None:
    if importlib.util.find_spec("check_jsonschema") is None:
        pytest.skip("needs check-jsonschema")
    files = [str(path) for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
    assert files
    arguments = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", *files]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
