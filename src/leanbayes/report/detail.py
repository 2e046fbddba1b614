"""The section of one model: figures by question, then all numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import parts, plots, stress
from .sections import sections

if TYPE_CHECKING:
    from ..evaluation.result import Evaluation

COVERAGE = (
    "On the dashed line, 90 % of the targets lie inside the 90 % intervals. Below it, the intervals are too narrow."
)
DECLINED = "Answering the surest first: how many of the answers are wrong, by how much of the data is answered."
DASHED = " Dashed: the entropy of the same images before."
PIT = "Flat is well calibrated. Heaped at both ends, the predictives are too narrow; heaped in the middle, too wide."


def model(e: Evaluation, several: bool) -> str:
    """The section of one model; with ``several``, figures that all models share are left out."""
    notes = "".join(f"<p class=note>Note: {parts.text(note)}</p>" for note in e.notes)
    groups = {
        "Experts": [*_experts(e)],
        "Calibration": [*_confidence(e), *_declined(e, several), *_regression(e, several)],
        "Out-of-domain data": [*_strange(e)],
        "Robustness": [*_corrupted(e, several), *_attacked(e, several)],
        "Training": [*_training(e)],
    }
    body = "".join(f"<h3 class=question>{q}</h3>{parts.grid(cards)}" for q, cards in groups.items() if cards)
    body += f"<h3 class=question>All numbers</h3>{parts.columns(_numbers(e))}"
    if several:  # closed, so that a page of many models is not too long
        return f"<details><summary>{parts.text(e.name)}</summary>{notes}{body}</details>"
    return f"<section><h2>In detail</h2>{notes}{body}</section>"


def sweep(e: Evaluation) -> dict[str, object]:
    """The data of one model for `stress.severity`."""
    return {"cells": e.curves["corruption"], "clean": e.curves.get("corruption_clean", {})}


def _confidence(e: Evaluation) -> Iterator[str]:
    if "reliability" in e.curves:
        caption = (
            "How often it is right when it is that sure. Larger dots have more data; hollow ones are too few to count."
        )
        yield parts.figure("Reliability", plots.reliability(e.curves["reliability"]), caption)
    if "scaled_reliability" in e.curves:
        caption = f"The same after dividing the logits by {e.metrics['temperature']:.3g}, fitted to held-out data."
        yield parts.figure("With one temperature", plots.reliability(e.curves["scaled_reliability"]), caption)
    if "confidence" in e.curves:
        caption = "How sure it was where it was right and where it was wrong, each adding up to 100 %."
        yield parts.figure("Confidence", plots.confidence(e.curves["confidence"]), caption)


def _experts(e: Evaluation) -> Iterator[str]:
    if "pixel_calibration" in e.curves:
        caption = (
            "Which share of the experts marked the pixels that it gave such a probability. Nearly all pixels are "
            "background, in the dot at the left."
        )
        axes = ("probability of the foreground", "share of experts")
        yield parts.figure("Pixels", plots.reliability(e.curves["pixel_calibration"], axes), caption)


def _declined(e: Evaluation, several: bool) -> Iterator[str]:
    if "risk_coverage" in e.curves and not several:
        curve = stress.risk_coverage({e.name: e.curves["risk_coverage"]})
        yield parts.figure("Answering only when sure", curve, DECLINED)


def _regression(e: Evaluation, several: bool) -> Iterator[str]:
    if "coverage" in e.curves and not several:
        yield parts.figure("Coverage", plots.coverage({e.name: e.curves["coverage"]}), COVERAGE)
    if "pit" in e.curves:
        yield parts.figure("PIT histogram", stress.pit(e.curves["pit"]), PIT)


def _strange(e: Evaluation) -> Iterator[str]:
    sets: dict[str, list[dict[str, Any]]] = {}
    for histogram in e.curves.get("ood", ()):
        if histogram["score"] != "max_prob":  # it looks as the entropy does
            sets.setdefault(str(histogram["set"]), []).append(histogram)
    for name, histograms in sets.items():
        aurocs = [e.metrics.get(f"ood.{name}.{h['score']}.auroc") for h in histograms]
        caption = f"Test data and {name}, each adding up to 100 %. The further apart, the better."
        yield parts.figure(f"Scores of {name}", plots.ood_histograms(histograms, aurocs), caption)


def _corrupted(e: Evaluation, several: bool) -> Iterator[str]:
    if not (cells := e.curves.get("corruption")):
        return
    count = cells[0].get("count", e.count)
    if not several:
        caption = f"Means over the corruptions, {count:,} images each."
        yield parts.figure("Corrupted images", stress.severity({e.name: sweep(e)}), caption)
    caption = f"Accuracy in per cent, on {count:,} images of each kind, from the mildest to the worst severity."
    yield parts.figure("Corrupted images, one by one", parts.heat_map(cells), caption)


def _attacked(e: Evaluation, several: bool) -> Iterator[str]:
    if "attack" in e.curves and not several:
        yield parts.figure("Under attack", stress.attack({e.name: e.curves["attack"]}), attack_caption(e) + DASHED)


def attack_caption(e: Evaluation) -> str:
    """The caption of the figure of an attack: its kind, steps and images."""
    curve, settings = e.curves["attack"], e.settings.get("attack", {})
    scale = settings.get("scale")
    step = f"{curve.get('step', 0):g}" + (f"/{scale:g} of the pixel range" if scale else "")
    kind = settings.get("kind", "targeted")
    aim = "images that it then takes for the class aimed at" if kind == "targeted" else "images it then gets wrong"
    return f"{str(kind).capitalize()}, steps of {step}, on {curve.get('count', 0):,} images. Success: {aim}."


def _training(e: Evaluation) -> Iterator[str]:
    if e.history:
        yield parts.figure("Training", plots.training(e.history), f"{len(e.history)} epochs.")


def _numbers(e: Evaluation) -> Iterator[str]:
    """All numbers of one model as small tables."""
    for section in sections(e):
        yield parts.card(section.title, section.header, section.rows)
