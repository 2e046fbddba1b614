"""What only real processes show: a worker that is killed under load, a server that is told to stop."""

import contextlib
import http.client
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import leanbayes as lb
from leanbayes.cli import DONE, USAGE, main
from leanbayes.cli.saved import open_model
from leanbayes.data import load
from tests.serve.helpers import package

pytestmark = pytest.mark.extra


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    package("starlette")
    package("uvicorn")
    path = tmp_path_factory.mktemp("serve") / "digits.safetensors"
    assert main(["train", "mean-field", "--model", "mlp", "--epochs", "2", "--json", "--out", str(path)]) == DONE
    return path


class Server:
    """A running `leanbayes serve`."""

    def __init__(self, process):
        self.process, self.port, self.said = process, 0, ""

    def wait(self):
        """Until it says where it listens."""
        for line in self.process.stderr:
            self.said += line
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                return
        pytest.fail(self.said)

    def ask(self, method, path, body=None, kind="application/x-npy"):
        """Status and body of an answer, over a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=180)
        try:
            connection.request(method, path, body, {"Content-Type": kind} if body else {})
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def started(self):
        """How many workers have been started so far; 0 where the worker that was asked has been killed meanwhile."""
        try:
            lines = self.ask("GET", "/metrics")[1].decode().splitlines()
        except OSError:
            return 0
        return next(int(line.split()[1]) for line in lines if line.startswith("leanbayes_worker_starts_total"))

    def until_started(self, count):
        """Wait for so many."""
        until = time.monotonic() + 240
        while self.started() < count:
            assert time.monotonic() < until
            time.sleep(0.1)

    def workers(self):
        """The processes of its workers."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [pid for pid in map(int, listed) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@contextlib.contextmanager
def serve(model, *options):
    command = [sys.executable, "-m", "leanbayes", "serve", str(model), "--port", "0", "--threads", "1", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            server = Server(process)
            server.wait()
            yield server
        finally:
            process.terminate()
            server.said += process.communicate(timeout=60)[1]
    assert "Traceback" not in server.said


@pytest.fixture(scope="module")
def digits():
    return load("digits", normalise=False).test.tensors[0][:8].numpy()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_worker_that_is_killed_loses_its_own_requests_and_is_replaced(model, digits):
    network, _ = open_model(model, None)
    scaled = load("digits").test.tensors[0][:8]
    wanted = [lb.predict(network, one[None], samples=16).probs[0] for one in scaled]
    bodies = [npy(one[None]) for one in digits]
    lost, answered, stop = [], [], threading.Event()

    def client(number):
        while not stop.is_set():
            try:
                status, content = server.ask("POST", "/predict?samples=16", bodies[number])
            except OSError as error:
                lost.append((time.monotonic(), error))
                continue
            answered.append((time.monotonic(), number, status, json.loads(content)))

    with serve(model, "--workers", "2", "--deadline", "100000") as server:
        server.until_started(2)
        clients = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(8)]
        for thread in clients:
            thread.start()
        time.sleep(0.5)
        victim = server.workers()[0]
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        server.until_started(3)
        time.sleep(0.3)
        stop.set()
        for thread in clients:
            thread.join()
        assert victim not in server.workers()
        assert len(server.workers()) == 2
    assert all(status == 200 for _, _, status, _ in answered)
    for _, number, _, answer in answered:
        torch.testing.assert_close(
            torch.tensor(answer["predictions"][0]["probs"]), wanted[number], rtol=1e-4, atol=1e-5
        )
    assert len(lost) <= 8  # at most one a client: those that the worker had
    assert all(killed - 0.1 < when < killed + 60 for when, _ in lost)
    assert sum(when > killed for when, *_ in answered) > 8


def test_a_server_that_is_told_to_stop_answers_first(model, digits):
    found = []
    with serve(model, "--max-samples", "300", "--drain", "150", "--deadline", "100000") as server:
        request = ("POST", "/predict?samples=300", npy(digits))
        thread = threading.Thread(target=lambda: found.append(server.ask(*request)))
        thread.start()
        until = time.monotonic() + 30
        while b"leanbayes_requests_in_progress 1" not in server.ask("GET", "/metrics")[1]:
            assert time.monotonic() < until
        server.process.send_signal(signal.SIGTERM)
        thread.join()
        assert server.process.wait(60) == 0
        with pytest.raises(OSError):
            server.ask("GET", "/health")
    assert found[0][0] == 200
    assert len(json.loads(found[0][1])["predictions"]) == 8


def test_an_address_that_is_taken_is_refused(model, capsys):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(model), "--port", str(port)]) == USAGE
    assert f"127.0.0.1:{port} is not" in capsys.readouterr().err
    assert main(["serve", str(model), "--host", "no.such.host.invalid"]) == USAGE
    assert main(["serve", str(model.parent / "no.safetensors"), "--port", "0"]) == USAGE
    assert "no.safetensors" in capsys.readouterr().err
