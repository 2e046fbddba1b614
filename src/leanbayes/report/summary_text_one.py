"""One model in a few sentences, for people who must decide what to do with it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import columns
from .metrics import SCORES

if TYPE_CHECKING:
    from ..evaluation.result import Evaluation

BLIND = 0.6
"""The AUROC below which it would be unkind to speak of noticing: a coin toss gives 0.5."""


def about(e: Evaluation) -> list[str]:
    """What it can do, whether it can be believed, when to ask somebody else, what makes it fail."""
    parts = (_right, _believe, _temperature, _decline, _regression, _strange, _spoilt, _attacked)
    return [sentence for part in parts for sentence in part(e)]


def _right(e: Evaluation) -> Iterator[str]:
    if "accuracy" not in e.metrics:
        return
    pixels = "the pixels of " if e.task == "segmentation" else ""
    what = "images" if e.task == "segmentation" else "test data"
    yield f"{e.name} is right on {percent(e['accuracy'], e.count)} of {pixels}{e.count:,} {what}."


def _believe(e: Evaluation) -> Iterator[str]:
    if math.isnan(e.metrics.get("ece", math.nan)) or "confidence" not in e.metrics:
        return
    gap, error = e["confidence"] - e["accuracy"], 100 * e["ece"]
    points = f"(calibration error {error:.1f} points)"
    if error < 2:
        yield f"Its confidence can be taken at its word {points}."
    elif abs(gap) < e["ece"] / 2:
        yield f"Its confidence is right on average but not in detail {points}."
    else:
        word = "over-confident" if gap > 0 else "under-confident"
        yield f"It is {word}: it claims {percent(e['confidence'], e.count)} on average {points}."


def _temperature(e: Evaluation) -> Iterator[str]:
    before, after = e.metrics.get("ece", math.nan), e.metrics.get("scaled.ece", math.nan)
    if math.isnan(before) or math.isnan(after):
        return
    how = (
        f"one temperature, {e['temperature']:.2f}, would change it from {100 * before:.1f} to {100 * after:.1f} points"
    )
    if before - after > 0.005:
        yield f"Its calibration can be improved: {how}."
    else:
        yield f"Its calibration gains little from temperature scaling: {how}."


def _decline(e: Evaluation) -> Iterator[str]:
    """The wished accuracy nearest above its own that it can reach, and the first that it cannot."""
    prefix = "selective.coverage."
    wished = sorted((float(k.removeprefix(prefix)), k) for k in e.metrics if k.startswith(prefix))
    better = [(accuracy, e[key]) for accuracy, key in wished if accuracy > e.metrics.get("accuracy", 1.0)]
    can = [(accuracy, share) for accuracy, share in better if share > 0]
    if can:
        accuracy, share = can[-1]
        sure = e.metrics.get(f"selective.threshold.{accuracy:g}", math.nan)
        when = f", those it is at least {percent(sure, 100)} sure of" if math.isfinite(sure) else ""
        yield (
            f"If {100 * accuracy:g} % accuracy is wanted, it can answer {percent(share, e.count)} of the data{when}; "
            f"the rest is for somebody else."
        )
    for accuracy, share in better:
        if not share:
            yield f"There is no confidence above which it is right {100 * accuracy:g} % of the time."
            return


def _regression(e: Evaluation) -> Iterator[str]:
    if "rmse" in e.metrics:
        yield f"{e.name} is off by {columns.written(e['rmse'], 'number')} (RMSE) on {e.count:,} test data."
    if "coverage.0.9" in e.metrics:
        found = e["coverage.0.9"]
        verdict = "as it should" if abs(found - 0.9) < max(0.02, 1.96 * math.sqrt(0.09 / e.count)) else _shifted(found)
        yield f"Its 90 % intervals hold {percent(found, e.count)} of the truths: {verdict}."


def _shifted(found: float) -> str:
    return "too few, the intervals are too narrow" if found < 0.9 else "more than promised, the intervals are too wide"


def _strange(e: Evaluation) -> Iterator[str]:
    for name, score, value in aurocs(e):
        yield (
            f"Data of another kind ({name}) raise more doubt than test data "
            f"in {_of_100(value)} pairs, by {score}{': it does not notice them' if value < BLIND else ''}."
        )


def _of_100(value: float) -> str:
    return "more than 99 of 100" if 0.995 <= value < 1 else f"{100 * value:.0f} of 100"


def _spoilt(e: Evaluation) -> Iterator[str]:
    cells = e.curves.get("corruption") or []
    if not cells or "corruption.accuracy" not in e.metrics:
        return
    worst = min(cells, key=lambda cell: cell["accuracy"])
    text = (
        f"On spoilt images it is right on {percent(e['corruption.accuracy'], 100)} on average, and at the worst on "
        f"{percent(worst['accuracy'], 100)} ({plain(worst['corruption'])}, severity {worst['severity']})"
    )
    if isinstance(error := worst.get("ece"), float) and math.isfinite(error):
        text += f", where its calibration error is {100 * error:.0f} points"
    yield text + "."


def _attacked(e: Evaluation) -> Iterator[str]:
    if "attack.success" not in e.metrics:
        return
    curve = e.curves.get("attack", {})
    how = f"{curve['iterations']} steps of {curve['step']:g}/{curve['scale']:g}" if "scale" in curve else "small steps"
    text = f"An attack of {how} turns {percent(e['attack.success'], 100)} of the images it is tried on"
    clean, pushed = e.metrics.get("attack.clean_entropy", math.nan), e.metrics.get("attack.entropy", math.nan)
    if math.isfinite(clean) and math.isfinite(pushed):
        rise = "rises" if pushed > 1.1 * clean else "falls" if pushed < 0.9 * clean else "hardly moves"
        text += f"; its doubt {rise} (entropy {clean:.2f} before, {pushed:.2f} after)"
    yield text + "."


def aurocs(e: Evaluation) -> list[tuple[str, str, float]]:
    """(set, score, AUROC) of the best score of each out-of-domain set."""
    found: dict[str, tuple[str, str, float]] = {}
    for key, value in e.metrics.items():
        if key.startswith("ood.") and key.endswith(".auroc"):
            name, score, _ = columns.split_rank(key)
            if name not in found or value > found[name][2]:
                found[name] = (name, SCORES.get(score, score), value)
    return list(found.values())


def percent(value: float, count: int) -> str:
    """A share of so many data."""
    return columns.written(value, "percent", count)


def plain(name: str) -> str:
    """A name of code as words.

    >>> plain("gaussian_noise")
    'gaussian noise'
    """
    return name.replace("_", " ")
