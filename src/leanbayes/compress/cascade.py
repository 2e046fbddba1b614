"""`Cascade`: small networks answer what they are sure of, and larger ones, or more samples, the rest."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from .. import batches, checks, likelihoods, sampling
from ..convert import record
from ..convert.staged import Ask, Staged
from ..costs import cost
from ..errors import ConfigError, ConversionError, PredictionError
from ..likelihoods import Likelihood
from ..prediction import Predictive, predict
from ..prediction.combined import pooled, rows
from ..prediction.predictive import entropy, join
from .stages import stages_of
from .thresholds import Tuning, tuned

Score = Literal["max_probability", "entropy", "margin", "mutual_information"]
INFINITY = float("inf")
START: dict[str, float] = {"max_probability": 0.1, "entropy": 0.3, "margin": 0.2, "mutual_information": 0.02}
"""Where thresholds start, before `Cascade.tune`."""


class Cascade(Staged):
    """Answers each datum at the cheapest stage that is sure of it, and asks the next one only while it is not.

    model: a nested network (`lb.Nested`, `lb.NestedDropout`), whose ``widths`` become the stages; or a list of models
        of the same classes, cheapest first; or one Bayesian model, whose answers from more and more ``samples`` are.
    widths: of a nested network, ascending. Each stage is cut out with `lb.extract`: it is really smaller.
    samples: networks averaged at each stage, one number or one a stage. None runs the stages of a nested network at
        their means; other models take as many as `predict` is asked for. Stages of equal width (or the same model) go
        on with the samples that they have: (1, 4, 16) costs 16 at most.
    score: how unsure a stage is: "max_probability" (1 - the highest), "entropy" (nats), "margin" (1 - the difference of
        the two highest), or "mutual_information" (of random stages with two samples or more).
    thresholds: a number for every stage but the last, which answers where its score is no higher. -inf leaves a stage
        out, inf ends the cascade there. `tune` finds them.
    loader: data to re-estimate BatchNorm's statistics with at each width, which a nested network needs.
    fold_batchnorm: fold BatchNorm into the layers before it (see `lb.extract`).

    It is a model for `predict`, `evaluate`, `save` and `load`, in evaluation mode always; as a function of a batch it
    returns the logarithms of the class probabilities. ``stages`` are ordinary modules, each with a likelihood of its
    own, so that ``lb.calibrate_(stage, held_out)`` gives it a temperature. A wider stage starts from the inputs: of
    what a narrower one has computed only the first layer could be taken over, about 1 % of the arithmetic of a VGG.

    >>> import leanbayes as lb
    >>> _ = torch.manual_seed(0)
    >>> small, large = nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
    >>> cascade = Cascade([small, large], thresholds=[0.6])
    >>> pred = lb.predict(cascade, torch.randn(6, 4))
    >>> pred.stages, pred.macs
    (tensor([1, 1, 0, 0, 0, 0]), tensor([460., 460.,  12.,  12.,  12.,  12.]))
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        widths: Sequence[float] | None = None,
        *,
        samples: int | Sequence[int] | None = None,
        score: Score = "max_probability",
        thresholds: Sequence[float] | None = None,
        loader: Any = None,
        fold_batchnorm: bool = False,
    ) -> None:
        super().__init__()
        self.score = checks.one_of("score", score, get_args(Score))
        checks.flag("fold_batchnorm", fold_batchnorm)
        found, numbers = stages_of(model, widths, samples, loader, fold_batchnorm)
        self.stages = nn.ModuleList(found)
        self.samples: tuple[int | None, ...] = numbers
        self.thresholds = (START[score],) * (len(found) - 1)
        if thresholds is not None:
            self.set_thresholds(thresholds)
        self.stage_macs: tuple[int, ...] = ()
        self._meanings: dict[int, tuple[Any, Likelihood]] = {}
        self._check_score()
        known = record.get(self.stages[-1])
        own = record.Record() if known is None else copy.copy(known)
        own.likelihood, own.conformal = self.likelihood(len(found) - 1).to_dict(), None
        record.put(self, own)
        self.train(False)

    def set_thresholds(self, thresholds: Sequence[float]) -> None:
        """Set the thresholds, one for every stage but the last."""
        wanted = checks.iterable_of("thresholds", thresholds, "numbers", _threshold)
        if len(wanted) != len(self.stages) - 1:
            checks.refuse("thresholds", f"{len(self.stages) - 1} numbers, one for every stage but the last", thresholds)
        self.thresholds = tuple(wanted)

    def train(self, mode: bool = True) -> Cascade:
        """Nothing: a cascade is in evaluation mode. Train the networks before."""
        return super().train(False)

    def likelihood(self, stage: int) -> Likelihood:
        """What the outputs of a stage mean: what it was fitted to, with its temperature, or a classification."""
        known = record.get(self.stages[stage])
        stored = None if known is None else known.likelihood
        if stage not in self._meanings or self._meanings[stage][0] is not stored:
            meaning = likelihoods.likelihood("classification" if stored is None else stored)
            if meaning.task != "classification":
                raise ConversionError(
                    f"stage {stage}: expected a classification, received a {meaning.task}; a cascade asks how "
                    "sure of a class it is"
                )
            self._meanings[stage] = stored, meaning
        return self._meanings[stage][1]

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """The logarithms of the class probabilities (N, C)."""
        given: Any = named or (inputs[0] if len(inputs) == 1 else inputs)
        answers: Tensor | None = None
        left: Tensor | None = None  # None: all
        asked = self.asked()
        for number, stage in asked:
            if sampling.is_random(stage):
                found = predict(self, given).probs
                return found.clamp_min(torch.finfo(found.dtype).tiny).log()
            here = given if left is None else _at(given, left)
            logs = self.likelihood(number).log_probs(batches.output_tensor(batches.call(stage, here)))
            if answers is not None:
                self.check_classes(number, logs, answers)
            if left is None:
                answers = logs
            else:
                answers[left] = logs  # type: ignore[index]
            if number == asked[-1][0]:
                break
            if len(logs) == 1:  # to make an index takes longer than to look
                if not self._goes_on(number, logs):
                    break
                continue
            unsure = self._unsure(number, logs.exp())
            if not len(unsure):
                break
            if len(unsure) < len(logs) or left is not None:
                left = unsure if left is None else left[unsure]
        assert answers is not None
        return answers

    def answer(self, inputs: Any, meaning: Any, ask: Ask) -> Predictive:
        """The prediction of a batch, each datum's from the stage that answered it; `predict` asks for it."""
        own = record.get(self)
        per_stage = own is not None and meaning.to_dict() == own.likelihood
        if not self.stage_macs:
            self.count_macs(batches.rows(inputs, 0, 1))
        size = batches.size(inputs)
        left = torch.arange(size, device=batches.first_tensor(inputs).device)
        spent = torch.zeros(size, dtype=torch.float, device=left.device)
        done: list[tuple[Tensor, Predictive]] = []
        last: tuple[nn.Module, Predictive] | None = None
        asked = self.asked()
        for number, stage in asked:
            here = inputs if len(left) == size else _at(inputs, left)
            before = last[1] if last is not None and last[0] is stage else None
            begin = 0 if before is None else int(before.counts.max())
            said = ask(stage, here, self.likelihood(number) if per_stage else meaning, begin, self.samples[number])
            if said is None:
                assert before is not None
                pred = before
            else:
                spent[left] += self.stage_macs[number] * said.counts.to(spent)
                pred = said if before is None else pooled(before, said)
            if done:
                self.check_classes(number, pred.mean, done[0][1].mean)
            unsure = None if number == asked[-1][0] else self._unsure(number, pred.mean, pred.epistemic)
            sure = _others(unsure, len(left)) if unsure is not None else None
            stages = torch.full((len(left),), number, device=left.device)
            pred = replace(pred, stages=stages, macs=spent[left], engine="cascade")
            done.append((left, pred) if sure is None else (left[sure], rows(pred, sure)))
            if unsure is None or not len(unsure):
                break
            left, last = left[unsure], (stage, replace(rows(pred, unsure), stages=None, macs=None))
        order = torch.cat([numbers for numbers, _ in done]).argsort()
        return rows(join([pred for _, pred in done]), order)

    def count_macs(self, example: Any) -> tuple[int, ...]:
        """Multiply-accumulates of one sample of each stage for one datum, counted on an example and kept."""
        self.stage_macs = tuple(cost(stage, example).macs for stage in self.stages)
        return self.stage_macs

    def tune(
        self,
        held_out: Any,
        *,
        accuracy: float | None = None,
        max_loss: float | None = None,
        macs: float | None = None,
        milliseconds: float | None = None,
        cheapest: Literal["macs", "milliseconds"] = "macs",
        confidence: float = 0.95,
        seed: int = 0,
    ) -> Tuning:
        """Set the thresholds by held-out data, inputs with labels that training has not seen; returns what they give.

        One of these says what for, all on the held-out data:

        accuracy: the cheapest thresholds that are as accurate as this.
        max_loss: the same for the accuracy of the last stage less this: 0.002 is 0.2 points.
        macs: the most accurate thresholds whose mean MACs are within this budget; up to 1 it is a share of those of
            the last stage alone.
        milliseconds: the most accurate thresholds with which no datum takes longer, by the median time of each stage
            for a single datum, measured here.

        cheapest: what accuracy and max_loss spend least of. "milliseconds" are those of each stage for a single datum,
            measured here: a narrow stage takes longer than its share of the MACs.
        confidence: that accuracy or max_loss hold on new data too, which a bound of one side assures: so many held-out
            data say only so much. Of a loss it is far closer than of an accuracy, since both answer the same data.
            0.5 takes the held-out mean as it is.

        A stage that does not pay is left out, with a threshold of -inf. What cannot be had raises an EvaluationError
        that says what can. Every stage looks at all data once.
        """
        wishes = {"accuracy": accuracy, "max_loss": max_loss, "macs": macs, "milliseconds": milliseconds}
        checks.one_of("cheapest", cheapest, ("macs", "milliseconds"))
        return tuned(self, held_out, seed, confidence, cheapest == "milliseconds", **wishes)

    def unsureness(self, probabilities: Tensor, epistemic: Tensor | None = None) -> Tensor:
        """The score of each datum (N,), higher where a stage is less sure; of probabilities (N, C)."""
        if self.score == "entropy":
            return entropy(probabilities)
        if self.score == "mutual_information":
            assert epistemic is not None
            return epistemic
        if self.score == "max_probability":
            return 1 - probabilities.amax(1)
        best = probabilities.topk(2, 1).values
        return 1 - (best[:, 0] - best[:, 1])

    def described(self) -> dict[str, Any]:
        """Score, thresholds, samples, costs and likelihoods, as JSON."""
        meanings = [self.likelihood(k).to_dict() for k in range(len(self.stages))]
        thresholds = [repr(t) if abs(t) == INFINITY else t for t in self.thresholds]
        numbers = {"samples": list(self.samples), "macs": list(self.stage_macs)}
        return {"score": self.score, "thresholds": thresholds, **numbers, "likelihoods": meanings}

    def adopt_(self, described: Any) -> None:
        """Take over score, thresholds, samples, costs and likelihoods that `described` gave."""
        stages = len(self.stages)
        if not isinstance(described, dict) or len(described.get("likelihoods") or ()) != stages:
            there = len(described.get("likelihoods") or ()) if isinstance(described, dict) else 0
            raise ConfigError(
                f"expected a cascade of {there} stages, received one of {stages}; build lb.Cascade of as many networks"
            )
        other = copy.copy(self)  # checked as a whole before anything changes
        other.score = checks.one_of("score", described.get("score"), get_args(Score))
        other.set_thresholds(described.get("thresholds"))  # type: ignore[arg-type]
        samples, macs = described.get("samples"), described.get("macs")
        if not isinstance(samples, list) or not isinstance(macs, list) or len(samples) != stages:
            checks.refuse("samples, macs", f"lists of {stages} numbers", (samples, macs))
        own = tuple(None if n is None else checks.whole_number("samples", n) for n in samples)
        counted = tuple(checks.whole_number("macs", n, at_least=0) for n in macs)
        meanings = [likelihoods.from_dict(data).to_dict() for data in described["likelihoods"]]
        self.score, self.thresholds, self.samples, self.stage_macs = other.score, other.thresholds, own, counted
        for stage, meaning in zip(self.stages, meanings, strict=True):
            record.ensure(stage).likelihood = meaning

    def extra_repr(self) -> str:
        """How it chooses."""
        return f"score={self.score!r}, thresholds={self.thresholds}, samples={self.samples}"

    def asked(self) -> list[tuple[int, nn.Module]]:
        """The stages that can answer, up to one that always does."""
        last = next((k for k, t in enumerate(self.thresholds) if t == INFINITY), len(self.stages) - 1)
        left_out = [t == -INFINITY for t in self.thresholds[:last]]
        return [(k, stage) for k, stage in enumerate(self.stages) if k == last or (k < last and not left_out[k])]

    def _goes_on(self, number: int, logs: Tensor) -> bool:
        """Whether one datum does, of the logarithms of its probabilities: with as few operations as there can be."""
        if self.score == "max_probability":
            return 1 - math.exp(logs.max().item()) > self.thresholds[number]
        return bool(self.unsureness(logs.exp()) > self.thresholds[number])

    def _unsure(self, number: int, probabilities: Tensor, epistemic: Tensor | None = None) -> Tensor:
        """The rows that go on."""
        return (self.unsureness(probabilities, epistemic) > self.thresholds[number]).nonzero().flatten()

    def check_classes(self, number: int, probabilities: Tensor, others: Tensor) -> None:
        """Raise where a stage has other classes than another."""
        if probabilities.shape[1] != others.shape[1]:
            raise PredictionError(
                f"stage {number}: expected {others.shape[1]} classes, as the stages before it, received "
                f"{probabilities.shape[1]}; the stages of a cascade answer the same question"
            )

    def _check_score(self) -> None:
        if self.score != "mutual_information":
            return
        for number, (stage, samples) in enumerate(zip(self.stages[:-1], self.samples, strict=False)):
            if samples == 1 or not sampling.sites(stage):
                raise ConfigError(
                    f"score: mutual information is 0 at stage {number}, which has one answer for each datum; give it "
                    "samples=2 or more of random weights, or score='entropy'"
                )


def _threshold(name: str, value: Any) -> float:
    """A number, infinite ones included, which JSON has as text."""
    ends = {"inf": INFINITY, "-inf": -INFINITY}
    value = ends.get(value, value) if isinstance(value, str) else value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        checks.refuse(name, "a number, or inf or -inf", value)
    return float(value)


def _at(inputs: Any, index: Tensor) -> Any:
    """Some of the data of a batch."""
    return batches.map_tensors(lambda t: t[index.to(t.device)], inputs)


def _others(index: Tensor, size: int) -> Tensor:
    """The numbers below ``size`` that are not in the index."""
    rest = torch.ones(size, dtype=torch.bool, device=index.device)
    rest[index] = False
    return rest.nonzero().flatten()
