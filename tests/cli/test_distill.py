"""`leanbayes distill`: a teacher's file in, a student's file out, which the other commands read."""

import pytest

import leanbayes as lb
from leanbayes.cli import DONE, USAGE
from leanbayes.cli.saved import open_model
from leanbayes.data import load


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    from leanbayes.cli import main

    path = tmp_path_factory.mktemp("teacher") / "teacher.safetensors"
    options = ["--data", "digits", "--epochs", "1", "--json", "--out", str(path)]
    assert main(["train", *options, "nested", "--groups", "8"]) == DONE
    return path


def test_a_student_is_cut_taught_and_evaluated(teacher, tmp_path, run_json, run):
    out = tmp_path / "student.safetensors"
    said = run_json("distill", teacher, "--out", out, "--width", "0.5", "--epochs", "1", "--samples", "2", "--cache")
    assert said["parameters"]["student"] < said["parameters"]["teacher"] / 4
    student, training = open_model(out, None)
    pred = lb.predict(student, load("digits").test.tensors[0][:20])
    assert pred.engine == "deterministic"
    assert (pred.mutual_information > 0).all()
    assert training.data == "digits"
    code, text, _ = run("evaluate", teacher, out, "--replicates", "0", "--samples", "2")
    assert code == DONE
    assert "student" in text


def test_another_network_is_taught(teacher, tmp_path, run_json):
    out = tmp_path / "mlp.safetensors"
    options = ("--student", "mlp", "--loss", "kd", "--epochs", "1", "--samples", "2", "--cache")
    run_json("distill", teacher, "--out", out, *options)
    student, training = open_model(out, None)
    assert training.network["name"] == "mlp"
    assert lb.predict(student, load("digits").test.tensors[0][:5]).probs.shape == (5, 10)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--student", "nope"), "received 'nope'"),
        (("--options", "width=3"), "--options: expected --student beside it"),
        (("--width", "2"), "width: expected"),
        (("--samples", "0"), "--samples: expected a whole number of at least 1"),
        (("--loss", "mse"), "mse"),
        (("--temperature", "2"), "temperature: expected loss='kd' beside it"),
        (("--data", "not-digits/letters"), "not-digits/letters: expected parts= of test, which it has"),
    ],
)
def test_what_is_refused_writes_nothing(teacher, tmp_path, run, options, said):
    out = tmp_path / "student.safetensors"
    code, _, errors = run("distill", teacher, "--out", out, *options)
    assert code == USAGE
    assert said in errors
    assert not out.exists()


def test_the_teacher_is_not_overwritten(teacher, run):
    before = teacher.read_bytes()
    code, _, errors = run("distill", teacher, "--out", teacher)
    assert (code, teacher.read_bytes()) == (USAGE, before)
    assert "another file than the teacher's" in errors
