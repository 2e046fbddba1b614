"""`distill`: one small network that answers in one pass what a Bayesian one says in many."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from .. import batches, checks
from ..convert import record
from ..convert.apply import bayesianize_, restore_
from ..errors import ConfigError, ConversionError, DataError
from ..eval_mode import undisturbed
from ..likelihoods import Classification, Dirichlet, Likelihood, Regression
from ..method import Method
from ..ordering.unit import units
from ..prediction.api import resolve_task
from ..prediction.predictive import Predictive
from ..training import data as feeds
from ..training.fit import fit
from .extract import extract
from .mmd import KERNELS, MMD, Kernel
from .taught import LOSSES, FromTeacher, Loss, Objective
from .teacher import Teacher, answered
from .width import truncate_


def distill(
    teacher: nn.Module,
    loader: Any,
    student: nn.Module | None = None,
    *,
    loss: Loss = "mmd",
    width: float = 0.25,
    samples: int = 16,
    kernel: Kernel = "both",
    bandwidths: tuple[float, ...] | None = None,
    degree: int = 3,
    mean_weight: float = 5.0,
    label_weight: float = 0.0,
    temperature: float = 1.0,
    cache: bool | Predictive = False,
    last_layer: Method | None = None,
    task: Any = None,
    seed: int = 0,
    batch_size: int = 128,
    **options: Any,
) -> nn.Module:
    """Teach a student what a Bayesian network says in many passes, for one pass; returns the student.

    student: any network of yours with as many outputs as the teacher has classes, or one more (see below); it is
        trained in place. None cuts one out of a nested teacher: the first ``width`` of its channels, at their means
        (`truncate_` and `extract`), as the paper of SN3 does (variational nested dropout, section 3.5);
        `nested_student` cuts one that stays nested.
    loader: inputs, in whatever `fit` takes. Labels are read only if label_weight is not 0; inputs without them serve
        as well.
    loss: what the student is to match, for each datum:
        "mmd": the distribution of the teacher's probabilities: the student says a Dirichlet distribution (`Dirichlet`),
        and MMD^2 between its draws and the teacher's samples is made small (equation 20). kernel, bandwidths, degree:
        see `leanbayes.compress.mmd.MMD`. mean_weight: of the cross-entropy between the teacher's mean and the
        student's, which is added to it; 0 is the paper's loss, which matches a mean less closely.
        "kl": the same distribution, by the likelihood of the teacher's samples under the Dirichlet (ensemble
        distribution distillation). Of a regression: the moments, KL(N(mean, variance) || student's Gaussian).
        "kd": the mean of the probabilities alone, at a ``temperature``: classic distillation.
    label_weight: of the cross-entropy of the labels of a classification, which is added to any of them.
    samples: networks that the teacher draws for a datum.
    cache: True asks the teacher once for every datum, before training, and keeps its answers (tensors and map-style
        data sets; not for random augmentation); or these answers, as ``predict(teacher, inputs, keep_samples=True)``
        returns them, for several students of one teacher. Otherwise it draws other networks for every batch, and sees
        the very inputs that the student sees, augmentation included.
    last_layer: a method that makes the student's last layer Bayesian, as the paper does; `lb.MeanField()` say.
    task: what the teacher's outputs mean, where it does not know by itself.
    options: of `fit`: epochs, lr, val (labelled data, for the student's own accuracy and NLL), checkpoint, resume, ...

    A student with one output a class means Dirichlet("logits") under "mmd" and "kl", one with another column
    Dirichlet("column"), whose last column is the precision; under "kd" it means Classification(). Of a regression it
    has as many outputs as the teacher's mean, or twice as many, for a noise of its own for every input.

    Where teacher and student are both nested, their widths vary together (equation 21): the teacher runs at the part of
    its channels at which the student runs in this step, its BatchNorm on the statistics of the batch.

    >>> import leanbayes as lb
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(64, 4)
    >>> teacher = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
    >>> _ = lb.bayesianize_(teacher, lb.Nested(groups=8))
    >>> student = distill(teacher, x, task="classification", epochs=2, progress=False)
    >>> student[0]
    Linear(in_features=4, out_features=8, bias=True)
    >>> lb.predict(student, x).mutual_information.shape, lb.predict(student, x).engine
    (torch.Size([64]), 'deterministic')
    """
    checks.module("teacher", teacher)
    checks.one_of("loss", loss, LOSSES)
    checks.one_of("kernel", kernel, KERNELS)
    samples, seed = checks.whole_number("samples", samples, at_least=1 if loss == "kd" else 2), checks.seed(seed)
    if not isinstance(cache, Predictive):
        checks.flag("cache", cache)
    checks.number("width", width, above=0, at_most=1, error=ConversionError)
    objective = Objective(
        loss,
        MMD(kernel, bandwidths, degree),
        checks.number("temperature", temperature, above=0),
        checks.number("mean_weight", mean_weight, at_least=0),
        checks.number("label_weight", label_weight, at_least=0),
    )
    if temperature != 1 and loss != "kd":
        raise ConfigError(f"temperature: expected loss='kd' beside it, received {loss!r}; leave it out")
    if last_layer is not None:
        checks.instance("last_layer", last_layer, Method, "a method such as lb.MeanField()")
    for name in {"train_loader", "model"} & options.keys():
        raise ConfigError(f"{name}: expected the options of fit beside the model and its data; pass loader and student")
    asked = Teacher(teacher, _meaning(teacher, task, loss), samples, label_weight > 0)
    if asked.labels and asked.meaning.task == "regression":
        raise ConfigError("label_weight: expected 0 for a regression, which matches the teacher's mean and variance")
    loader = batches.accept(loader, teacher, name="loader")
    inputs, labels = _first_batch(loader, batch_size, seed)
    said = asked(inputs, seed)
    if asked.labels:  # refused here rather than after the teacher has been asked for all data
        batches.with_labels(asked.targets(said), labels)
    if loss != "kd" and bool((said.samples == said.samples[:1]).all()):
        raise ConfigError(
            f"teacher: expected one that draws networks, all samples of this {type(teacher).__name__} say the same; "
            "make it Bayesian with lb.bayesianize_, or pass loss='kd', which needs the mean alone"
        )
    pupil = cut(teacher, width)[1] if student is None else checks.module("student", student)
    if last_layer is not None and record.conversions(pupil):
        raise ConfigError("last_layer: expected a student of plain layers; give its last one a method by bayesianize_")
    if pupil is teacher or {id(p) for p in pupil.parameters()} & {id(p) for p in teacher.parameters()}:
        raise ConfigError("student: expected a network of its own, received one that shares weights with the teacher")
    likelihood = _likelihood(pupil, inputs, asked.targets(said), said, loss)
    asked.follow(pupil)
    data = loader if cache is False else answered(loader, asked, seed, None if cache is True else cache)
    if last_layer is not None:
        bayesianize_(pupil, {_last(pupil, inputs): last_layer})
    hook = pupil.register_forward_hook(asked.teach, with_kwargs=True) if data is loader else None
    try:
        fit(pupil, data, task=FromTeacher(likelihood, objective), seed=seed, batch_size=batch_size, **options)
    except BaseException:
        if last_layer is not None:  # so that the same call can go on from a checkpoint
            restore_(pupil)
        raise
    finally:
        if hook is not None:
            hook.remove()
    known = record.get(teacher)
    record.ensure(pupil).trained(likelihood.to_dict(), () if known is None else known.classes)
    return pupil


def _meaning(teacher: nn.Module, task: Any, loss: str) -> Likelihood:
    """What the teacher's outputs mean; refused where the loss does not suit it."""
    found = resolve_task(teacher, task)
    if found.task not in ("classification", "regression"):
        raise ConfigError(f"teacher: expected a classifier or a regression, received a task of {found.task}")
    if found.task == "regression" and loss != "kl":
        raise ConfigError(f"loss: expected 'kl' for a regression, which matches mean and variance, received {loss!r}")
    return found


def _first_batch(loader: Any, batch_size: int, seed: int) -> tuple[Any, Any]:
    """Inputs and labels of the first batch; a DataError where there are none."""
    checks.whole_number("batch_size", batch_size)
    if batches.length(loader) == 0:
        raise DataError("loader: expected at least one datum, received none")
    feed = feeds.feed(loader, batch_size=batch_size, seed=seed, training=False)
    with torch.random.fork_rng([]):
        first = next(feed.epoch(0), None)
    if first is None or not batches.size(batches.split(first)[0]):
        raise DataError("loader: expected at least one batch, received none")
    return batches.split(first)


def cut(teacher: nn.Module, width: float) -> tuple[nn.Module, nn.Module]:
    """A copy of a nested teacher that is truncated to a part of its channels, and its means as a plain network."""
    checks.module("teacher", teacher)
    if not units(teacher):
        raise ConfigError(
            f"student: expected a network, since this {type(teacher).__name__} has no ordered channels to cut it from; "
            "pass student=, or make the teacher with lb.Nested()"
        )
    shorter = copy.deepcopy(teacher)
    truncate_(shorter, width)
    return shorter, extract(shorter, width=1.0, sparse=False).train()


def _likelihood(student: nn.Module, inputs: Any, targets: Tensor, said: Predictive, loss: str) -> Likelihood:
    """What the student's outputs mean, by how many there are; starts where the teacher is."""
    with undisturbed(student):
        outputs = batches.output_tensor(batches.call(student, inputs))
    classes, width = said.mean.shape[-1], outputs.shape[-1] if outputs.ndim > 1 else 0
    if said.task == "regression":
        if width not in (classes, 2 * classes):
            raise ConfigError(
                f"student: expected {classes} output(s), or {2 * classes} with a noise for each, for a teacher of "
                f"{classes}, received outputs of shape {tuple(outputs.shape)}"
            )
        std = float(said.variance.mean().sqrt())
        return Regression("heteroscedastic") if width == 2 * classes else Regression("learned", std=std)
    if loss == "kd":
        if width != classes and not (classes == 2 and width == 1):
            raise ConfigError(
                f"student: expected {classes} outputs, the teacher's classes, received outputs of shape "
                f"{tuple(outputs.shape)}"
            )
        return Classification()
    if width not in (classes, classes + 1):
        raise ConfigError(
            f"student: expected {classes} outputs, the teacher's classes, or {classes + 1} with the precision, "
            f"received outputs of shape {tuple(outputs.shape)}"
        )
    form = Dirichlet("column" if width == classes + 1 else "logits")
    wanted, now = precision(targets), form.total(outputs)
    return Dirichlet(form.precision, float((wanted.log().mean() - now.log().mean()).exp()))


def precision(samples: Tensor) -> Tensor:
    """alpha_0 of the Dirichlet distribution with the mean and total variance of samples (batch, S, classes), (batch,).

    >>> drawn = torch.distributions.Dirichlet(torch.tensor([6.0, 3.0, 1.0])).sample((1, 100_000))
    >>> 9 < float(precision(drawn)) < 11
    True
    """
    mean, variance = samples.mean(1), samples.var(1, correction=1)
    ratio = (mean * (1 - mean)).sum(-1) / variance.sum(-1).clamp_min(1e-12)
    return (ratio - 1).clamp(1.0, 1e4)  # beyond, samples are as good as equal


def _last(student: nn.Module, inputs: Any) -> str:
    """The name of the last Linear layer or convolution that a pass calls."""
    names: list[str] = []
    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    called = [
        module.register_forward_hook(lambda *_, name=name: names.append(name))
        for name, module in student.named_modules()
        if isinstance(module, kinds)
    ]
    try:
        with undisturbed(student):
            batches.call(student, inputs)
    finally:
        for hook in called:
            hook.remove()
    if not names or not names[-1]:
        raise ConfigError("last_layer: expected a student with a Linear layer or convolution inside it, found none")
    return names[-1]
