"""The recipe of students: teacher and students are measured alike, and students of a seed share its answers."""

from dataclasses import replace

from leanbayes.recipes.compress import student
from leanbayes.recipes.jobs import Jobs


def test_a_student_is_a_quarter_and_answers_in_one_pass():
    training = replace(student.DIGITS.training, epochs=1, limit=100, test_limit=50)
    setup = replace(student.DIGITS, training=training, epochs=1, samples=2)
    jobs = Jobs(None)
    found = {
        name: student.measured(setup, name, jobs, 0)
        for name in ("BN3", "labels", "kl", "mmd", "mmd and mean", "mmd and labels")
    }
    assert found["BN3"]["passes"] == 2
    assert all(found[name]["passes"] == 1 for name in ("labels", "kl", "mmd"))
    assert all(found[name]["parameters"] < found["BN3"]["parameters"] / 10 for name in ("labels", "kl", "mmd"))
    assert "AUROC, mutual information" in found["mmd"]
    assert "AUROC, mutual information" not in found["labels"]
    assert len(student._answers) == 1


def test_what_the_paper_prints_stands_in_lines_of_its_own():
    cited = [cell for cell in student.cells("cpu") if cell.dataset == "tiny-imagenet"]
    assert len(cited) == 10
    assert not any(cell.pieces() for cell in cited)
    assert cited[-1].paper == {"accuracy": 0.639, "ece": 0.14, "AUPR": 0.98}
