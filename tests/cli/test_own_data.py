"""The commands on data of the user's own: tables, arrays, folders of images, functions; scaling is never forgotten."""

import csv
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.cli import DONE, USAGE
from leanbayes.training.arguments import KL_SHARE

QUICK = ["--epochs", "30", "--lr", "0.02", "--batch-size", "32", "--model", "mlp"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The files of somebody: a table, arrays in large units, images, and a module with loaders and a network."""
    folder = tmp_path_factory.mktemp("home")
    rng = np.random.RandomState(0)
    x = rng.randn(240, 3)
    label = (x[:, 0] + x[:, 1] > 0).astype(int)
    np.savez(folder / "arrays.npz", x=1000 + 50 * x, y=label)
    np.save(folder / "new.npy", 1000 + 50 * np.array([[3.0, 3, 0], [-3, -3, 0]]))
    with (folder / "cars.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "age", "Farbe", "price"])
        for i in range(240):
            colour = ("rot", "grün")[i % 2]
            rows.writerow([f"car{i}", i % 60, colour, 5000 - 50 * (i % 60) + (1000 if colour == "rot" else 0)])
    (folder / "own.py").write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "x = torch.randn(120, 3, generator=torch.Generator().manual_seed(0))\n"
        "y = (x[:, 0] > 0).long()\n"
        "def loaders():\n"
        "    return {'train': DataLoader(TensorDataset(x[:80], y[:80]), 16, shuffle=True), 'test': (x[80:], y[80:])}\n"
        "def three():\n"
        "    return loaders()['train'], DataLoader(TensorDataset(x[:40], y[:40]), 16), (x[80:], y[80:])\n"
        "def network():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))\n"
        "def inputs():\n    return x[80:90]\n"
        "def nonsense():\n    return 3\n"
    )
    return folder


@pytest.fixture(autouse=True)
def _there(home, monkeypatch):
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(str(home))


def test_arrays_from_training_to_prediction(run, run_json):
    """Inputs around 1000 are scaled by predict as they were in training: nothing else has to be said."""
    run_json("train", "--data", "arrays.npz", *QUICK, "--coverage", "0.8", "--out", "a.safetensors")
    metrics = run_json("evaluate", "a.safetensors", "--replicates", "0")["metrics"]
    assert metrics["accuracy"] > 0.9
    assert metrics["conformal.coverage"] > 0.6
    result = run_json("predict", "a.safetensors", "new.npy")
    assert [row[0] for row in result["rows"]] == ["1", "0"]
    assert result["columns"][-1] == "set"
    assert [row[-1] for row in result["rows"]] == ["1", "0"]
    assert run_json("evaluate", "a.safetensors", "--data", "./arrays.npz", "--replicates", "0")["count"] == 240
    np.save("small.npy", np.zeros((4, 3)))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        _, _, said = run("predict", "a.safetensors", "small.npy")
    assert "standard deviations from the mean of the training data; are they in the same units?" in said


def test_a_table_from_training_to_prediction(run, run_json, home):
    """Texts and numbers by column name, a target in its own units, an interval with a guarantee."""
    options = ["--target", "price", "--drop", "id", "--coverage", "0.8", *QUICK, "--out", "c.safetensors"]
    run_json("train", "--data", "cars.csv", *options)
    metrics = run_json("evaluate", "c.safetensors", "--replicates", "0")["metrics"]
    assert metrics["rmse"] < 400  # of a target whose standard deviation is 1000
    assert metrics["conformal.width"] > 20
    (home / "new.csv").write_text("Farbe,age\nrot,10\ngrün,50\n", encoding="utf-8")
    result = run_json("predict", "c.safetensors", "new.csv")
    mean, low, high = (result["columns"].index(name) for name in ("mean", "conformal_low", "conformal_high"))
    for row, price in zip(result["rows"], (5500, 2500), strict=True):
        assert abs(row[mean] - price) < 600
        assert row[low] < row[mean] < row[high]
    code, _, said = run("predict", "c.safetensors", "arrays.npz")
    assert code == USAGE
    assert "expected a table with named columns as in training, received an array" in said
    text = (home / "cars.csv").read_text(encoding="utf-8")
    try:
        (home / "cars.csv").write_text(text + "car240,3,rot,9999\n", encoding="utf-8")
        code, _, said = run("evaluate", "c.safetensors")
        assert code == USAGE
        assert "is not what it was when the model was trained" in said
    finally:
        (home / "cars.csv").write_text(text, encoding="utf-8")


def test_a_folder_of_images_from_training_to_prediction(run, run_json, home):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.RandomState(1)
    for name, value in (("Löwe", 60), ("Maus", 190)):
        (home / "pictures" / name).mkdir(parents=True)
        for i in range(30):
            pixels = np.clip(rng.randn(8, 8) * 20 + value, 0, 255).astype(np.uint8)
            image.fromarray(pixels).save(home / "pictures" / name / f"{i}.png")
    run_json("train", "--data", "pictures", *QUICK[:-2], "--out", "p.safetensors")
    assert run_json("evaluate", "p.safetensors", "--replicates", "0")["metrics"]["accuracy"] == 1
    rows = run_json("predict", "p.safetensors", "pictures/Maus")["rows"]
    assert {row[0] for row in rows} == {"Maus"}
    model = lb.load("p.safetensors", into=_network("p.safetensors"))
    prediction = lb.predict(model, lb.data.read("pictures/Löwe", like=_preparation("p.safetensors")).test)
    assert set(prediction.class_names) == {"Löwe"}  # the names travel with the model


def _network(path):
    from leanbayes.cli.saved import open_model

    return lb.restore_(open_model(path, None)[0])


def _preparation(path):
    from leanbayes.cli.saved import open_model

    return open_model(path, None)[1].prepared_by


def test_loaders_and_a_network_of_ones_own(run, run_json):
    """The function scales its data itself, so predict takes inputs of a function, or those said to be scaled."""
    own = ["--model", "own:network"]
    run_json("train", "--data", "own:loaders", *own, *QUICK[:-2], "--out", "f.safetensors")
    code, _, said = run("evaluate", "f.safetensors", *own)
    assert code == USAGE
    assert "to call it, add --data own:loaders" in said
    result = run_json("evaluate", "f.safetensors", *own, "--data", "own:loaders", "--replicates", "0")
    assert result["metrics"]["accuracy"] > 0.8
    assert len(run_json("predict", "f.safetensors", "own:inputs", *own)["rows"]) == 10
    code, _, said = run("predict", "f.safetensors", "new.npy", *own)
    assert code == USAGE
    assert "does not say how inputs were scaled in training" in said
    run_json("predict", "f.safetensors", "new.npy", *own, "--scaled")
    three = ["--data", "own:three", *own, "--epochs", "1", "--coverage", "0.8", "--out", "t.safetensors"]
    run_json("train", *three)
    assert run_json("predict", "t.safetensors", "own:inputs", *own)["columns"][-1] == "set"
    assert run("train", "--data", "own:nonsense", *own)[0] == USAGE
    assert "received int" in run("train", "--data", "own:nonsense", *own)[2]
    assert "raised AttributeError" in run("train", "--data", "own:missing", *own)[2]


def test_a_file_without_scaling_is_refused_by_predict(run, run_json, home):
    """Which gave confident nonsense once: a model saved by `lb.save` knows nothing of the scale of its data."""
    torch.manual_seed(0)
    lb.save(nn.Sequential(nn.Linear(3, 2)), "bare.safetensors", task="classification")
    (home / "bare.py").write_text("import torch\ndef build():\n    return torch.nn.Sequential(torch.nn.Linear(3, 2))\n")
    code, _, said = run("predict", "bare.safetensors", "new.npy", "--model", "bare:build")
    assert code == USAGE
    assert "pass --scaled if these are scaled as they were then" in said
    assert len(run_json("predict", "bare.safetensors", "new.npy", "--model", "bare:build", "--scaled")["rows"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nothing.csv", "--target", "y"], "does not exist"),
        (["--data", "cras"], "--data: cras is no file or folder here; expected the name of a data set"),
        (["--data", "cars.csv"], "it has id, age, Farbe, price; pass target=..., in a command --target NAME"),
        (["--data", "cars.csv", "--target", "price"], "column 'id': expected numbers or a few different texts"),
        (["--data", "digits", "--target", "y"], "--target: expected a file or folder of your own"),
        (["--data", "arrays.npz", "--drop", "x"], "drop: expected a table"),
        (["--data", "arrays.npz", "--size", "8"], "size: expected a folder of images"),
        (["--data", "arrays.npz", "--score", "aps"], "expected --coverage beside them"),
        (["--data", "arrays.npz", "--coverage", "90"], "--coverage: expected a finite number above 0 and below 1"),
        (["--data", "arrays.npz", "--coverage", "0.9", "--val-fraction", "0"], "expected validation data"),
        (["--data", "own:loaders", "--size", "3"], "--size: expected a file or folder of your own"),
    ],
)
def test_train_refuses_before_it_begins(run, arguments, message):
    code, _, said = run("train", *arguments, "--out", "no.safetensors")
    assert code == USAGE
    assert message in said


def test_a_coverage_that_cannot_be_had_is_refused_before_training(run, home):
    """A validation part of 24 leaves 12 for the thresholds, and 0.99 takes 99."""
    options = ["--data", "arrays.npz", "--epochs", "1", "--out", "no.safetensors"]
    code, _, said = run("train", *options, "--coverage", "0.99")
    assert code == USAGE
    assert "expected at least 198 validation data for 0.99, received 24" in said
    code, _, said = run("train", *options, "--coverage", "0.9", "--score", "cqr")
    assert code != DONE
    assert "score: expected one of 'lac', 'aps', 'raps', received 'cqr'" in said
    assert not (home / "no.safetensors").exists()


def test_training_data_are_not_taken_for_test_data(run, run_json):
    """Where nothing was held out, evaluate says so instead of flattering the model."""
    nothing = ["--val-fraction", "0", "--test-fraction", "0"]
    run_json("train", "--data", "arrays.npz", "--model", "mlp", "--epochs", "1", *nothing, "--out", "n.safetensors")
    code, _, said = run("evaluate", "n.safetensors")
    assert code == USAGE
    assert "nothing was held out as test" in said


def test_a_run_on_own_data_is_resumed(run_json):
    options = [
        "--data",
        "arrays.npz",
        "--model",
        "mlp",
        "--epochs",
        "2",
        "--checkpoint",
        "run.ckpt",
        "--out",
        "r.safetensors",
    ]
    first, second = (run_json("train", *options) for _ in range(2))
    assert first["last"]["loss"] == second["last"]["loss"]


def test_the_weight_of_the_kl_is_that_of_fit(run_json):
    """168 data and 17,000 weights: the KL would outweigh the data at 1; a warm-up ends at the same weight."""
    options = ["--data", "arrays.npz", "--model", "mlp", "--epochs", "2", "--batch-size", "64", "--out", "k"]
    weight = run_json("train", *options)["last"]["kl_weight"]
    assert weight == pytest.approx(KL_SHARE * 168 / (4 * 128 + 129 * 128 + 129 * 2), rel=1e-4)
    assert 0 < run_json("train", *options, "--warmup", "6")["last"]["kl_weight"] < weight
    assert run_json("train", *options, "--kl-weight", "0.5")["last"]["kl_weight"] == 0.5
