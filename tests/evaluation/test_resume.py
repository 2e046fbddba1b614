"""An evaluation that was interrupted goes on where it stood and ends with the same numbers; other files are refused."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import data
from leanbayes.errors import ArtifactError, EvaluationError
from leanbayes.evaluation import Attack, Corruptions, Pixels
from leanbayes.evaluation.resume import Outcome, Stages


class Interrupted(Exception):
    """Stands for whatever may happen."""


class Batches:
    """Test data that break off once, after so many batches in all."""

    def __init__(self, inputs, targets, size, after=None):
        self.batches = [(inputs[at : at + size], targets[at : at + size]) for at in range(0, len(inputs), size)]
        self.left = after

    def __iter__(self):
        for batch in self.batches:
            if self.left is not None:
                if self.left == 0:
                    raise Interrupted
                self.left -= 1
            yield batch


@pytest.fixture(scope="module")
def digits():
    return data.load("digits")


@pytest.fixture(scope="module")
def model(digits):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    lb.bayesianize_(model, lb.MeanField())
    lb.fit(model, data.loaders(digits)["train"], epochs=3, lr=1e-2, kl_weight=0.01, progress=False)
    return model


@pytest.fixture(scope="module")
def everything(digits):
    """The options of an evaluation with every kind of stage."""
    letters = data.load("not-digits/letters", parts="test").test.tensors[0][:40]
    held_out = tuple(part[:60] for part in digits.val.tensors)
    return {
        "samples": 2,
        "ood": {"letters": letters},
        "pixels": Pixels(tuple(digits.mean.tolist()), tuple(digits.std.tolist())),
        "corruptions": Corruptions(names=("fog", "contrast"), severities=(1, 5), limit=30),
        "attack": Attack(step=16, iterations=2, samples=2, limit=70),
        "temperature": held_out,
        "replicates": 10,
        "progress": False,
    }


def batches(digits, after=None):
    inputs, targets = digits.test.tensors
    return Batches(inputs[:100], targets[:100], 40, after)


def numbers(result):
    """All that must not depend on a clock."""
    plain = result.to_dict()
    return {key: plain[key] for key in ("metrics", "curves", "replicates", "count", "notes")}


@pytest.fixture(scope="module")
def undisturbed(model, digits, everything):
    return lb.evaluate(model, batches(digits), **everything)


def test_every_question_is_answered(undisturbed):
    kinds = ("accuracy", "human.", "ood.letters.", "corruption.", "attack.", "scaled.", "selective.", "aurc", "brier.")
    found = {kind for kind in kinds if any(key.startswith(kind) for key in undisturbed.metrics)}
    assert found == set(kinds) - {"human."}
    assert undisturbed.curves.keys() >= {"reliability", "risk_coverage", "ood", "corruption", "attack"}
    assert len(undisturbed.curves["corruption"]) == 4
    assert undisturbed.curves["attack"]["count"] == 70
    assert undisturbed.settings["data"].startswith("100:")


def test_interrupted_anywhere_and_resumed(model, digits, everything, undisturbed, tmp_path):
    """Fourteen batches in all: two that are looked at, then test data, temperature, four corruptions and the attack."""
    stages = []
    for after in (1, 6, 9, 13):
        file = tmp_path / f"{after}.eval"
        with pytest.raises(Interrupted):
            lb.evaluate(model, batches(digits, after), resume=file, **everything)
        stages.append(remembered(file))
        again = lb.evaluate(model, batches(digits), resume=file, **everything)
        assert numbers(again) == numbers(undisturbed)
    assert stages == sorted(set(stages)), "it was interrupted in different stages"


def test_interrupted_again_and_again(model, digits, everything, undisturbed, tmp_path):
    attempts, result = 0, None
    while result is None and attempts < 8:
        attempts += 1
        with contextlib.suppress(Interrupted):
            result = lb.evaluate(model, batches(digits, 9), resume=tmp_path / "run.eval", **everything)
    assert 2 < attempts < 8
    assert numbers(result) == numbers(undisturbed)


def test_when_all_is_done_the_same_call_answers_from_the_file(model, digits, everything, undisturbed, tmp_path):
    first = lb.evaluate(model, batches(digits), resume=tmp_path / "run.eval", **everything)
    before = (tmp_path / "run.eval").read_bytes()
    again = lb.evaluate(
        model, batches(digits, 9), resume=tmp_path / "run.eval", **everything
    )  # looked at, then gone through once to compare them, and by the slices of the attack
    assert numbers(first) == numbers(again) == numbers(undisturbed)
    assert again.cost == first.cost
    assert (tmp_path / "run.eval").read_bytes() == before
    assert os.listdir(tmp_path) == ["run.eval"]


def test_the_file_of_another_evaluation_is_refused(model, digits, everything, tmp_path):
    few = {key: everything[key] for key in ("samples", "ood", "progress", "replicates")}
    file = tmp_path / "run.eval"
    lb.evaluate(model, batches(digits), resume=file, **few)
    before = file.read_bytes()
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    shifted = digits.test.tensors[0][1:101], digits.test.tensors[1][1:101]
    ood = few | {"ood": {"letters": everything["ood"]["letters"] + 1}}
    attempts = [
        (model, batches(digits), few | {"samples": 3}, "samples differs .2 there, 3 here"),
        (model, batches(digits), few | {"bins": 10}, "bins"),
        (model, batches(digits), few | {"attack": everything["attack"], "pixels": everything["pixels"]}, "attack"),
        (model, shifted, few, "test data"),
        (model, batches(digits), ood, "ood letters"),
        (model, batches(digits), few | {"ood": None}, "ood letters"),
        (other, batches(digits), few | {"task": "classification"}, "model differs"),
    ]
    for net, loader, options, said in attempts:
        with pytest.raises(ArtifactError, match=said):
            lb.evaluate(net, loader, resume=file, **options)
    assert file.read_bytes() == before


def test_other_files_and_other_data_are_refused(model, digits, everything, tmp_path):
    few = {"samples": 2, "progress": False}
    lb.save(model, tmp_path / "model.safetensors")
    (tmp_path / "text").write_text("hello, this is no evaluation")
    for name, said in (("model.safetensors", "another file of leanbayes"), ("text", "safetensors")):
        with pytest.raises(ArtifactError, match=said):
            lb.evaluate(model, batches(digits), resume=tmp_path / name, **few)
    with pytest.raises(ArtifactError, match="mkdir"):
        lb.evaluate(model, batches(digits), resume=tmp_path / "no" / "run.eval", **few)
    with pytest.raises(EvaluationError, match=r"gone through again, as resume="):
        lb.evaluate(model, iter(batches(digits)), resume=tmp_path / "run.eval", **few)
    damaged = tmp_path / "damaged.eval"
    lb.evaluate(model, batches(digits), resume=damaged, **few)
    content = bytearray(damaged.read_bytes())
    content[-5] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(ArtifactError, match="damaged"):
        lb.evaluate(model, batches(digits), resume=damaged, **few)


def test_outcomes_survive_to_the_last_bit(tmp_path):
    values = {"nan": float("nan"), "third": 1 / 3, "list": [1, None, "x"], "nested": {"a": [0.1 + 0.2]}}
    tensors = {"points/correct": torch.rand(5), "flags": torch.tensor([[True, False]])}
    identity = {"model": "m", "task": "t", "options": {"levels": (0.5,)}, "data": {}, "versions": {}}
    Stages(tmp_path / "a", identity).once("odd/name, 3", lambda: Outcome(values, tensors))
    found = Stages(tmp_path / "a", identity).once("odd/name, 3", pytest.fail)
    assert repr(found.values) == repr(values)
    assert all(torch.equal(found.tensors[key], tensors[key]) for key in tensors)
    assert found.tensors["flags"].dtype == torch.bool


def test_ctrl_c_says_how_to_go_on(model, digits, tmp_path):
    class Pressed(Batches):
        def __iter__(self):
            yield self.batches[0]
            raise KeyboardInterrupt

    inputs, targets = digits.test.tensors
    loader = Pressed(inputs[:100], targets[:100], 40)
    with pytest.raises(KeyboardInterrupt) as stop:
        lb.evaluate(model, loader, samples=2, progress=False, resume=tmp_path / "run.eval")
    assert "the same call goes on from" in stop.value.__notes__[0]


SCRIPT = textwrap.dedent("""
    import json, sys, time
    import torch
    from torch import nn
    import leanbayes as lb
    from leanbayes import data
    from leanbayes.evaluation import Corruptions, Pixels

    torch.set_num_threads(1)
    torch.manual_seed(0)
    digits = data.load("digits")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    lb.bayesianize_(model, lb.MeanField())
    pixels = Pixels(tuple(digits.mean.tolist()), tuple(digits.std.tolist()))
    result = lb.evaluate(model, digits.test, task="classification", samples=3, pixels=pixels, progress=False,
                         corruptions=Corruptions(severities=(1, 5), limit=60), replicates=5, resume=sys.argv[1])
    print(json.dumps({"metrics": result.metrics, "curves": result.curves}))
""")


@pytest.mark.long  # what an interrupt leaves is tested above, at every stage
def test_killed_and_resumed(tmp_path):
    """kill -9 in the middle of the sweep; the next run ends with the numbers of a calm one."""

    def start(name):
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / name)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    calm, rough, deadline = start("calm.eval"), start("rough.eval"), time.monotonic() + 120
    while remembered(tmp_path / "rough.eval") < 8 and time.monotonic() < deadline:
        time.sleep(0.01)
    rough.kill()
    assert rough.wait(60) == -signal.SIGKILL
    rough.stdout.close()
    kept = remembered(tmp_path / "rough.eval")
    last = start("rough.eval")
    outputs = [json.loads(process.communicate(timeout=240)[0]) for process in (calm, last)]
    assert 8 <= kept < remembered(tmp_path / "calm.eval")
    assert outputs[0] == outputs[1]


def remembered(path):
    """How many stages a file remembers; it is whole at every moment."""
    from leanbayes import container

    return len(json.loads(container.read(path)[1]["evaluation"]["stages"])) if path.exists() else 0
