"""Evaluations to draw: a plain classification, a regression, and one with everything that there is."""

import dataclasses
import functools
import math

import torch

from leanbayes.evaluation import Classification, Evaluation, Regression, replicates, risk_coverage
from leanbayes.evaluation.metrics.bootstrap import set_replicates
from leanbayes.evaluation.metrics.ood import compare_sets

NASTY = "<script>alert('x')</script> & \"$\\frac{1}\" _#2563c9 0.123456 --> ]]> 数 \x07"
KINDS = ("gaussian_noise", "shot_noise", "motion_blur", "fog", "contrast", "elastic_transform", "jpeg_compression")


def classification(name="net", sharpness=2.0, rows=300, history=True):
    generator = torch.Generator().manual_seed(0)
    logits, y = torch.randn(rows, 5, generator=generator), torch.randint(5, (rows,), generator=generator)
    logits[torch.arange(rows), y] += 2
    stream = Classification()
    stream.update((sharpness * logits).softmax(1), y)
    inside, outside = torch.rand(2, 100, generator=generator)
    metrics, histograms = compare_sets({"entropy": inside}, {name: {"entropy": outside + 0.5}})
    epochs = [
        {"epoch": e, "loss": 2.0 / (e + 1), "nll": 1.0 / (e + 1), "kl": 50.0, "val_accuracy": 0.5} for e in range(4)
    ]
    return Evaluation(
        name,
        "classification",
        rows,
        stream.compute() | metrics,
        stream.curves() | {"ood": histograms},
        {"parameters": 1234, "predict_seconds": 1e-4},
        {"samples": 8, "seed": 0, "command": f"leanbayes {name}", "versions": {"torch": "2"}},
        epochs if history else [],
        [f"a note on {name}"],
    )


def regression(name="net", scale=1.0):
    generator = torch.Generator().manual_seed(0)
    y, m = torch.randn(2, 200, generator=generator)
    normal = torch.distributions.Normal(m, scale)
    stream = Regression(levels=(0.5, 0.9))
    ends = {q: (normal.icdf(torch.tensor((1 - q) / 2)), normal.icdf(torch.tensor((1 + q) / 2))) for q in stream.levels}
    stream.update(y, mean=m, log_prob=normal.log_prob(y), intervals=ends)
    return Evaluation(name, "regression", 200, stream.compute(), stream.curves(), {"predict_seconds": 1e-3})


def rich(name="bayesian", sharpness=1.0, rows=2000, skill=3.0):
    """A classification with every curve and number that `evaluate` can fill."""
    generator = torch.Generator().manual_seed(3)
    y = torch.randint(10, (rows,), generator=generator)
    logits = torch.randn(rows, 10, generator=generator)
    logits[torch.arange(rows), y] += skill
    stream, scaled = Classification(), Classification()
    stream.update((sharpness * logits).softmax(1), y)
    scaled.update(logits.softmax(1), y)
    points = stream.points()
    scores = {key: torch.rand(rows, generator=generator) for key in ("entropy", "mutual_information", "energy")}
    sets = {"fashion-mnist": 0.6, "not-digits/letters": 0.2}
    outside = {label: {key: values + shift for key, values in scores.items()} for label, shift in sets.items()}
    ranks, histograms = compare_sets(scores, outside)
    curve = risk_coverage(points["confidence"], points["correct"])
    decline = {"aurc": curve.aurc(), "eaurc": curve.eaurc()}
    for wished in (0.9, 0.99, 0.999):
        threshold, share = curve.at_accuracy(wished)
        decline |= {f"selective.coverage.{wished}": share}
        decline |= {f"selective.threshold.{wished}": threshold if share else math.nan}
    clean = stream.compute()
    cells = [
        {
            "corruption": kind,
            "severity": level,
            "accuracy": clean["accuracy"] * (1 - 0.03 * (at + 1) * level**0.8),
            "nll": clean["nll"] * (1 + 0.1 * at * level),
            "ece": clean["ece"] + 0.01 * at * level,
            "count": 1000,
        }
        for at, kind in enumerate(KINDS)
        for level in range(1, 6)
    ]
    means = {f"corruption.{k}": sum(c[k] for c in cells) / len(cells) for k in ("accuracy", "nll", "ece")}
    steps = range(21)
    attack = {
        "kind": "targeted",
        "step": 0.5,
        "iterations": 20,
        "scale": 255.0,
        "samples": 10,
        "success": [0.01 + 0.6 * (t / 20) ** 2 for t in steps],
        "accuracy": [clean["accuracy"] * (1 - 0.7 * (t / 20) ** 2) for t in steps],
        "entropy": [0.2 + 0.8 * math.sin(t / 8) for t in steps],
        "count": 1000,
    }
    after = {f"attack.{key}": attack[key][-1] for key in ("success", "accuracy", "entropy")}
    after["attack.clean_entropy"] = attack["entropy"][0]
    warm = {"temperature": sharpness, **{f"scaled.{k}": scaled.compute()[k] for k in ("nll", "ece", "brier")}}
    base = classification(name, rows=50)
    return dataclasses.replace(
        base,
        count=rows,
        metrics=clean | decline | ranks | means | {"corruption.mce": 0.87, "corruption.rmce": 0.91} | after | warm,
        curves=stream.curves()
        | {"ood": histograms, "risk_coverage": curve.to_dict(), "corruption": cells, "attack": attack}
        | {"scaled_reliability": scaled.curves()["reliability"]},
        cost={
            "parameters": 123_412,
            "active_parameters": 123_412,
            "macs": 416_520,
            "bytes": 493_648,
            "latency_one": 0.0123,
            "latency_batch": 0.0456,
            "predict_seconds": 0.00072,
            "train_seconds": 312.0,
        },
        settings=base.settings
        | {"command": "leanbayes evaluate lenet.safetensors --ood fashion-mnist --corruptions --attack --html a.html"}
        | {"data": f"{rows}:0123456789abcdef", "latency": {"batch": 64, "threads": 1}}
        | {
            "corruptions": {"severities": [1, 2, 3, 4, 5], "limit": 1000},
            "attack": {"kind": "targeted", "scale": 255.0},
        },
        replicates=replicates(points, replicates=50, accuracies=(0.9, 0.99))
        | set_replicates(scores, outside, replicates=50),
        notes=["3 of 2,000 gave their true class a probability of zero."],
    )


@functools.cache
def many(count):
    """So many models of different quality and cost, some of them alike."""
    names = ("plain network", "MC dropout", "mean-field", "mean-field, tempered", "variational dropout", "variance")
    names += ("deep ensemble of 3", "sparse subspace, 10 %", "patched output", "nested, 25 %", "nested, 50 %", "nested")
    found = []
    for i, name in enumerate(names[:count]):
        e = rich(name, 3.0 if not i else 1 + i % 4 / 2, rows=400, skill=3 - i % 5 / 10)
        cost = e.cost | {"predict_seconds": 1e-4 * (1 + i * i % 17), "parameters": 61_706 * (1 + i % 3)}
        shared = {"reliability", "risk_coverage", "corruption", "attack"}  # the figures of three models show the others
        curves = {key: curve for key, curve in e.curves.items() if i < 2 or key in shared}
        found.append(dataclasses.replace(e, cost=cost, curves=curves, history=e.history if i < 2 else []))
    return found
