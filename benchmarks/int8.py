"""Eight bits in exported networks: what they do to accuracy, calibration, latency and the size of a file.

LeNet-5 with `MeanField`, trained on Fashion-MNIST; exported at the means and with frozen samples, then quantised with
scales found on 2,048 images of the training data. Latency is the processor time of onnxruntime on one thread, which
others on the machine disturb least: minima of interleaved rounds. Ratios are the time of float32 over that of int8.
Needs `pip install 'leanbayes[onnx]'`.

    python benchmarks/int8.py
"""

from __future__ import annotations

import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime
import torch

import leanbayes as lb
from common import interleaved, parser, publish, result
from leanbayes import data, models
from leanbayes.evaluation.metrics.calibration import ece

KINDS: dict[str, dict[str, Any]] = {
    "means": {"noise": "mean"},
    "8 samples": {"noise": "frozen", "samples": 8},
}


def main() -> None:
    """Train, measure, print and write."""
    asked = parser(__doc__, repeats=200)
    asked.add_argument("--epochs", type=int, default=3)
    asked.add_argument("--seeds", type=int, default=3)
    asked.add_argument("--images", type=int, default=60_000, help="of the training data; a sixth as many are tested")
    options = asked.parse_args()
    torch.set_num_threads(options.threads)
    seeds, epochs = (1, 1) if options.quick else (options.seeds, options.epochs)
    session = onnxruntime.SessionOptions()
    session.intra_op_num_threads = 1
    measured: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            train, x, y = _data(options.quick, options.images)
            model = _trained(train, seed, epochs)
            files = {}
            for kind, chosen in KINDS.items():
                files[kind] = lb.export(model, f"{folder}/{kind}.onnx", x[:1], **chosen)
                seen = [batch for batch, _ in zip(train, range(2048 // 128), strict=False)]
                files[f"{kind}, int8"] = lb.quantize_export(
                    files[kind], f"{folder}/{kind}8.onnx", seen, batches_used=16
                )
            graphs = {name: lb.read_export(path, session_options=session) for name, path in files.items()}
            for name, graph in graphs.items():
                probs = torch.cat([graph.predict(part).probs for part in x.split(500)])
                row = measured.setdefault(name, {})
                row.setdefault("accuracy", []).append(float((probs.argmax(1) == y).double().mean()))
                row.setdefault("ece", []).append(ece(probs, y))
                row.setdefault("nll", []).append(float(-probs.gather(1, y[:, None]).clamp_min(1e-12).log().mean()))
                row.setdefault("bytes", []).append(float(Path(files[name]).stat().st_size))
        for rows in (1, 128):
            runs = {name: partial(graph.run, x[:rows]) for name, graph in graphs.items()}
            rounds = 3 if options.quick else options.repeats
            for name, seconds in interleaved(runs, rounds, clock=time.thread_time).items():
                measured[name][f"milliseconds, batch {rows}"] = [1000 * min(seconds)]
    raw = {
        name: {what: {"mean": statistics.fmean(v), "seeds": v} for what, v in row.items()}
        for name, row in measured.items()
    }
    ratios = {
        f"{kind}, {what}: float32 / int8": raw[kind][what]["mean"] / raw[f"{kind}, int8"][what]["mean"]
        for kind in KINDS
        for what in raw[kind]
        if what.startswith("milliseconds") or what == "bytes"
    }
    header = ("", *raw["means"])
    publish(
        result(
            "int8",
            ratios,
            raw,
            seeds=seeds,
            epochs=epochs,
            images=options.images,
            tested=len(x),
            onnxruntime=onnxruntime.__version__,
        ),
        options,
        "LeNet-5 on Fashion-MNIST, exported, one thread",
        [header, *((name, *(f"{cell['mean']:.4g}" for cell in row.values())) for name, row in raw.items())],
    )


def _data(quick: bool, images: int) -> tuple[list[Any], torch.Tensor, torch.Tensor]:
    """Batches of training data, test images and their labels."""
    if quick:
        train, test = torch.randn(256, 1, 28, 28), torch.randn(64, 1, 28, 28)
        return (
            list(zip(train.split(128), (torch.arange(256) % 10).split(128), strict=True)),
            test,
            torch.arange(64) % 10,
        )
    loaders = data.loaders(data.load("fashion-mnist", download=False), batch_size=128)
    x, y = map(torch.cat, zip(*loaders["test"], strict=True))
    train = [batch for batch, _ in zip(loaders["train"], range(images // 128), strict=False)]
    return train, x[: images // 6], y[: images // 6]


def _trained(train: list[Any], seed: int, epochs: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    model = models.build("lenet5")
    lb.bayesianize_(model, lb.MeanField())
    lb.fit(model, train, epochs=epochs, seed=seed, progress=False)
    return model


if __name__ == "__main__":
    main()
