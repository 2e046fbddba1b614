"""A method of another package, known by its entry point alone, is treated as our own are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = '''
from dataclasses import dataclass
from typing import ClassVar

from leanbayes.config import check_positive
from leanbayes.method import Method
from leanbayes.registry import register


@register
@dataclass(frozen=True)
class Toy(Method):
    """Gaussians of one width.

    Args:
        width: the standard deviation at the start.
    """

    summary: ClassVar[str] = "a toy of another package"
    width: float = 0.05

    def __post_init__(self) -> None:
        check_positive(self, "width")
'''
IMPLEMENTATION = """
from leanbayes.convert.conversion import bayes_layer
from leanbayes.convert.implementation import Implementation, implements
from leanbayes.layers.operations import refusal
from leanbayes.posteriors import Gaussian
from leanbayes.posteriors.scale import rho_like
from leanbayes.priors import Normal

from .config import Toy


@implements(Toy)
class _Toy(Implementation[Toy]):
    def reason_unsupported(self, module):
        return refusal(module)

    def convert(self, module, conversion):
        def make(name):
            mean = module._parameters[name]
            return Gaussian(mean, rho_like(mean, self.config.width))

        prior = lambda name: Normal()
        return bayes_layer(module, conversion, make, prior, random_bias=True, estimator="local")
"""
USE = """
import sys
import leanbayes as lb
from leanbayes.registry import methods
assert "Toy" in methods() and "Toy" in dir(lb) and "torch" not in sys.modules, list(methods())
import torch
from torch import nn
from leanbayes.convert.record import conversions
model = nn.Sequential(nn.Linear(4, 3))
lb.bayesianize_(model, lb.Toy(width=0.2))
lb.save(model, sys.argv[1])
loaded = lb.load(sys.argv[1], into=nn.Sequential(nn.Linear(4, 3)))
assert conversions(loaded) == {"0": lb.Toy(width=0.2)}
x = torch.randn(5, 4)
said = [lb.predict(m, x, samples=3, task="classification").probs for m in (model, loaded)]
assert torch.equal(*said)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A package and the metadata that pip would have written, on the path of a new process."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "toy_methods").mkdir()
    for name, text in {"__init__": "", "config": CONFIG, "implementation": IMPLEMENTATION}.items():
        (folder / "toy_methods" / f"{name}.py").write_text(text)
    metadata = folder / "toy_methods-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-methods\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[leanbayes.methods]\nToy = toy_methods.config:Toy\n")
    path = os.pathsep.join([str(folder), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def run(environment, *arguments, **options):
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, **options
    )


def test_it_converts_saves_and_loads(environment, tmp_path):
    done = run(environment, "-c", USE, str(tmp_path / "toy.safetensors"))
    assert done.returncode == 0, done.stderr


def test_it_is_a_choice_of_the_command_line(environment):
    done = run(environment, "-m", "leanbayes", "train", "--help")
    assert "a toy of another package" in done.stdout, done.stdout + done.stderr
    assert "--width" in run(environment, "-m", "leanbayes", "train", "toy", "--help").stdout


def test_it_passes_the_contract(environment):
    done = run(environment, "-m", "pytest", "-q", "tests/contract/test_contract.py", "-k", "Toy")
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout or "[100%]" in done.stdout, done.stdout[-500:]
    assert "no tests ran" not in done.stdout


def test_one_that_cannot_be_imported_is_left_out_with_a_warning(environment, tmp_path):
    broken = tmp_path / "broken-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_text("[leanbayes.methods]\nBroken = no_such_package:Broken\n")
    path = os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])
    code = "from leanbayes.registry import methods; print(*methods())"
    done = run({**environment, "PYTHONPATH": path}, "-c", code)
    assert "MeanField" in done.stdout
    assert "Broken" not in done.stdout
    assert "'Broken' (no_such_package:Broken) is left out: ModuleNotFoundError" in done.stderr
