"""A server under load: 50 clients at once against one, every answer checked against `predict`.

A ResNet-18 for CIFAR at a quarter of its width, all layers mean-field, 16 samples. The clients run in a process of
their own and send one image of 3 x 32 x 32 at a time over loopback, the next when the answer has come. One client alone
is measured before and after, for 20 seconds and 20 answers at least each, and its better figure counts. Besides answers
a second there are answers a second of the server's processor time, which others on the machine disturb less.

    python benchmarks/serve.py --threads 1 --workers 2
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import leanbayes as lb
from clients import TOLERANCE
from common import parser, publish, result

HERE = Path(__file__).parent
SAMPLES, IMAGES = 16, 16
CLIENTS = 50


def network() -> nn.Module:
    """The network that is served."""
    from leanbayes.models import resnet18_cifar

    if os.environ.get("SERVE_NETWORK") == "linear":
        return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
    return resnet18_cifar(width=int(os.environ.get("SERVE_WIDTH", "16")))


def prepare(folder: Path) -> None:
    """A model file, images, and what `predict` says about each of them alone."""
    torch.manual_seed(0)
    model = network()
    lb.bayesianize_(model, lb.MeanField())
    model(torch.randn(64, 3, 32, 32))  # statistics of BatchNorm
    lb.save(model, folder / "model.safetensors")
    x = torch.randn(IMAGES, 3, 32, 32)
    wanted = [lb.predict(model, one[None], SAMPLES, seed=0, task="classification").probs[0] for one in x]
    probs = torch.stack(wanted)
    apart = torch.cdist(probs, probs, p=torch.inf) + torch.eye(IMAGES)
    assert float(apart.min()) > 10 * TOLERANCE  # an answer that belongs to another image would be seen
    np.savez(folder / "images.npz", x=x.numpy(), probs=probs.numpy())


def leanbayes_command(folder: Path, port: int, options: argparse.Namespace) -> list[str]:
    """The server as a user starts it."""
    own = ["--model", "serve:network", "--scaled", "--shape", "3", "32", "32", "--task", "classification"]
    limits = ["--samples", str(SAMPLES), "--deadline", "120000", "--max-batch", str(options.max_batch)]
    limits += ["--workers", str(options.workers), "--threads", str(options.threads), "--port", str(port)]
    return [sys.executable, "-m", "leanbayes", "serve", str(folder / "model.safetensors"), *own, *limits]


@contextmanager
def served(command: list[str], port: int, log: Path) -> Any:
    """The server's process while it answers."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=HERE, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        until = time.monotonic() + 180
        while not listening(port):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(log.read_text())
            time.sleep(0.1)
        time.sleep(3)  # the other workers
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with suppress(ProcessLookupError):  # LitServe leaves its workers behind
            os.killpg(process.pid, signal.SIGKILL)


def listening(port: int) -> bool:
    """Whether somebody answers."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def cpu_seconds(session: int) -> float:
    """Processor time of all processes of a session."""
    total = 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def load(
    folder: Path, port: int, clients: int, seconds: float, process: Any, least: int = 0, body: str = "npy"
) -> dict[str, Any]:
    """What so many clients in another process saw, in so many seconds and at least so many answers."""
    before = cpu_seconds(process.pid)
    numbers = map(str, (port, clients, seconds, least))
    command = [sys.executable, str(HERE / "clients.py"), str(folder), *numbers, body]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    found["server_cpu_seconds"] = cpu_seconds(process.pid) - before
    found["answers_per_cpu_second"] = found["answers"] / found["server_cpu_seconds"]
    return found


def free_port() -> int:
    """A port that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def metrics(port: int) -> dict[str, float]:
    """The server's own counters."""
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        lines = [line.split(" ") for line in reply.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One client, many, one again."""
    short, long = (2, 4) if options.quick else (20, options.seconds)
    port = free_port()
    with served(leanbayes_command(folder, port, options), port, folder / "server.log") as process:
        load(folder, port, 1, 2, process)  # code paths that are new
        load(folder, port, CLIENTS, 2 if options.quick else 5, process)
        least = 5 if options.quick else 20
        before = load(folder, port, 1, short, process, least)
        start = metrics(port)
        many = load(folder, port, CLIENTS, long, process)
        end = metrics(port)
        after = load(folder, port, 1, short, process, least)
    sizes = {name: end[name] - start[name] for name in ("leanbayes_batch_data_sum", "leanbayes_batch_data_count")}
    many["data_per_batch"] = sizes["leanbayes_batch_data_sum"] / sizes["leanbayes_batch_data_count"]
    return {"one client before": before, "50 clients": many, "one client after": after}


def server_parser(description: str | None, repeats: int, seconds: float) -> argparse.ArgumentParser:
    """The options of a benchmark of servers."""
    options = parser(description, repeats)
    options.add_argument("--seconds", type=float, default=seconds, help="of a load of 50 clients")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--max-batch", type=int, default=32)
    return options


def report(data: dict[str, Any], options: argparse.Namespace) -> None:
    """Print what clients saw and the ratios, and write the file."""
    header = ("", "answers/s", "p50 ms", "p99 ms", "answers", "errors", "wrong", "answers per CPU s")
    rows = [
        (
            name, f"{s['answers_per_second']:.1f}", f"{1000 * s['p50_seconds']:.0f}", f"{1000 * s['p99_seconds']:.0f}",
            str(s["answers"]), str(s["errors"]), str(s["wrong"]), f"{s['answers_per_cpu_second']:.1f}",
        )
        for name, s in data["raw"].items()
    ]  # fmt: skip
    publish(data, options, data["benchmark"], [header, *rows])
    if not options.json:
        for name, value in data["ratios"].items():
            print(f"{name}: {value:.2f}")


def main() -> None:
    """Measure, print and write."""
    given = server_parser(__doc__, repeats=1, seconds=60.0).parse_args()
    torch.set_num_threads(given.threads)
    if given.quick:
        os.environ["SERVE_WIDTH"] = "4"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        raw = measure(folder, given)
    one = max((raw["one client before"], raw["one client after"]), key=lambda seen: seen["answers_per_second"])
    many, alone = (
        raw["50 clients"],
        [raw[f"one client {when}"]["answers_per_cpu_second"] for when in ("before", "after")],
    )
    ratios = {
        "throughput of 50 clients to one": many["answers_per_second"] / one["answers_per_second"],
        "answers per CPU second, 50 clients to one": many["answers_per_cpu_second"] / max(alone),
    }
    settings = {"network": "resnet18_cifar", "width": int(os.environ.get("SERVE_WIDTH", "16")), "samples": SAMPLES}
    settings |= {"method": "MeanField", "workers": given.workers, "max_batch": given.max_batch, "cpus": os.cpu_count()}
    report(result("serve", ratios, raw, **settings), given)


if __name__ == "__main__":
    main()
