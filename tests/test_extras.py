"""Each extra by itself: what it is for works without the packages that only other extras bring."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
REQUIRED = "LEANBAYES_REQUIRE_EXTRAS"
pytestmark = [
    pytest.mark.extra,
    pytest.mark.skipif(os.environ.get(REQUIRED) != "1", reason="needs all extras; `make extras` installs them"),
]

PARTS = {  # some tests of what each is for
    "serve": "serve/test_app.py serve/test_bodies.py -k say_the_same or told_the_right_one or image",
    "tables": "data/test_reading.py cli/test_many_files.py -k test_parquet or one_process",
    "onnx": "exports/test_onnx.py -k narrow or eight_bits or names_sets",
    "tensorboard": "training/test_fit.py -k tensorboard",
    "trackers": "integrations/test_trackers.py -k keeps_every_number or wandb",
    "cluster": "cli/test_many_files.py -k bit_for_bit",
    "hub": "integrations/test_hub.py -k without_an_evaluation or clear",
    "hub,plots,evaluation": "integrations/test_hub.py -k comes_back",
    "trainers": "integrations -k accumulated_gradients or cannot_be",
    "images": "data/test_reading.py -k folders",
    "plots,evaluation": "report/test_report.py -k valid_svg or page_is_whole",
    "evaluation": "evaluation/test_temperature.py -k search_by_scipy or calibrate_equals",
    "sklearn": "test_sklearn.py -k pipeline or clone",
    "data": "data/test_download.py -k fetched",
}


@pytest.mark.parametrize("extras", PARTS)
def test_an_extra_needs_no_other(extras):
    files, _, chosen = PARTS[extras].partition(" -k ")
    command = [sys.executable, "-m", "pytest", *(str(TESTS / file) for file in files.split()), "-k", chosen]
    told = {"PYTHONPATH": str(TESTS / "alone"), "LEANBAYES_ALONE": f"{extras},pytest,hypothesis", REQUIRED: "1"}
    done = subprocess.run(command, cwd=TESTS.parent, env=os.environ | told, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert "skipped" not in done.stdout.splitlines()[-1]
