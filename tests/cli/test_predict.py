"""`leanbayes predict`: files in, answers with their uncertainty out, in the units of the user."""

import csv

import numpy as np
import pytest

from leanbayes.cli import DONE, FAILED, USAGE
from leanbayes.data import load


@pytest.mark.parametrize("kind", ["npy", "csv"])
def test_predict_reads_and_writes(folder, tmp_path, kind, run):
    out = tmp_path / "answers.csv"
    code, said, _ = run("predict", folder / "digits.safetensors", folder / f"images.{kind}", "--out", out)
    assert (code, said) == (DONE, f"wrote 30 rows to {out}\n")
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 30
    assert {row["label"] for row in rows} <= set("0123456789")
    for row in rows:
        assert sum(float(row[f"p({c})"]) for c in range(10)) == pytest.approx(1, abs=1e-4)
        assert float(row["confidence"]) == float(row[f"p({row['label']})"])
        assert 0 <= float(row["mutual_information"]) <= float(row["entropy"])


def test_predict_agrees_with_the_library(folder, run_json):
    import torch

    import leanbayes as lb
    from leanbayes.cli.saved import open_model

    result = run_json("predict", folder / "digits.safetensors", folder / "images.npy", "--samples", "4")
    assert result["count"] == len(result["rows"]) == 30  # a pipe gets them all
    model, _ = open_model(folder / "digits.safetensors", None)
    expected = lb.predict(model, load("digits").test.tensors[0][:30], samples=4).probs
    found = torch.tensor([row[4:] for row in result["rows"]])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("big.npy", np.full((2, 64), 16.0), "0 to 1"),
        ("narrow.npy", np.zeros((2, 63)), "(63,)"),
        ("single.npy", np.zeros(64), "[None]"),
        ("none.npy", np.zeros((0, 64)), "(0, 64)"),
        ("text.npy", np.array([["a"] * 64]), "numbers"),
        ("complex.npy", np.zeros((1, 64), dtype=complex), "complex"),
        ("nan.npy", np.full((3, 64), np.nan), "row 0"),
        ("empty.npy", b"", "empty.npy"),
        ("cut.npy", b"\x93NUMPY\x01\x00", "cut.npy"),
        ("words.csv", b"a,b\nc,d\n", "words.csv"),
        ("header.csv", b"a,b\n", "header.csv"),
        ("ragged.csv", b"1,2\n3\n", "ragged.csv"),
        ("bytes.csv", bytes(range(256)), "bytes.csv"),
    ],
)
@pytest.mark.filterwarnings("ignore:loadtxt")
def test_predict_refuses_inputs_that_it_cannot_read(folder, tmp_path, name, content, said, run):
    path = tmp_path / name
    path.write_bytes(content) if isinstance(content, bytes) else np.save(path, content)
    code, out, err = run("predict", folder / "digits.safetensors", path, "--out", tmp_path / "out.csv")
    assert (code, out) == (USAGE, "")
    assert said in err
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("noise", ["fixed", "learned", "heteroscedastic"])
def test_regression_from_end_to_end_in_the_units_of_the_target(folder, tmp_path, monkeypatch, noise, run_json):
    monkeypatch.setenv("LEANBAYES_DATA", str(folder))
    model = tmp_path / "m.safetensors"
    options = ["--data", "uci/yacht", "--noise", noise, "--epochs", "60", "--lr", "0.02", "--batch-size", "32"]
    run_json("train", *options, "--out", model)
    metrics = run_json("evaluate", model)["metrics"]
    assert 0.3 < metrics["rmse"] < 6  # of a target with a standard deviation of 10
    np.save(tmp_path / "x.npy", np.eye(6)[:1])
    rows = run_json("predict", model, tmp_path / "x.npy")
    mean, std, epistemic, low, high = rows["rows"][0]
    assert rows["columns"] == ["mean", "std", "epistemic_std", "low95", "high95"]
    assert abs(mean - 110) < 8
    assert low < mean < high
    assert 0 < epistemic < std
    assert high - low == pytest.approx(2 * 1.96 * std, rel=0.15)
    # the same density in other units: standardised it would be log 10 higher
    assert metrics["log_density"] < 0.5


def test_a_model_that_the_library_saved_without_metadata(tmp_path, monkeypatch, run, run_json):
    import torch
    from torch import nn

    import leanbayes as lb

    monkeypatch.chdir(tmp_path)
    (tmp_path / "two_outputs.py").write_text("from torch import nn\ndef net(): return nn.Sequential(nn.Linear(3, 2))\n")
    model = nn.Sequential(nn.Linear(3, 2))
    lb.bayesianize_(model, lb.MeanField())
    lb.save(model, "bare.safetensors", metadata={"data": 5, "note": "ours"})
    np.save("x.npy", np.zeros((4, 3)))
    bare = ["predict", "bare.safetensors", "x.npy", "--model", "two_outputs:net", "--scaled"]
    code, _, err = run(*bare)
    assert code == FAILED
    assert "task" in err
    assert run_json(*bare, "--task", "classification")["columns"][0] == "label"
    lb.fit(model, (torch.randn(8, 3), torch.randn(8, 2)), task="regression", epochs=1, progress=False)
    lb.save(model, "bare.safetensors")
    assert run_json(*bare)["columns"][:4] == ["mean_0", "mean_1", "std_0", "std_1"]
    code, _, err = run("evaluate", "bare.safetensors", "--model", "two_outputs:net")
    assert code == USAGE
    assert "--data" in err
    lb.save(model, "bare.safetensors", metadata={"training": {"network": "mlp", "more": 1}})
    code, _, err = run(*bare)
    assert code == USAGE
    assert "metadata" in err
