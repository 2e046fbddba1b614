"""Every other command: what it prints and what it writes."""

import json
import re

import pytest

from leanbayes.cli import DONE, FAILED, USAGE

QUICK = ["--model", "mlp", "--epochs", "2"]


def test_train_says_where_and_how_well(tmp_path, run):
    code, out, _ = run("train", "dropout", "--rate", "0.3", *QUICK, "--out", tmp_path / "m.safetensors")
    assert code == DONE
    assert "Dropout" in out
    assert "val_accuracy" in out
    assert f"leanbayes evaluate {tmp_path / 'm.safetensors'}" in out
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def test_options_may_follow_the_method_and_its_prior(tmp_path, run_json):
    from leanbayes import artifacts

    out = tmp_path / "m.safetensors"
    run_json("train", "mean-field", "--std", "0.1", "normal", "--std", "0.5", *QUICK, "--out", out)
    methods = artifacts.inspect(out)["conversions"].values()
    assert {(m["std"], m["prior"]["std"]) for m in methods} == {(0.1, 0.5)}


def test_train_continues_from_a_checkpoint(tmp_path, run_json):
    files = [
        "--checkpoint",
        tmp_path / "run.ckpt",
        "--log",
        tmp_path / "log.jsonl",
        "--out",
        tmp_path / "a.safetensors",
    ]
    arguments = ["train", "--model", "mlp", *files]
    run_json(*arguments, "--epochs", "1")
    assert run_json(*arguments, "--epochs", "2")["last"]["epoch"] == 1
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 2
    straight = run_json("train", "--model", "mlp", "--epochs", "2", "--out", tmp_path / "b.safetensors")
    assert straight["out"] == str(tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_evaluate(folder, tmp_path, run, run_json):
    model = folder / "digits.safetensors"
    page = tmp_path / "page.html"
    code, out, _ = run("evaluate", model, "--samples", "4", "--ood", "not-digits/letters", "--html", page)
    assert code == DONE
    assert "Accuracy" in out
    assert "not-digits/letters" in out
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    result = run_json("evaluate", model, "--mean-only")
    assert result["settings"]["mean_only"] is True
    assert result["count"] == 359


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ood", "not-digits/leters"], "not-digits/letters"),
        (["--data", "not-digits/letters"], "--ood not-digits/letters"),
        (["--data", "uci/yacht"], "expected data of shape (1, 8, 8)"),
        (["--model", "mlp"], "package.module:factory"),
    ],
)
def test_evaluate_refuses_data_that_do_not_fit(folder, monkeypatch, options, said, run):
    monkeypatch.setenv("LEANBAYES_DATA", str(folder))
    code, out, err = run("evaluate", folder / "digits.safetensors", *options)
    assert (code, out) == (USAGE, "")
    assert said in err


def test_a_network_of_your_own(tmp_path, monkeypatch, run, run_json):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_net.py").write_text(
        "from torch import nn\n"
        "def net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))\n"
        "def nine(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 9))\n"
        "def three(): return nn.Sequential(nn.Flatten(), nn.Linear(3, 10))\n"
        "def broken(): raise KeyError('oh')\n"
    )
    run_json("train", "--model", "own_net:net", "--only", "3", "--epochs", "1")
    code, _, err = run("evaluate", "model.safetensors")
    assert code == USAGE
    assert "add --model own_net:net" in err  # a file cannot make us import code
    assert run_json("evaluate", "model.safetensors", "--model", "own_net:net")["count"] == 359
    assert run_json("plan", "--model", "own_net:net", "--only", "3")["parameters_after"] == 1210 + 170
    for factory, said in {"nine": "expected 10 outputs", "three": "(1, 8, 8)", "broken": "own_net.py, line 5"}.items():
        code, _, err = run("train", "--model", f"own_net:{factory}")
        assert code == USAGE
        assert said in err


def test_plan_prints_and_counts(run, run_json):
    code, out, _ = run("plan", "variational-dropout", "--only", "Linear")
    assert code == DONE
    assert "2 converted, 2 left alone" in out
    plan = run_json("plan", "--strict")
    assert plan["parameters_after"] == 2 * plan["parameters_before"]


def test_reproduce_lists_runs_and_writes(tmp_path, monkeypatch, run, run_json):
    assert "baselines" in run_json("reproduce")
    from leanbayes.recipes.catalogue import RECIPES, Recipe
    from leanbayes.recipes.experiment import Cell, Experiment

    cell = Cell("digits", "a", 1, {}, lambda jobs, seed: {"nll": 0.5}, paper={"nll": 0.4})
    monkeypatch.setitem(RECIPES, "toy", Recipe("toy", "one row", lambda: Experiment("toy", lambda preset: [cell])))
    monkeypatch.chdir(tmp_path)
    code, out, err = run("reproduce", "toy", "--preset", "cpu")
    assert code == DONE
    assert "0.5 (0.4)" in out
    assert "already done" not in err
    result = run_json("reproduce", "toy", "--preset", "cpu")
    assert json.loads((tmp_path / "results" / "toy.cpu.json").read_text()) == result
    assert "already done" in run("reproduce", "toy", "--preset", "cpu")[2]
    run_json("reproduce", "toy")  # smoke leaves nothing behind
    assert sorted(p.name for p in tmp_path.rglob("*.json") if p.parent.name == "results") == ["toy.cpu.json"]


def test_demo(tmp_path, run):
    page = tmp_path / "report.html"
    code, out, err = run("demo", "--epochs", "3", "--samples", "2", "--html", page)
    assert code == DONE
    assert err == ""  # no warning, no bar of progress
    assert out.index("[1/4] train a network on 300 digits") < out.index("[4/4] make it Bayesian: ensemble")
    assert "All these answers are wrong" in out
    assert "AUROC" in out
    assert "What to do with a doubtful answer" in out
    text = page.read_text(encoding="utf-8")
    assert len(re.findall("<h3>Digits that .* refuses</h3>", text)) == 1
    assert text.count('aria-label="a ') >= 5  # pictures of them
    assert "refused by" in text


def test_demo_as_json(tmp_path, run_json):
    found = run_json("demo", "--epochs", "1", "--samples", "2", "--html", tmp_path / "report.html")
    assert [e["name"] for e in found["evaluations"]] == ["plain network", "MC dropout", "mean-field", "ensemble"]


def test_a_failure_is_not_a_usage_error(tmp_path, run):
    from leanbayes.training import lock

    checkpoint = tmp_path / "run.ckpt"
    with lock.held(checkpoint):  # as another run would
        code, out, err = run("train", "--model", "mlp", "--checkpoint", checkpoint, "--out", tmp_path / "m", "--json")
    assert code == FAILED
    assert json.loads(out)["error"]["type"] == "TrainingError"
    assert err.startswith("leanbayes: ")
    assert list(tmp_path.iterdir()) == []


def test_pieces_are_listed_and_run_alone(tmp_path, monkeypatch, run, run_json):
    from leanbayes.recipes.catalogue import RECIPES, Recipe
    from leanbayes.recipes.experiment import Cell, Experiment

    cell = Cell("digits", "a", 1, {}, lambda jobs, seed: {"nll": seed}, seeds=3)
    monkeypatch.setitem(RECIPES, "toy", Recipe("toy", "three seeds", lambda: Experiment("toy", lambda preset: [cell])))
    monkeypatch.chdir(tmp_path)
    assert "to do  a (1) on digits, seed 2" in run("reproduce", "toy", "--list")[1]
    code, out, _ = run("reproduce", "toy", "--preset", "cpu", "--only", "*seed 1")
    assert code == DONE
    assert " s  a (1) on digits, seed 1" in out
    assert "seed 2" not in out
    assert not (tmp_path / "results").exists()
    listed = run_json("reproduce", "toy", "--preset", "cpu", "--list")
    assert [one["seconds"] is None for one in listed] == [True, False, True]
    part = run_json("reproduce", "toy", "--preset", "cpu", "--only", "*seed 1", "--out", "part.json")
    assert part["rows"][0]["metrics"]["nll"] == {"mean": 1.0, "std": None, "n": 1}
    assert part["command"] == "leanbayes reproduce toy --preset cpu --only '*seed 1'"
    for arguments, said in (
        (("toy", "--only", "seed 1"), "--resume"),
        (("toy", "--only", "seed 9", "--resume", "runs"), "--list"),
        (("toy", "--only", "seed 9", "--resume", "runs", "--out", "none.json"), "--list"),
        (("--list",), "expected the name of a recipe"),
    ):
        code, _, err = run("reproduce", *arguments)
        assert code == USAGE
        assert said in err


def test_a_recipe_that_draws_writes_its_figure_beside_the_result(tmp_path, monkeypatch, run):
    from leanbayes.recipes.catalogue import RECIPES, Recipe
    from leanbayes.recipes.experiment import Cell, Experiment

    cell = Cell("digits", "dropout", 0, {}, lambda jobs, seed: {"nll": 0.5})
    experiment = Experiment("toy", lambda preset: [cell], figure=lambda result: f"<svg>{result['recipe']}</svg>")
    monkeypatch.setitem(RECIPES, "toy", Recipe("toy", "one row", lambda: experiment))
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("reproduce", "toy", "--preset", "cpu")
    assert code == DONE
    picture = tmp_path / "results" / "figures" / "toy.cpu.svg"
    assert str(picture.relative_to(tmp_path)) in out
    assert picture.read_text(encoding="utf-8") == "<svg>toy</svg>"
