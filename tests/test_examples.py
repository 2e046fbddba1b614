"""Every example runs, with a small setting, and says what it should."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
SMALL = {
    "quickstart.py": (["--epochs", "2"], ["Accuracy", "letters", "the same predictions"]),
    "own_loop.py": (["--epochs", "8"], ["epoch 8: loss", "accuracy", "where it is wrong"]),
    "own_arrays.py": ([], ["2 converted", "Accuracy", "Conformal prediction", "tensor([["]),
    "rules.py": ([], ["excluded by name 'layer1.*'", "layer2.0.downsample.0", "Linear (10, 64)", "layer9"]),
    "regression.py": (["--epochs", "20", "--out", "plot.png"], ["RMSE", "x =  4.0", "wrote plot.png"]),
    "last_layer.py": (["--epochs", "1", "--width", "4"], ["Bayesian head", "100 samples take"]),
    "ordered_latents.py": (["--epochs", "3"], ["elbo", "likely code lengths", "in_features=4", "wrote plot.png"]),
    "deep_ensemble.py": (["--epochs", "2", "--members", "3"], ["Ensemble()", "3 networks", "nats on digits"]),
}


def test_no_example_is_forgotten():
    assert {path.name for path in FOLDER.glob("*.py")} == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_example(name, tmp_path):
    options, expected = SMALL[name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:__main__", FOLDER / name, *options],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for text in expected:
        assert text in done.stdout
    assert not done.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"plot.png", "own.safetensors"}


def test_examples_are_short():
    for path in FOLDER.glob("*.py"):
        assert 20 <= len(path.read_text().splitlines()) <= 60, path
