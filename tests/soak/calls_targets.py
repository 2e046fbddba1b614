"""What may be called: the public functions and classes, each with makers of valid values for its parameters."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import io
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import nn

import leanbayes as lb
from leanbayes import likelihoods
from leanbayes.evaluation.metrics import (
    ood as out_of_domain,
)
from leanbayes.prediction.stacking import fit_weights, stacking_weights
from leanbayes.registry import methods
from leanbayes.training.schedules import cyclic

from . import calls_latents
from .calls_metrics import metrics_targets
from .calls_values import LABELLED, Maker, Target, images, inputs, labels, several

DATA = ("loader", "train_loader", "val", "data", "temperature", "inputs", "X")
"""Parameters that take data, and so pass on what the caller's data raise."""


def network(seed: int = 0) -> nn.Module:
    """A small classifier with BatchNorm and dropout."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
        )


@functools.cache
def templates() -> dict[str, nn.Module]:
    """Converted networks by the name of their method, to be copied."""
    found: dict[str, nn.Module] = {"plain": network()}
    out_of_domain.auroc(torch.rand(3), torch.rand(3))  # packages that draw when they are imported
    evaluation(), _predicted("regression")
    options = {"Nested": {"groups": 4, "base_groups": 1}, "NestedDropout": {"groups": 4, "base_groups": 1}}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name, method in methods().items():
            model = network()
            try:
                lb.bayesianize_(model, method(**options.get(name, {})))
            except lb.LeanBayesError:
                continue
            found[name] = model
    return found


FLAG = several(True, False)


TASK = several("classification")


SEED = several(0, 1, 123, np.int64(4))


QUIET = {"progress": several(False)}


FOLDER = Path(tempfile.gettempdir())


SAMPLES = several(1, 2, 3)


def _by_type(function: Any) -> dict[str, list[Maker]]:
    """Good values of a config's fields: the default, and what its type says."""
    hints, found = get_type_hints(function), {}
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints.get(name)
        values = [] if parameter.default is inspect.Parameter.empty else [parameter.default]
        if get_origin(hint) is not None and any(isinstance(value, str) for value in get_args(hint)):
            values += [value for value in get_args(hint) if isinstance(value, str)][:1]
        found[name] = several(*values)
    return found


def _configs() -> list[Target]:
    kinds = [lb.Normal, lb.LogUniform, lb.StudentT, lb.ScaleMixture, lb.Attack, lb.Corruptions, lb.Pixels]
    kinds += [lb.CoordinateDescent, lb.Classification, lb.Dirichlet, lb.Regression, lb.Segmentation, lb.EarlyStopping]
    kinds += [lb.EmpiricalNormal, *calls_latents.CONFIGS, *methods().values()]
    return [Target(kind.__name__, kind, _by_type(kind) if not issubclass(kind, nn.Module) else {}, weight=0.4)
            for kind in kinds]  # fmt: skip


def _predicted(task: str) -> Any:
    with torch.random.fork_rng(devices=[]):
        model = templates()["MeanField"] if task == "classification" else nn.Linear(4, 1)
    return lb.predict(model, inputs(), samples=3, task=task, keep_samples=True)


@functools.cache
def evaluation() -> lb.Evaluation:
    """An evaluation of a small network."""
    return lb.evaluate(network(), (inputs(), labels()), task="classification", samples=2, replicates=5,
                       min_count=1, progress=False)  # fmt: skip


def _saved() -> Path:
    return evaluation().save_json(FOLDER / "leanbayes-calls.json")


def _methods_of_results() -> list[Target]:
    found = []
    for task in ("classification", "regression"):
        target = [labels] if task == "classification" else [lambda: inputs(8, 1)]

        def method(name: str, task: str = task) -> Callable[..., Any]:
            return lambda *args, **kwargs: getattr(_predicted(task), name)(*args, **kwargs)

        for name in ("log_prob", "sample_log_prob", *(("cdf", "crps") if task == "regression" else ())):
            found.append(Target(f"Predictive.{name} {task}", method(name), {"targets": target}, ("targets",), 0.3))
    for name, values in (("quantile", {"q": several(0.1)}), ("interval", {"level": several(0.9)})):
        found.append(Target(f"Predictive.{name}", method(name), values, tuple(values), 0.3))

    def said(name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: getattr(evaluation(), name)(*args, **kwargs)

    page = several(str(FOLDER / "leanbayes-calls.json"), FOLDER / "leanbayes-calls.json")
    found.append(Target("Evaluation.interval", said("interval"), {"metric": several("accuracy"),
                        "level": several(0.9)}, ("metric",), 0.4))  # fmt: skip
    found.append(Target("Evaluation.save_json", said("save_json"), {"path": page}, ("path",), 0.4))
    found.append(Target("Evaluation.load_json", lb.Evaluation.load_json, {"path": [_saved]}, ("path",), 0.4))
    found.append(Target("Evaluation.from_dict", lb.Evaluation.from_dict, {"data": [lambda: evaluation().to_dict()]},
                        ("data",), 0.4))  # fmt: skip
    found.append(Target("compare", lb.compare, {"evaluations": [lambda: [evaluation()], lambda: {"a": evaluation()}]},
                        ("evaluations",), 0.4))  # fmt: skip
    return found


def _verbs() -> list[Target]:
    asked = {"task": TASK, "samples": SAMPLES, "seed": SEED, "mean_only": FLAG}
    predict = {**asked, "inputs": [inputs, lambda: (inputs(),), lambda: inputs().numpy(), LABELLED[3], LABELLED[4]],
               "chunk": several(None, 4), "keep_samples": FLAG, "settle": several(None, 0.1),
               "estimator": several("weight", "local"), "strategy": several("auto", "loop", "vmap"),
               "balanced": several(None), "weights": several(None), "progress": several(False)}  # fmt: skip
    evaluate = {**asked, "loader": LABELLED, "ood": [lambda: {"other": inputs() + 3}], "pixels": several(None),
                "corruptions": several(None, False), "reference": several(None), "attack": several(None, False),
                "temperature": [lambda: (inputs(), labels())], "selective": several((0.9,)),
                "replicates": several(0, 3), "resume": several(None), "chunk": several(None, 4),
                "groups": [lambda: [0, 1] * 4], "history": [list], "name": several("a"), "bins": several(5),
                "min_count": several(0, 1), "adaptive": FLAG, "levels": several((0.5,)),
                "ignore_index": several(None), **QUIET}  # fmt: skip
    fit = {"train_loader": LABELLED, "val": LABELLED, "task": TASK, "epochs": several(1), "lr": several(0.01),
           "optimizer": several(None, torch.optim.SGD), "scheduler": several(None),
           "scheduler_every": several("epoch"), "kl_weight": [*several(1.0, None), lambda: lb.warmup(0, 1, 2)],
           "num_data": several(8), "batch_size": several(4), "val_samples": several(1), "seed": SEED,
           "accumulate": several(2), "clip": several(None, 1.0), "early_stopping": several(None), "callbacks": [list],
           "scale_lr": several(None, 0.02), "latent_weight": several(1.0), "recalibrate": FLAG,
           "checkpoint": several(None), "checkpoint_every": several(None), "resume": several(False),
           "log": several(None), "accelerator": several("cpu"), "devices": several(1), **QUIET}  # fmt: skip
    data = {"task": TASK, "seed": SEED, **QUIET}
    file = several(str(FOLDER / "leanbayes-calls.safetensors"))
    found = [
        Target("predict", lb.predict, predict, ("inputs", "task", "samples"), 5, "model"),
        Target("evaluate", lb.evaluate, evaluate, ("loader", "task", "samples", "replicates", "progress"), 5, "model"),
        Target("fit", lb.fit, fit, ("train_loader", "epochs", "accelerator", "progress"), 4, "model"),
        Target("auto", lb.auto, {**data, "train": LABELLED, "val": LABELLED, "samples": SAMPLES, "epochs": several(1),
               "methods": several((lb.MeanField(),), [lb.Dropout(), lb.Ensemble(2)]), "accelerator": several("cpu"),
               "budget": several("2x", 3.0, {"prediction": 2})},
               ("train", "val", "samples", "epochs", "methods", "accelerator", "progress"), 1, "model"),
        Target("parameter_groups", lb.parameter_groups, {"lr": several(0.01), "scale_lr": several(None, 0.0, 0.02),
               "weight_decay": several(0.0, 0.1)}, (), 1, "model"),
        Target("calibrate_", lb.calibrate_, {**asked, "loader": LABELLED, **QUIET}, ("loader", "task", "progress"),
               3, "model"),
        Target("conformalize_", lb.conformalize_, {**asked, "loader": LABELLED, "coverage": several(0.5),
               "score": several(None), "class_conditional": several(False), "randomized": several(False),
               "allow_empty": FLAG, "lam": several(0.1), "k_reg": several(1), **QUIET},
               ("loader", "task", "coverage", "progress"), 2, "model"),
        Target("kappa", lb.kappa, {**data, "loader": LABELLED, "layers": several(None), "method": several("auto"),
               "probes": several(2), "num_data": several(None, 8)}, ("loader", "task", "probes", "progress"), 2,
               "model"),
        Target("recalibrate_", lb.recalibrate_, {"loader": LABELLED, "at": several("samples"), "data": several(8),
               "passes": several(1), "momentum": several(None, 0.1), "seed": SEED}, ("loader",), 3, "model"),
        Target("tune_noise_", lb.tune_noise_, {"val": LABELLED, "train": several(None), "task": TASK,
               "samples": SAMPLES, "batch_size": several(4), "seed": SEED}, ("val", "task", "samples"), 2, "model"),
        Target("fit_weights", fit_weights, {"data": LABELLED, "samples": SAMPLES, "seed": SEED, "task": TASK},
               ("data", "samples", "task"), 1, "model"),
        Target("evaluate_each", lb.evaluate_each, {"loader": LABELLED, "samples": several(2, (1, 2)), "task": TASK,
               "procedures": several(None, ("ensemble",)), "resume": several(None), "replicates": several(0),
               **QUIET}, ("loader", "task", "replicates", "samples", "progress"), 1, "models"),
        Target("bayesianize_", lb.bayesianize_, {"rules": several(lb.MeanField()), "strict": FLAG}, ("rules",), 2,
               "model"),
        Target("plan", lb.plan, {"rules": several(lb.MeanField()), "strict": FLAG}, ("rules",), 2, "model"),
        Target("prune_", lb.prune_, {"fraction": several(0.5), "threshold": several(None), "by": several("snr"),
               "scope": several("global"), "biases": FLAG, "scores": several(None), "loader": several(None),
               "channels": FLAG, "round_to": several(1), "example_input": [lambda: inputs(2)]},
               ("fraction",), 2, "model"),
        Target("pruning_curve", lb.pruning_curve, {"loader": LABELLED, "by": several("snr", ("snr", "magnitude")),
               "fractions": several((0, 0.5)), "channels": FLAG, "round_to": several(1), "scope": several("layer"),
               "train": several(None), "samples": SAMPLES, "seed": SEED, "mean_only": FLAG, "task": TASK},
               ("loader", "fractions", "samples", "task"), 1, "model"),
        Target("Cascade", lb.Cascade, {"widths": several(None, (0.5, 1.0)), "samples": several((1, 2), 2),
               "score": several("entropy", "margin"), "thresholds": several(None, (0.5,)), "loader": several(None),
               "fold_batchnorm": FLAG}, ("samples",), 1, "model"),
        Target("set_width_", lb.set_width_, {"width": several(0.5, None), "rescale": FLAG}, ("width",), 1, "model"),
        Target("truncate_", lb.truncate_, {"fraction": several(0.5)}, ("fraction",), 1, "model"),
        Target("widths", lb.widths, {"of": several(None)}, (), 0.5, "model"),
        Target("extract", lb.extract, {"width": several(None), "sparse": FLAG, "example_input": [lambda: inputs(1)],
               "stochastic": FLAG, "fold_batchnorm": FLAG}, (), 1, "model"),
        Target("distill", lb.distill, {"loader": LABELLED, "student": [network], "loss": several("mmd", "kl", "kd"),
               "width": several(0.5), "samples": several(2, 3), "kernel": several("rbf", "polynomial", "both"),
               "bandwidths": several(None, (0.5,)), "degree": several(2), "temperature": several(1.0, 2.0),
               "mean_weight": several(0.0, 1.0), "label_weight": several(0.0, 1.0), "cache": several(False),
               "last_layer": several(None, lb.MeanField()), "task": TASK, "seed": SEED,
               "batch_size": several(4), "epochs": several(1), "accelerator": several("cpu"), **QUIET},
               ("loader", "student", "samples", "task", "epochs", "accelerator", "progress"), 1, "teacher"),
        Target("nested_student", lb.nested_student, {"width": several(0.5), "inputs": [inputs]}, ("width",), 0.5,
               "teacher"),
        Target("width_correlation", lb.width_correlation, {"data": [inputs], "ood": [lambda: {"other": inputs() + 3}],
               "widths": several(None, (0.5, 1.0)), "uncertainty": several("entropy", "mutual_information"),
               "clean": several(None), "samples": SAMPLES, "seed": SEED, "task": TASK},
               ("data", "samples", "task"), 1, "model"),
        Target("benchmark", lb.benchmark, {"inputs": [inputs], "methods": several([lb.MeanField()]), "task": TASK,
               "samples": SAMPLES, "seconds": several(1e-3), "threads": several(None, 1), "seed": SEED, **QUIET},
               ("inputs", "methods", "task", "samples", "seconds", "progress"), 0.3, "model"),
        Target("scaling", lb.scaling, {"inputs": [inputs], "method": several(lb.MeanField()),
               "vary": several("samples", "batch"), "values": several((1, 2)), "task": TASK, "samples": SAMPLES,
               "seconds": several(1e-3), "threads": several(None, 1), "seed": SEED, **QUIET},
               ("inputs", "method", "vary", "values", "task", "seconds", "progress"), 0.3, "model"),
        Target("cost", lb.cost, {"example_input": [lambda: inputs(1)]}, ("example_input",), 1, "model"),
        Target("save", lb.save, {"path": file, "task": several(None), "metadata": [dict]}, ("path",), 1, "model"),
        Target("load", lb.load, {"path": file}, ("path",), 1, "into"),
        Target("export", lb.export, {"path": file, "example": [lambda: inputs(1)], "samples": several(2), "seed": SEED,
               "width": several(None), "noise": several("frozen", "graph", "mean"), "format": several("torch"),
               "task": TASK, "keep_samples": FLAG, "pixels": several(None, lb.Pixels()), "metadata": [dict]},
               ("path", "example", "samples", "format", "task"), 0.2, "model"),
        Target("read_export", lb.read_export, {"path": [exported], "session_options": several(None),
               "providers": several(None, ["CPUExecutionProvider"])}, ("path",), 0.5),
        Target("quantize_export", lb.quantize_export, {"path": [exported], "out": several("eight-bits.onnx"),
               "data": [inputs], "batches_used": several(1, 2)}, ("path", "out"), 0.5),
        Target("follow", _followed,
               {"elbo": [lambda: lb.ELBO("classification", 8)], "total_steps": several(None, 5),
                "callbacks": [list]}, ("elbo",), 1, "model"),
        *(Target(name, getattr(lb, name), {}, (), 0.4, "model") for name in (
            "restore_", "kl_sum", "callbacks", "importance", "likely_width", "zero_means_")),
    ]  # fmt: skip
    return found


@functools.cache
def exported() -> str:
    """A file of ONNX, where its packages are installed; the name of none elsewhere."""
    path = FOLDER / "leanbayes-calls.onnx"
    if all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime")):
        lb.export(nn.Linear(4, 3), path, torch.zeros(1, 4), task="classification")
    return str(path)


def _followed(model: Any, **options: Any) -> None:
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
    optimizer = torch.optim.SGD(parameters or network().parameters(), 0.1)
    lb.follow(model, **{"optimizer": optimizer} | options).stop()


WORDS = (
    "plan", "train", "predict", "evaluate", "reproduce", "mean-field", "dropout", "--help", "--epochs", "0", "-1",
    "--std", "--samples", "--data", "digits", "nonsense", "", "--seed", "1e400", "--out", "no/such/folder/a", "--model",
    "no.safetensors", "--json", "--only", "lenet5", "--x", "a\tb", "\u20ac",
)  # fmt: skip


COMMANDS = [
    ["plan", "mean-field"], ["plan", "nonsense"], ["predict", "no.safetensors", "x.npy"], ["evaluate", "no.such"],
    ["train", "mean-field", "--epochs", "0"], ["train", "mean-field", "--data", "nonsense"], ["reproduce", "nonsense"],
    ["plan", "mean-field", "--method.std", "nan"], [],
]  # fmt: skip


def _command(arguments: Any) -> None:
    """The command line with words of which none starts a training."""
    from leanbayes.cli import main

    if not isinstance(arguments, list):
        arguments = random.Random(str(type(arguments))).choices(WORDS, k=4)
    if "train" in arguments or "reproduce" in arguments:
        arguments = [*arguments, "--epochs", "0"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main([str(word) for word in arguments])


def _others() -> list[Target]:
    def used(**options: Any) -> None:
        with lb.using(**options):
            pass

    params = {"params": [lambda: list(network().parameters())], "lr": several(0.1), "momentum": several(0.9)}
    learn = {"X": [lambda: inputs().numpy()], "y": [lambda: labels().numpy()], "hidden": several((4,)),
             "epochs": several(1), "lr": several(0.01), "batch_size": several(4), "kl_weight": several(1.0),
             "samples": several(2), "standardize": FLAG, "random_state": several(0), "method": several(None),
             "module": several(None)}  # fmt: skip

    def learned(X: Any, y: Any, **options: Any) -> Any:
        return lb.BayesClassifier(**options).fit(X, y).predict_proba(X)

    return [
        Target("using", used, {"estimator": several("weight", None), "mean_only": FLAG, "draws": several(None)}),
        Target("warmup", lb.warmup, {"start": several(0.0), "end": several(1.0), "steps": several(3)},
               ("start", "end", "steps"), 0.5),
        Target("cyclic", cyclic, {"start": several(0.0), "end": several(1.0), "period": several(3)},
               ("start", "end", "period"), 0.5),
        Target("ELBO", lb.ELBO, {"task": TASK, "num_data": several(8), "kl_weight": several(1.0)},
               ("task", "num_data"), 0.5),
        Target("likelihood", likelihoods.likelihood, {"task": TASK}, ("task",), 0.5),
        Target("NaturalGradientSGD", lb.NaturalGradientSGD, {**params, "alpha": several(4.0), "rank": several(None),
               "weight_decay": several(0.0), "update_period": several(4), "eta": several(0.1)}, ("params",), 1),
        Target("SGD", lb.SGD, {**params, "weight_decay": several(0.0), "nesterov": FLAG}, ("params",), 0.5),
        Target("Transition", lb.Transition, {"loader": LABELLED, "every": several(1), "samples": several(2),
               "threshold": several(1.0), "seed": SEED}, ("loader",), 0.5),
        Target("stacking_weights", stacking_weights, {"log_density": [lambda: -torch.rand(3, 5)]}, ("log_density",),
               0.5),
        Target("BayesClassifier", learned, learn, ("X", "y", "epochs", "hidden", "samples", "random_state"), 1.5),
        Target("main", _command, {"arguments": several(*COMMANDS)}, ("arguments",), 0.3),
        Target("Pixels.to_inputs", lb.Pixels().to_inputs, {"pixels": [images]}, ("pixels",), 0.3),
    ]  # fmt: skip


@functools.cache
def targets() -> tuple[Target, ...]:
    """All of them."""
    return (*_verbs(), *_others(), *_configs(), *metrics_targets(), *_methods_of_results(), *calls_latents.targets())


def chosen(rng: random.Random) -> Target:
    """One of them, those with many arguments more often."""
    every = targets()
    return rng.choices(every, [target.weight for target in every])[0]
