"""`leanbayes generate`: train, generate every kind of grid, and refuse what does not fit."""

from __future__ import annotations

import pytest

from leanbayes.cli import USAGE, main


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("generate") / "model.safetensors"
    options = ["--train", "digits", "--limit", "200", "--epochs", "1", "--latents", "6", "--width", "4", "--json"]
    assert main(["generate", str(path), *options, "--out", str(path.with_suffix(".png"))]) == 0
    return path


@pytest.mark.parametrize("kind", ["samples", "progressive", "tree", "traversal"])
def test_every_kind_repeats(kind, model, run_json, tmp_path):
    first, second = tmp_path / "a.png", tmp_path / "b.png"
    said = run_json("generate", model, "--kind", kind, "--out", first, "--count", 5, "--seed", 3)
    assert said == {"out": str(first), "kind": kind, "length": 6, "size": 6, "seed": 3}
    run_json("generate", model, "--kind", kind, "--out", second, "--count", 5, "--seed", 3)
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes()[:4] == b"\x89PNG"


def test_the_length_matters(model, run_json, tmp_path):
    for length in (1, 6):
        run_json("generate", model, "--length", length, "--out", tmp_path / f"{length}.png")
    assert (tmp_path / "1.png").read_bytes() != (tmp_path / "6.png").read_bytes()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--length", "7"], "--length: expected a whole number from 1 to 6, received 7"),
        (["--length", "0"], "--length: expected a whole number of at least 1"),
        (["--count", "0"], "--count: expected a whole number of at least 1"),
        (["--out", "no/such/folder.png"], "--out: expected a folder that exists"),
        (["--train", "uci/yacht"], "--train: expected a set of images"),
        (["--model", "torch.nn:Identity"], "--model: expected an lb.Autoencoder"),
    ],
)
def test_wrong_options_are_refused(options, said, model, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "uci/yacht" in options:
        monkeypatch.setattr(
            "leanbayes.data.load", lambda *a, **k: __import__("types").SimpleNamespace(input_shape=(6,))
        )
    before = model.read_bytes()
    code, _, err = run("generate", model, *options)
    assert code == USAGE
    assert said in err
    assert list(tmp_path.iterdir()) == []
    assert model.read_bytes() == before


def test_a_length_that_the_code_will_not_have_is_refused_before_training(run, tmp_path):
    options = ["--train", "digits", "--latents", "6", "--length", "7", "--out", tmp_path / "a.png"]
    code, _, err = run("generate", tmp_path / "new.safetensors", *options)
    assert code == USAGE
    assert "--length: expected a whole number from 1 to 6, received 7" in err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_images(run_json, run, tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "faces").mkdir()
    for number in range(12):
        image.new("RGB", (20, 16), (20 * number, 100, 200 - 10 * number)).save(tmp_path / "faces" / f"{number}.png")
    options = ["--train", tmp_path / "faces", "--epochs", 1, "--latents", 3, "--width", 2, "--out", tmp_path / "a.png"]
    said = run_json("generate", tmp_path / "m.safetensors", *options, "--size", 8, "--count", 4)
    assert said["size"] == 3
    assert (tmp_path / "a.png").exists()
    code, _, err = run("generate", tmp_path / "other.safetensors", *options)
    assert code == USAGE
    assert "(channels, side, side)" in err
    assert not (tmp_path / "other.safetensors").exists()


def test_other_files_are_refused(run, tmp_path):
    import torch

    import leanbayes as lb

    lb.save(torch.nn.Linear(2, 2), tmp_path / "other.safetensors")
    code, _, err = run("generate", tmp_path / "other.safetensors")
    assert code == USAGE
    assert "does not say which autoencoder it holds" in err
