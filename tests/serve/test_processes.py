"""What only real processes show: a worker that is killed under load, a server that is told to stop."""

import asyncio
import contextlib
import http.client
import io
import json
import multiprocessing
import os
import re
import signal
import socket
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
from leanbayes.serve import supervisor
from tests.serve.helpers import package

pytestmark = pytest.mark.extra
LISTENING = "0A"  # the state of a socket in /proc/net/tcp
PATIENCE = 900  # seconds, on a machine where others compute: alone these tests take a few


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
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
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
        until = time.monotonic() + PATIENCE
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
            server.said += process.communicate(timeout=PATIENCE)[1]
    assert "Traceback" not in server.said


@pytest.fixture(scope="module")
def digits():
    return load("digits", normalise=False).test.tensors[0][:8].numpy()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def stopped(pid):
    """Stop a process; returns when none of its threads runs."""
    os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + PATIENCE
    while any(
        task.read_text().rpartition(")")[2].split()[0] != "T" for task in Path(f"/proc/{pid}/task").glob("*/stat")
    ):
        assert time.monotonic() < until
        time.sleep(0.01)


def clients_of(pid, port):
    """Ports of the clients whose connections to this port the process has taken."""
    links, found = set(), set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            links.add(os.readlink(link))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_, inode = line.split()[:10]
        if local.endswith(f":{port:04X}") and state != LISTENING and f"socket:[{inode}]" in links:
            found.add(int(remote.partition(":")[2], 16))
    return found


class Clients:
    """Threads that send their image over and over; every second one keeps its connection."""

    def __init__(self, port, bodies):
        self.port, self.bodies = port, bodies
        self.lost, self.answered, self.kept, self.stop = [], [], {}, threading.Event()
        self.threads = [threading.Thread(target=self.send, args=(at,), daemon=True) for at in range(len(bodies))]
        for thread in self.threads:
            thread.start()

    def send(self, at):
        """Requests until `stop`, each noted with the port that it came from."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        while not self.stop.is_set():
            own = None
            try:
                if connection.sock is None:
                    connection.connect()
                own = connection.sock.getsockname()[1]
                connection.request(
                    "POST", "/predict?samples=16", self.bodies[at], {"Content-Type": "application/x-npy"}
                )
                reply = connection.getresponse()
                self.answered.append((at, reply.status, json.loads(reply.read())))
            except (OSError, http.client.HTTPException):
                self.lost.append(own)
                connection.close()
            if at % 2:
                connection.close()
            else:
                self.kept[at] = own
        connection.close()

    def end(self):
        """Wait for what is under way."""
        self.stop.set()
        for thread in self.threads:
            thread.join()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_worker_that_is_killed_loses_its_own_requests_and_is_replaced(model, digits):
    network, _ = open_model(model, None)
    scaled = load("digits").test.tensors[0][:8]
    wanted = [lb.predict(network, one[None], samples=16).probs[0] for one in scaled]
    with serve(model, "--workers", "2", "--deadline", "100000") as server:
        server.until_started(2)
        clients = Clients(server.port, [npy(one[None]) for one in digits])
        until = time.monotonic() + PATIENCE
        while len(clients.kept) < 4:
            assert time.monotonic() < until
            time.sleep(0.01)
        kept = set(clients.kept.values())
        victim = max(server.workers(), key=lambda pid: len(clients_of(pid, server.port) & kept))
        stopped(victim)  # it takes no more connections: those that come now are not its own
        had = clients_of(victim, server.port)
        before = len(clients.answered)
        time.sleep(0.5)
        os.kill(victim, signal.SIGKILL)
        server.until_started(3)
        time.sleep(0.3)
        clients.end()
        assert victim not in server.workers()
        assert len(server.workers()) == 2
    assert len(clients.lost) >= 2  # it had at least two of the four connections that are kept
    assert len(clients.lost) == len(set(clients.lost))
    assert set(clients.lost) <= had
    assert len(clients.answered) > before
    for at, status, answer in clients.answered:
        assert status == 200
        torch.testing.assert_close(torch.tensor(answer["predictions"][0]["probs"]), wanted[at], rtol=1e-4, atol=1e-5)


def test_connections_that_come_at_once_are_shared_out():
    """Two processes that listen as workers do; without the pause, one of them takes nearly all."""
    fork = multiprocessing.get_context("fork")
    taken, begin = fork.Array("i", 2), fork.Barrier(2)

    def take(number, own):
        async def connected(reader, writer):
            taken[number] += 1

        async def listen():
            async with await asyncio.start_server(connected, sock=own, backlog=1):
                while sum(taken) < 40:
                    await asyncio.sleep(0.01)

        begin.wait()
        asyncio.run(listen())

    with supervisor._bound("127.0.0.1", 0) as bound, contextlib.ExitStack() as clients:
        both = [supervisor._Listening(bound.dup(), supervisor.PAUSE) for _ in taken]
        for _ in range(40):
            clients.enter_context(socket.create_connection(bound.getsockname()))
        workers = [fork.Process(target=take, args=(number, own), daemon=True) for number, own in enumerate(both)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
        for own in both:
            own.close()
    assert sum(taken) == 40
    assert min(taken) >= 8


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
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(model), "--port", str(port)]) == USAGE
    assert f"127.0.0.1:{port} is not" in capsys.readouterr().err
    assert main(["serve", str(model), "--host", "no.such.host.invalid"]) == USAGE
    assert main(["serve", str(model.parent / "no.safetensors"), "--port", "0"]) == USAGE
    assert "no.safetensors" in capsys.readouterr().err
