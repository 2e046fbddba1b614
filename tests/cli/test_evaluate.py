"""`leanbayes evaluate`: every question, several files, an interruption, and nonsense."""

import json

import pytest

from leanbayes.cli import DONE, FAILED, USAGE
from leanbayes.evaluation import Comparison, Evaluation

QUICK = ["--samples", "2", "--replicates", "20"]


def test_every_question_in_one_command(folder, tmp_path, run, run_json):
    model, page, file = folder / "digits.safetensors", tmp_path / "page.html", tmp_path / "run.eval"
    asked = [
        "--ood",
        "not-digits/letters",
        "--corruptions",
        "fog",
        "contrast",
        "--severities",
        "1",
        "5",
        "--limit",
        "40",
    ]
    asked += ["--attack", "--attack-step", "8", "--attack-iterations", "2", "--temperature", "--resume", file]
    code, out, _ = run("evaluate", model, *QUICK, *asked, "--html", page, "--name", "mine")
    assert code == DONE
    for word in ("mine", "95 % interval", "Corrupted images", "Under attack", "One temperature", "Wished accuracy"):
        assert word in out
    text = page.read_text(encoding="utf-8")
    for word in ("Corrupted images, one by one", "Under attack", "With one temperature", "Answering only when sure"):
        assert word in text
    result = run_json("evaluate", model, *QUICK, *asked, "--name", "mine")  # from the file: nothing is asked again
    assert result["settings"]["corruptions"]["limit"] == 40
    assert result["settings"]["attack"]["step"] == 8
    assert result["curves"]["attack"]["count"] == 40
    assert result["metrics"]["scaled.nll"] > 0
    assert Evaluation.from_dict(result).name == "mine"


def test_several_files_are_compared(folder, tmp_path, run, run_json):
    from leanbayes.cli import main

    other = tmp_path / "dropout.safetensors"
    assert main(["train", "dropout", "--model", "mlp", "--epochs", "1", "--json", "--out", str(other)]) == DONE
    code, out, _ = run("evaluate", folder / "digits.safetensors", other, *QUICK, "--html", tmp_path / "page.html")
    assert code == DONE
    assert "paired bootstrap" in out or "best of its column" in out
    table = Comparison.from_dict(run_json("evaluate", folder / "digits.safetensors", other, *QUICK))
    assert [e.name for e in table] == ["digits", "dropout"]
    assert table.difference("nll", "digits", "dropout").paired


def test_sample_counts_and_procedures(folder, run_json):
    model = folder / "digits.safetensors"
    result = run_json("evaluate", model, "--samples", "1", "4", "--replicates", "0")
    assert [e["name"] for e in result["evaluations"]] == ["digits, 1 sample", "digits, 4 samples"]
    three = ["stochastic", "deterministic", "ensemble"]
    result = run_json("evaluate", model, "--procedures", *three, *QUICK)
    assert [e["name"] for e in result["evaluations"]] == [f"digits, {way}" for way in three]


def test_a_reference(folder, tmp_path, run, run_json):
    model, sweep = (
        folder / "digits.safetensors",
        ["--corruptions", "gaussian_noise", "--severities", "5", "--limit", "200"],
    )
    reference = tmp_path / "reference.json"
    reference.write_text(json.dumps(run_json("evaluate", model, *QUICK, *sweep)))
    assert run_json("evaluate", model, *QUICK, *sweep, "--reference", reference)["metrics"]["corruption.mce"] == 1
    other = ["--corruptions", "fog", "--severities", "5", "--limit", "200"]
    code, _, err = run("evaluate", model, *QUICK, *other, "--reference", reference)
    assert code == FAILED
    assert "no cell" in err
    (tmp_path / "text.json").write_text("[1, 2")
    code, _, err = run("evaluate", model, *QUICK, *sweep, "--reference", tmp_path / "text.json")
    assert code == FAILED
    assert "expected JSON" in err


def test_regression_is_reported_in_the_units_of_the_target(folder, tmp_path, monkeypatch, run_json):
    monkeypatch.setenv("LEANBAYES_DATA", str(folder))
    file = tmp_path / "yacht.safetensors"
    run_json("train", "--data", "uci/yacht", "--epochs", "30", "--out", file)
    result = Evaluation.from_dict(run_json("evaluate", file, "--samples", "4"))
    low, high = result.interval("rmse")
    assert low <= result["rmse"] <= high
    assert result["crps"] <= result["mae"] * 1.5
    assert 0 < result["sharpness"] < 100
    assert sum(result.curves["pit"]["count"]) == 40


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--corruptions", "fgo"], "fog"),
        (["--corruptions", "--severities", "6"], "6"),
        (["--severities", "3"], "--severities: expected --corruptions"),
        (["--attack-step", "1"], "--attack-step: expected --attack"),
        (["--attack-iterations", "5"], "expected --attack"),
        (["--attack", "--attack-step", "-1"], "above 0"),
        (["--attack", "--attack-iterations", "0"], "at least 1"),
        (["--limit", "5"], "expected --corruptions or --attack"),
        (["--corruptions", "--limit", "0"], "at least 1"),
        (["--reference", "a.json"], "expected --corruptions"),
        (["--samples", "3", "3"], "different ones"),
        (["--samples", "-1"], "at least 1"),
        (["--samples"], "received none"),
        (["--replicates", "-3"], "at least 0"),
        (["--procedures", "magic"], "stochastic"),
        (["--mean-only", "--procedures", "ensemble"], "drop one"),
        (["--resume", "no/such/run.eval"], "no/such"),
        (["--resume", "."], "file name"),
    ],
)
def test_nonsense_is_refused_with_a_way_out(folder, tmp_path, monkeypatch, options, said, run):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("evaluate", folder / "digits.safetensors", *options)
    assert (code, out) == (USAGE, "")
    assert said in " ".join(err.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_files_that_do_not_go_together(folder, tmp_path, run):
    model = folder / "digits.safetensors"
    for arguments, said in (
        ([], "at least one model file"),
        ([model, model], "twice"),
        ([model, tmp_path / "no.safetensors"], "no.safetensors"),
        ([model, model, "--name", "x"], "--name"),
    ):
        code, out, err = run("evaluate", *arguments)
        assert (code, out) == (USAGE, "")
        assert said in " ".join(err.replace("│", " ").split())


def test_a_file_of_another_evaluation_is_refused(folder, tmp_path, run):
    model, file = folder / "digits.safetensors", tmp_path / "run.eval"
    assert run("evaluate", model, *QUICK, "--resume", file)[0] == DONE
    code, _, err = run("evaluate", model, "--samples", "3", "--resume", file)
    assert code == USAGE
    assert "samples" in err
    assert "delete the file" in err
    code, _, err = run("evaluate", model, *QUICK, "--resume", model)
    assert code == USAGE
    assert "another file of leanbayes" in err


def test_an_interruption_says_how_to_go_on():
    from pathlib import Path

    from leanbayes.cli.evaluate import Evaluate

    assert "--resume FILE" in Evaluate((Path("a.safetensors"),)).go_on()
    assert "continues from run.eval" in Evaluate((Path("a.safetensors"),), resume=Path("run.eval")).go_on()
