"""Conformal sets and intervals beside those of MAPIE."""

import numpy as np
import pytest
import torch

from leanbayes.conformal.config import Conformal
from leanbayes.conformal.scores import class_scores, class_sets, interval, residual_scores, threshold

from .cases import _part, case, forecasts


@pytest.mark.extra
@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
@pytest.mark.parametrize(
    ("score", "randomized"), [("lac", False), ("aps", False), ("aps", True), ("raps", False)], ids=str
)
def test_sets_are_those_of_mapie(score, randomized, coverage):
    """The same probabilities and random numbers give the same scores, thresholds and sets.

    MAPIE draws the numbers from a seed, always in the calibration and, where it is asked, for the sets. Its randomised
    RAPS is that of the authors' program, which removes the last label by another rule than the score, and is left out.
    """
    sets = pytest.importorskip("mapie.conformity_scores.sets")
    utils = pytest.importorskip("mapie.utils")
    kinds = {"lac": sets.LACConformityScore, "aps": sets.APSConformityScore, "raps": sets.RAPSConformityScore}
    logits, labels = case(700, 6, seed=5)
    probs, lam, k_reg, seed = logits.softmax(1).double(), 0.05, 2, 11
    cal, test, truth = probs[:400].numpy(), probs[400:].numpy(), labels[:400].numpy()
    theirs, alpha = kinds[score](), np.array([1 - coverage])
    theirs.set_external_attributes(classes=np.arange(6), random_state=seed)
    first = kinds["aps"] if score == "raps" else kinds[score]
    scores = first.get_conformity_scores(theirs, truth, cal, y_enc=truth)
    if score == "raps":
        theirs.lambda_star, theirs.k_star = lam, np.array([k_reg])
        scores = theirs._regularize_conformity_score(theirs.k_star, lam, scores, theirs.cutoff)[:, :, 0]
    theirs.quantiles_ = utils._compute_classification_quantile(scores, alpha)
    drawn = [torch.from_numpy(np.random.RandomState(seed).uniform(size=n)) for n in (400, 300)]
    options = {"lam": lam, "k_reg": k_reg}
    ours = class_scores(probs[:400], score, **options, uniform=None if score == "lac" else drawn[0])
    ours = ours.gather(1, labels[:400, None]).squeeze(1)
    limit = threshold(ours, coverage)
    assert np.allclose(scores.ravel(), ours.numpy(), atol=1e-12)
    assert limit == pytest.approx(float(theirs.quantiles_[0]), abs=1e-12)
    extra = {} if score == "lac" else {"include_last_label": "randomized" if randomized else False}
    wanted = theirs.get_prediction_sets(test[:, :, None].copy(), scores, alpha, "prefit", **extra)[:, :, 0]
    found = Conformal(
        coverage, score, (limit,), (400,), randomized=randomized, allow_empty=score == "lac" or randomized, **options
    )
    assert np.array_equal(class_sets(probs[400:], found, drawn[1]).numpy(), wanted.astype(bool))
    assert 1 < wanted.sum(1).mean() < 6


class _Fixed:
    """An estimator of scikit-learn's kind that returns a column of its inputs."""

    def __init__(self, column=0):
        self.column = column

    def fit(self, inputs, targets):
        return self

    def predict(self, inputs):
        return inputs[:, self.column]

    def get_params(self, deep=True):
        return {"column": self.column}

    def __sklearn_is_fitted__(self):
        return True


@pytest.mark.extra
@pytest.mark.parametrize("score", ["absolute", "cqr"])
def test_intervals_are_those_of_mapie(score):
    regression = pytest.importorskip("mapie.regression")
    mean, std, y = (part.double() for part in forecasts())
    cal, new, coverage = slice(0, 200), slice(200, 300), 0.85
    columns = torch.stack([mean, mean - std, mean + 1.5 * std], 1).numpy()
    if score == "absolute":
        theirs = regression.SplitConformalRegressor(_Fixed(), confidence_level=coverage, prefit=True)
        options, spread = {}, std
    else:
        own = [_Fixed(1), _Fixed(2), _Fixed(0)]
        theirs = regression.ConformalizedQuantileRegressor(own, confidence_level=coverage, prefit=True)
        options, spread = {"symmetric_correction": True}, (mean - std, mean + 1.5 * std)
    theirs.conformalize(columns[cal], y[cal].numpy())
    _, wanted = theirs.predict_interval(columns[new], **options)
    limit = threshold(residual_scores(y[cal], mean[cal], _part(spread, cal), score), coverage)
    found = interval(mean[new], _part(spread, new), Conformal(coverage, score, (limit,), (200,)))
    assert np.allclose(torch.stack(found, 1).numpy(), wanted[:, :, 0], atol=1e-9)
