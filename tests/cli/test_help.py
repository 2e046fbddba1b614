"""What the command line says about itself, and how it refuses."""

import json
import subprocess
import sys

import pytest

from leanbayes.cli import COMMANDS, DONE, USAGE


def test_help_is_quick_and_does_without_torch(run):
    code = (
        "import sys, time; from leanbayes.cli import main; main(['--help']); "
        "[main([c, '--help']) for c in ('train', 'plan', 'evaluate')]; "
        "print('torch' in sys.modules, time.process_time())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for command in COMMANDS:
        assert f"• {command}" in out
    loaded, seconds = out.split()[-2:]
    assert loaded == "False"
    assert float(seconds) < 1.0  # four of them; one takes a quarter of a second


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_every_option_is(command, run):
    code, out, _ = run(command, "--help")
    assert code == DONE
    lines = out.replace("│", " ").splitlines()
    for at, line in enumerate(lines):
        if line.strip().startswith("--") and line.strip(
            "- "
        ):  # no rule across the page; the text is on the line or, where that is full, on the next one
            assert len(line.split("  ", 2)[-1].split()) > 2 or not lines[at + 1].strip().startswith(("--", "(default"))
    assert "{None}" not in out


@pytest.mark.parametrize("method", ["mean-field", "dropout", "variational-dropout", "plain"])
def test_help_of_methods_has_no_doctests(method, run):
    code, out, _ = run("train", method, "--help")
    assert code == DONE
    assert ">>>" not in out
    assert "import torch" not in out


def test_docstrings_come_back_after_help(run):
    from leanbayes.methods import MeanField
    from leanbayes.priors import Normal

    run("train", "mean-field", "normal", "--help")
    assert ">>>" in Normal.__doc__
    assert ">>>" in MeanField.__doc__


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "did you mean 'train'"),
        (["train", "mean-feild"], "did you mean 'mean-field'"),
        (["train", "MeanField"], "did you mean 'mean-field'"),
        (["plan", "mean-field", "studentt"], "did you mean 'student-t'"),
        (["train", "--epoch", "3"], "--epochs"),
        (["train", "--epochs", "many"], "--epochs"),
        (["train", "--epochs", "0"], "at least 1"),
        (["train", "--lr", "nan"], "--lr"),
        (["train", "--kl-weight", "-1"], "--kl-weight"),
        (["train", "--warmup", "-1"], "--warmup"),
        (["train", "--seed", str(10**30)], "--seed"),
        (["train", "--noise", "loud"], "heteroscedastic"),
        (["train", "--data", "minst"], "did you mean 'mnist'"),
        (["train", "--data", "not-digits/letters"], "unlabelled"),
        (["train", "--model", "convnett"], "did you mean 'convnet'"),
        (["train", "--model", "no_such_package:net"], "no_such_package"),
        (["train", "--model", "math:pi"], "math:pi"),
        (["train", "--model", "builtins:dict"], "received dict"),
        (["train", "--out", "no/such/folder/m.safetensors"], "no/such/folder"),
        (["train", "--out", "."], "add a file name"),
        (["train", "plain", "--only", "Linear"], "drop one"),
        (["train", "mean-field", "--std", "-1"], "MeanField.std"),
        (["plan", "plain"], "leanbayes plan mean-field"),
        (["plan", "--only", "Conv3d"], "Conv3d"),
        (["evaluate", "no.safetensors"], "no.safetensors"),
        (["evaluate", "no.safetensors", "--samples", "0"], "--samples"),
        (["evaluate", "no.safetensors", "--html", "no/such/page.html"], "--html"),
        (["predict", "no.safetensors", "no.npy", "--out", "no/such.csv"], "--out"),
        (["demo", "--html", "no/such/page.html"], "--html"),
        (["reproduce", "baseline"], "did you mean 'baselines'"),
        (["reproduce", "baselines", "--out", "no/such/result.json"], "--out"),
        (["reproduce", "baselines", "--preset", "gpu"], "smoke"),
    ],
)
def test_what_cannot_start_is_refused_with_a_way_out(tmp_path, monkeypatch, arguments, said, run):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*arguments)
    assert (code, out) == (USAGE, "")
    assert said in " ".join(err.replace("│", " ").split())
    code, out, err = run(*arguments, "--json")
    assert code == USAGE
    assert list(json.loads(out)) == ["error"]
    assert list(tmp_path.iterdir()) == []  # nothing was written
