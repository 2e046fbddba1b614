"""`leanbayes compress`: a smaller file that evaluate and predict read like any other."""

import pytest

from leanbayes.cli import DONE, USAGE, main


@pytest.fixture(scope="module")
def nested(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compress")
    path = folder / "nested.safetensors"
    words = ["train", "--data", "digits", "--model", "mlp", "--epochs", "4", "--json", "--out", str(path)]
    assert main([*words, "nested", "--groups", "4", "--base-groups", "1"]) == DONE
    return path


def test_a_cascade_of_widths(nested, run_json, run, tmp_path):
    out = tmp_path / "cascade.safetensors"
    found = run_json("compress", nested, "--out", out, "--widths", "0.25", "1.0", "--macs", "0.6")
    assert len(found["tuned"]["thresholds"]) == 1
    assert found["tuned"]["macs"] <= 0.6 * found["tuned"]["last_macs"]
    assert found["after"]["macs"] < found["before"]["macs"]
    again = run_json("evaluate", out, "--replicates", "0")
    assert again["metrics"]["accuracy"] == pytest.approx(found["after"]["accuracy"])
    code, said, _ = run("compress", nested, "--out", out, "--widths", "0.5")
    assert code == DONE
    assert "wrote" in said


def test_pruned_channels(folder, run_json, tmp_path):
    out = tmp_path / "pruned.safetensors"
    words = ("--prune", "0.5", "--by", "magnitude", "--channels", "--round-to", "8")
    found = run_json("compress", folder / "digits.safetensors", "--out", out, *words)
    assert {row["kept"] % 8 for row in found["pruned"]["channels"]} == {0}
    assert found["after"]["macs"] < 0.7 * found["before"]["macs"]
    assert found["after"]["file"] < 0.5 * found["before"]["file"]
    rows = run_json("predict", out, folder / "images.npy")["rows"]
    assert len(rows) == 30


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--widths", "0.25", "1.0", "--accuracy", "1.0"), "accuracy of at most"),
        (("--max-loss", "0.1"), "several --widths"),
        (("--widths", "0.5", "--cheapest", "milliseconds"), "several --widths"),
        (("--widths", "0.5", "1.0", "--cheapest", "milliseconds", "--macs", "1"), "cheapest: expected accuracy"),
        (("--channels",), "--prune SHARE"),
        (("--widths", "0.5", "1.0", "--macs", "1", "--max-loss", "1"), "one wish"),
    ],
)
def test_what_cannot_be_done(nested, run, tmp_path, words, said):
    out = tmp_path / "no.safetensors"
    code, _, err = run("compress", nested, "--out", out, *words)
    assert code != DONE
    assert said in err
    assert not out.exists()


def test_the_model_is_not_overwritten(nested, run):
    before = nested.read_bytes()
    code, _, err = run("compress", nested, "--out", nested, "--prune", "0.5")
    assert (code, nested.read_bytes()) == (USAGE, before)
    assert "another file than the model's" in err


def test_what_was_pruned_is_told(nested, run, tmp_path):
    code, said, _ = run("compress", nested, "--out", tmp_path / "small.safetensors", "--prune", "0.5")
    assert code == DONE
    assert "50.0%" in next(line for line in said.splitlines() if line.startswith("total"))
