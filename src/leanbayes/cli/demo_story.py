"""The demo: a network that takes letters for digits, three Bayesian versions of it, and the use of their doubt."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import leanbayes as lb

from ..data import load
from ..errors import LeanBayesWarning
from ..evaluation import compare
from ..files import write_text
from ..models import build
from ..report import parts
from ..report.html import page
from ..report.table import as_text, table

PLAIN = "plain network"
WAYS: dict[str, lb.Method] = {"MC dropout": lb.Dropout(), "mean-field": lb.MeanField(), "ensemble": lb.Ensemble()}
"""Three methods with their defaults; held-out digits tune the amount of their noise."""
STRANGE = {"letters": "not-digits/letters", "photos": "not-digits/photos"}
DIGITS = 300
"""Training digits: with few data a network soon becomes over-confident."""
SURE = 0.9
ANSWERED = 0.95
"""The share of held-out digits whose entropy is below the threshold for an answer."""
SHOWN = 12


@dataclass(frozen=True)
class Answers:
    """Predictions for some images: the predicted digit, its probability, and the entropy."""

    digit: Tensor
    confidence: Tensor
    entropy: Tensor


@dataclass(frozen=True)
class Truth:
    """The labels of the test digits, and the inputs of the networks: (pixels - mean) / std."""

    labels: Tensor
    images: Mapping[str, Tensor]
    mean: Tensor
    std: Tensor

    def pixels(self, part: str, which: list[int]) -> list[list[list[float]]]:
        """Images as matrices of numbers from 0 to 1."""
        found = self.images[part][which] * self.std.reshape(-1, 1, 1) + self.mean.reshape(-1, 1, 1)
        return found.mean(1).clamp(0, 1).tolist()  # type: ignore[no-any-return]


def tell(epochs: int, samples: int, seed: int, html: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Train and evaluate the networks, print the results, write the page, and return the comparison."""
    torch.set_num_threads(1)  # the network is so small that more threads only wait for each other
    digits = load("digits")
    few = TensorDataset(*(part[:DIGITS] for part in digits.train.tensors))
    strange = {name: load(path, parts="test", normalise=digits).test for name, path in STRANGE.items()}
    sets: dict[str, Any] = {"val": digits.val, "test": digits.test, **strange}
    images = {name: data.tensors[0] for name, data in sets.items()}
    labels = {name: sets[name].tensors[1] for name in ("val", "test")}

    found, answers = [], {}
    torch.manual_seed(seed)
    network = build("convnet")
    more = max(1, epochs // 3)
    for step, name in enumerate((PLAIN, *WAYS), 1):
        how = f"train a network on {len(few):,} digits" if name == PLAIN else f"make it Bayesian: {name}"
        say(f"[{step}/4] {how}")
        if name == PLAIN:
            lb.fit(network, few, val=digits.val, epochs=epochs, batch_size=32, seed=seed, progress=False)
        model = copy.deepcopy(network)
        if name != PLAIN:
            lb.bayesianize_(model, WAYS[name])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LeanBayesWarning)
            history = lb.fit(model, few, val=digits.val, epochs=more, batch_size=32, seed=seed, progress=False)
        options: dict[str, Any] = {"samples": samples, "seed": seed, "history": history, "progress": False}
        found.append(lb.evaluate(model, digits.test, ood=strange, name=name, **options))
        answers[name] = {part: _asked(model, x, samples, seed) for part, x in images.items()}
    comparison = compare(found)
    chosen = min(WAYS, key=lambda name: _squared_error(answers[name]["val"], labels["val"]))

    say(f"\n{_surprise(answers, labels['test'])}\n")
    say(f"{comparison}\n")
    say(f"{_what_to_do(answers, labels['test'])}\n")
    truth = Truth(labels["test"], images, digits.mean, digits.std)
    extra = _pictures(answers[PLAIN], answers[chosen], thresholds(answers)[chosen], truth, chosen)
    write_text(html, page(found, title="Digits, and what a network says about letters", extra=extra))
    say(f"wrote {html}, with pictures of what it refuses: open it in a browser")
    return comparison.to_dict()


def _asked(model: nn.Module, images: Tensor, samples: int, seed: int) -> Answers:
    prediction = lb.predict(model, images, samples, seed)
    confidence, digit = prediction.probs.max(1)
    return Answers(digit, confidence, prediction.entropy)


def _squared_error(answers: Answers, labels: Tensor) -> float:
    """The Brier score of the predicted class: mean (confidence - correct)^2."""
    return float((answers.confidence - (answers.digit == labels).float()).square().mean())


def _surprise(answers: Mapping[str, Mapping[str, Answers]], labels: Tensor) -> str:
    """The plain network's accuracy on digits, and its confidence on images of none."""
    plain = answers[PLAIN]
    right = float((plain["test"].digit == labels).float().mean())
    letters, photos = (_sure(plain[name]) for name in ("letters", "photos"))
    return (
        f"The plain network reads {right:.1%} of new digits correctly. But shown letters, it is at least {SURE:.0%}\n"
        f"sure that {letters:.0%} of them are some digit; shown photographs, {photos:.0%}. All these answers are wrong."
    )


def _sure(answers: Answers) -> float:
    """The share of images with a confidence of at least `SURE`."""
    return float((answers.confidence >= SURE).float().mean())


def thresholds(answers: Mapping[str, Mapping[str, Answers]]) -> dict[str, float]:
    """The entropy of each model below which a share of `ANSWERED` of the validation digits lies."""
    return {name: float(said["val"].entropy.quantile(ANSWERED)) for name, said in answers.items()}


def _what_to_do(answers: Mapping[str, Mapping[str, Answers]], labels: Tensor) -> str:
    """A table: how often each model is sure of images of no digit, and its errors with and without refusals."""
    limits, rows = thresholds(answers), []
    for name, said in answers.items():
        kept = said["test"].entropy <= limits[name]
        wrong = said["test"].digit != labels
        sure = (_sure(said[part]) for part in STRANGE)
        refused = (float((said[part].entropy > limits[name]).float().mean()) for part in STRANGE)
        errors = (float(share.float().mean()) for share in (wrong, wrong[kept]))
        rows.append([name, *(f"{v:.0%}" for v in sure), *(f"{v:.1%}" for v in errors), *(f"{v:.0%}" for v in refused)])
    header = ["Model", *(f"sure of\n{part}" for part in STRANGE), "digits\nwrong", "wrong if\nit may refuse"]
    header += [f"{part}\nrefused" for part in STRANGE]
    return (
        "What to do with a doubtful answer: do not use it. Ask a person, or measure again, where the entropy is above\n"
        f"a threshold that {ANSWERED:.0%} of held-out digits stay below:\n\n{as_text(table(header, rows))}"
    )


def _pictures(
    plain: Mapping[str, Answers], said: Mapping[str, Answers], limit: float, truth: Truth, chosen: str
) -> str:
    """Galleries of letters of which the plain network is sure, and of digits, which the chosen model refuses."""
    sure = plain["letters"].confidence >= SURE
    caught = (sure & (said["letters"].entropy > limit)).nonzero().flatten()
    shown = caught[plain["letters"].confidence[caught].argsort(descending=True)][:SHOWN].tolist()
    letters = [
        f"plain: {int(plain['letters'].digit[i])}, {float(plain['letters'].confidence[i]):.0%} sure; "
        f"{chosen}: {float(said['letters'].confidence[i]):.0%}"
        for i in shown
    ]
    order = said["test"].entropy.argsort(descending=True).tolist()
    doubtful = [i for i in order if said["test"].entropy[i] > limit]
    digits = [
        f"a {int(truth.labels[i])}; says {int(said['test'].digit[i])}, {float(said['test'].confidence[i]):.0%} sure"
        for i in doubtful[:SHOWN]
    ]
    wrong = sum(bool(said["test"].digit[i] != truth.labels[i]) for i in doubtful)
    return parts.gallery(
        f"Digits that {chosen} refuses",
        truth.pixels("test", doubtful[:SHOWN]),
        digits,
        f"{len(doubtful)} of {len(truth.labels)} test digits have an entropy above the threshold; on {wrong} of them "
        f"it would have been wrong. The most doubtful are shown.",
    ) + parts.gallery(
        f"Letters of which the plain network is sure, refused by {chosen}",
        truth.pixels("letters", shown),
        letters,
        f"The plain network is at least {SURE:.0%} sure of {int(sure.sum())} of {len(sure)} letters; {chosen} refuses "
        f"{len(caught)} of these.",
    )
