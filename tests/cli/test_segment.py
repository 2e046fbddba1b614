"""`leanbayes segment`, and train, evaluate and predict of segmentations: what is written, and what is refused."""

from __future__ import annotations

import csv

import numpy as np
import pytest

import leanbayes as lb
from leanbayes.cli import FAILED, USAGE, main

image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("segment") / "model.safetensors"
    options = ["--data", "blobs", "--options", "widths=[4,8]", "--epochs", "1", "--batch-size", "64", "--json"]
    assert main(["train", *options, "--out", str(path), "dropout"]) == 0
    return path


@pytest.fixture
def scans(tmp_path):
    """Images of several sizes, one of them in a folder of its own."""
    folder, random = tmp_path / "scans", np.random.default_rng(0)
    for name, size in (("a.png", (20, 20)), ("a.bmp", (20, 20)), ("deep/b.png", (33, 17))):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(random.integers(0, 255, size, dtype=np.uint8)).save(folder / name)
    return folder


def opened(path):
    with image.open(path) as found:
        return np.asarray(found)


def test_every_image_gets_a_folder_of_masks_and_maps(model, scans, run_json, tmp_path):
    out = tmp_path / "out"
    said = run_json("segment", model, scans, "--out", out, "--samples", 5, "--masks", 3)
    assert sorted(row[0] for row in said["rows"]) == ["a.bmp", "a.png", "deep/b"]
    files = {path.name for path in (out / "deep/b").iterdir()}
    assert files == {"overview.png", "mean.png", "entropy.png", "mutual_information.png"} | {
        f"sample-0{i}.png" for i in (1, 2, 3)
    }
    masks = [opened(out / "deep/b" / f"sample-0{i}.png") for i in (1, 2, 3)]
    assert all(mask.shape == (33, 17) and set(np.unique(mask)) <= {0, 255} for mask in masks)
    assert opened(out / "deep/b/mean.png").shape == (33, 17)
    assert opened(out / "deep/b/overview.png").shape[1] > 7 * 17
    with (out / "summary.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["image"] for row in rows] == [row[0] for row in said["rows"]]
    assert all(0 <= float(row["entropy"]) <= np.log(2) for row in rows)
    again = tmp_path / "again"
    run_json("segment", model, scans, "--out", again, "--samples", 5, "--masks", 3)
    assert (again / "a.png/overview.png").read_bytes() == (out / "a.png/overview.png").read_bytes()


def test_maps_are_those_of_predict(model, run_json, tmp_path):
    pixels = lb.data.load("blobs", normalise=False).test.tensors[0][:2]
    np.save(tmp_path / "x.npy", pixels.numpy())
    run_json("segment", model, tmp_path / "x.npy", "--out", tmp_path / "out", "--samples", 4, "--threshold", 0.3)
    network = lb.load(model, into=lb.models.unet(widths=[4, 8]))
    inputs = lb.data.load("blobs").test.tensors[0][:2]
    pred = lb.predict(network, inputs, samples=4, keep_samples=True)
    found = opened(tmp_path / "out/00001/sample-02.png") > 0
    assert np.array_equal(found, pred.masks(0.3)[1, 1].numpy())
    mean = opened(tmp_path / "out/00001/mean.png") / 255
    assert np.abs(mean - pred.probs[1, 1].numpy()).max() <= 0.5 / 255 + 1e-5
    doubt = opened(tmp_path / "out/00000/entropy.png") / 255 * np.log(2)
    assert np.abs(doubt - pred.entropy[0].numpy()).max() <= np.log(2) / 255


def test_what_was_written_is_not_read_again(model, scans, run_json):
    for _ in range(2):
        said = run_json("segment", model, scans, "--out", scans / "segmented", "--samples", 2)
        assert len(said["rows"]) == 3


def test_evaluate_and_predict_know_segmentations(model, scans, run_json, tmp_path):
    said = run_json("evaluate", model, "--samples", 2, "--replicates", 10, "--html", tmp_path / "page.html")
    assert said["task"] == "segmentation"
    assert said["settings"]["groups"]["count"] == 30  # patients
    assert "What the experts see" in (tmp_path / "page.html").read_text(encoding="utf-8")
    image.fromarray(np.zeros((32, 32), np.uint8)).save(tmp_path / "one.png")
    table = run_json("predict", model, tmp_path / "one.png", "--samples", 2)
    assert table["columns"] == ["entropy", "mutual_information", "share(background)", "share(lesion)"]
    assert sum(table["rows"][0][2:]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("options", "said", "code"),
    [
        (["--samples", "0"], "--samples: expected a whole number of at least 1", USAGE),
        (["--threshold", "1.5"], "--threshold: expected a finite number", USAGE),
        (["--width", "2"], "--width: expected a finite number", USAGE),
        (["--width", "0.5"], "ordered channels", USAGE),
        (["--length", "3"], "latents", USAGE),
        (["--out", "no/such/folder"], "--out: expected a folder that exists", USAGE),
    ],
)
def test_what_does_not_fit_is_refused(options, said, code, model, scans, run, tmp_path):
    out = [] if "--out" in options else ["--out", tmp_path / "out"]
    found, _, err = run("segment", model, scans, *out, *options)
    assert (found, said in err) == (code, True), err
    assert not (tmp_path / "out").exists()


def test_images_and_models_of_other_kinds_are_refused(model, scans, run, tmp_path):
    (scans / "z.png").write_bytes(b"no image")
    found, _, err = run("segment", model, scans, "--out", tmp_path / "out")
    assert found == USAGE
    assert "z.png" in err
    assert not (tmp_path / "out").exists()  # nothing of the images before it either
    assert run("segment", model, tmp_path / "none", "--out", tmp_path / "out")[0] == USAGE
    np.save(tmp_path / "x.npy", np.full((1, 1, 8, 8), 7.0))
    assert "pixels from 0 to 1" in run("segment", model, tmp_path / "x.npy", "--out", tmp_path / "out")[2]
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 8, 8)))
    assert "1 channels, received 3" in run("segment", model, tmp_path / "x.npy", "--out", tmp_path / "out")[2]
    (tmp_path / "x.txt").write_text("1,2\n3,4\n")
    assert "expected an image (.bmp" in run("segment", model, tmp_path / "x.txt", "--out", tmp_path / "out")[2]
    other = tmp_path / "digits.safetensors"
    assert main(["train", "--data", "digits", "--epochs", "1", "--out", str(other), "--json", "dropout"]) == 0
    found, _, err = run("segment", other, scans, "--out", tmp_path / "out")
    assert found in (USAGE, FAILED)
