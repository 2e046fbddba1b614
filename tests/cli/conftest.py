"""A command as a user types it, and models and inputs to try it on."""

import json

import numpy as np
import pytest

from leanbayes.cli import DONE, main
from leanbayes.data import load


@pytest.fixture
def run(capsys):
    """run(*arguments): the exit code, stdout and stderr of a command."""

    def run(*arguments):
        capsys.readouterr()
        code = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def run_json(run):
    """run_json(*arguments): the JSON document that a command prints, which is all that it prints."""

    def run_json(*arguments):
        code, out, _ = run(*arguments, "--json")
        assert code == DONE
        return json.loads(out, parse_constant=pytest.fail)

    return run_json


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models that `leanbayes train` wrote, and inputs for them."""
    folder = tmp_path_factory.mktemp("cli")
    quick = ["--model", "mlp", "--epochs", "2", "--json"]
    assert main(["train", "mean-field", *quick, "--out", str(folder / "digits.safetensors")]) == DONE
    images, _ = load("digits", normalise=False).test.tensors
    np.save(folder / "images.npy", images[:30].numpy())
    np.savetxt(folder / "images.csv", images[:30].flatten(1).numpy(), delimiter=",", header="pixels", comments="")
    make_uci(folder / "UCI_Datasets" / "yacht" / "data")
    return folder


def make_uci(folder):
    """y = 100 + 10 x_0 on 200 rows, in the layout of the published splits."""
    folder.mkdir(parents=True)
    x = np.random.RandomState(0).randn(200, 6)
    np.savetxt(folder / "data.txt", np.column_stack([x, 100 + 10 * x[:, 0]]))
    rows = {
        "index_features": range(6),
        "index_target": [6],
        "index_train_0": range(160),
        "index_test_0": range(160, 200),
    }
    for name, values in rows.items():
        np.savetxt(folder / f"{name}.txt", list(values), fmt="%d")
