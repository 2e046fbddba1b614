"""What only a process of its own shows: Ctrl-C, a reader that leaves, the installed entry points."""

import json
import signal
import subprocess
import sys
import time
from functools import partial
from typing import Any

LEANBAYES = [sys.executable, "-m", "leanbayes"]


def test_interrupting_gives_130_and_no_half_written_file(tmp_path):
    command = [*LEANBAYES, "train", "--model", "mlp", "--epochs", "100000", "--json", "--checkpoint", "run.ckpt"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # a shell that runs the tests in the background has them ignore the signal, and processes inherit that
    ask = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, cwd=tmp_path, preexec_fn=ask, **pipes) as process:
        try:
            deadline = time.monotonic() + 60
            while not (tmp_path / "run.ckpt").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert out == ""
    assert "the same command continues from run.ckpt" in err
    assert "Traceback" not in err
    assert {p.name for p in tmp_path.iterdir()} - {"run.ckpt.previous"} == {"run.ckpt"}


def test_json_through_a_pipe_and_a_reader_that_leaves(tmp_path):
    whole = subprocess.run([*LEANBAYES, "plan", "--json"], capture_output=True, text=True, check=True)
    assert json.loads(whole.stdout)["parameters_before"] == 38282
    assert whole.stderr == ""
    with subprocess.Popen([*LEANBAYES, "plan", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()  # before anything was written
        assert process.stderr.read() == b""
        assert process.wait(60) == 1
