"""The estimators are scikit-learn's: its own checks, its tools around them, and standard deviations that hold."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

import leanbayes as lb
from leanbayes.errors import ConfigError

SMALL = {"epochs": 10, "hidden": (8,), "samples": 8, "lr": 0.05}  # enough to learn what the checks ask for
X, Y = load_iris(return_X_y=True)


@pytest.mark.parametrize("estimator", [lb.BayesClassifier(**SMALL), lb.BayesRegressor(**SMALL)], ids=repr)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks(estimator):
    # none is expected to fail; the skipped ones need pandas or SCIPY_ARRAY_API
    checks = check_estimator(estimator, on_skip=None, expected_failed_checks={})
    assert len(checks) > 40
    assert {c["check_name"] for c in checks if c["status"] == "skipped"} <= {
        "check_array_api_input",
        "check_classifier_data_not_an_array",
        "check_regressor_data_not_an_array",
    }


def test_pipeline_grid_search_and_cross_validation():
    model = lb.BayesClassifier(**(SMALL | {"epochs": 40}), random_state=0)
    assert cross_val_score(make_pipeline(StandardScaler(), model), X, Y, cv=3).mean() > 0.9
    search = GridSearchCV(model, {"hidden": [(4,), (8,)], "method": [lb.MeanField(), lb.Dropout(0.1)]}, cv=2)
    assert search.fit(X, Y).best_score_ > 0.8
    assert search.best_params_["hidden"] in [(4,), (8,)]


def test_clone_pickle_and_set_params():
    model = lb.BayesClassifier(**SMALL, random_state=0).fit(X, Y)
    expected = model.predict_proba(X)
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), expected)
    assert np.array_equal(clone(model).fit(X, Y).predict_proba(X), expected)
    assert not np.array_equal(clone(model).set_params(random_state=1).fit(X, Y).predict_proba(X), expected)


def test_labels_of_text():
    names = np.array(["setosa", "versicolor", "virginica"])[Y]
    model = lb.BayesClassifier(**SMALL, random_state=0).fit(X, names)
    assert list(model.classes_) == ["setosa", "versicolor", "virginica"]
    assert model.predict(X[:2]).tolist() == ["setosa", "setosa"]
    assert model.score(X, names) > 0.9


def test_several_targets_at_once():
    targets = np.stack([X[:, 0] * 100 + 7, -X[:, 1]], 1)  # of different scales
    model = lb.BayesRegressor(**(SMALL | {"epochs": 40}), random_state=0).fit(X, targets)
    mean, std = model.predict(X[:5], return_std=True)
    assert mean.shape == std.shape == (5, 2)
    assert model.score(X, targets) > 0.9
    assert 30 < std[:, 0].mean() / std[:, 1].mean() < 300  # each in the units of its own target


def test_standard_deviations_hold():
    rng = np.random.RandomState(0)

    def draw(count):
        x = rng.uniform(-2, 2, (count, 1))
        return x, np.sin(2 * x[:, 0]) + 0.2 * rng.randn(count)

    (x, y), (new, truth) = draw(200), draw(1000)
    model = lb.BayesRegressor(hidden=(20,), epochs=150, batch_size=50, lr=0.03, random_state=0).fit(x, y)
    mean, std = model.predict(new, return_std=True)
    assert np.sqrt(np.mean((mean - truth) ** 2)) < 0.23  # the noise itself is 0.2
    assert 0.8 < np.std((truth - mean) / std) < 1.15
    low, high = (bound.numpy().ravel() for bound in model.predictive(new).interval(0.9))
    assert 0.86 < np.mean((low < truth) & (truth < high)) < 0.95
    assert model.predict([[8.0]], return_std=True)[1][0] > 2 * std.mean()  # far away it knows less


def test_a_network_of_your_own():
    def module(features, outputs):
        return nn.Sequential(nn.Linear(features, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, outputs))

    model = lb.BayesClassifier(module, **SMALL, method={"3": lb.MeanField()}, random_state=0).fit(X, Y)
    assert model.plan_.converted == ["3"]
    assert model.score(X, Y) > 0.8


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda features, outputs: "no network", "received str"),
        (lambda features, outputs: nn.Linear(features + 1, outputs), "RuntimeError"),
        (lambda features, outputs: nn.Sequential(nn.Linear(features, outputs + 1)), r"not \(2, 3\)"),
    ],
)
def test_a_module_that_does_not_fit_is_refused(module, message):
    with pytest.raises(ConfigError, match=message):
        lb.BayesClassifier(module, **SMALL).fit(X, Y)


def test_the_random_state_of_torch_is_left_alone():
    before = torch.get_rng_state()
    lb.BayesClassifier(**SMALL, random_state=0).fit(X, Y).predict(X)
    assert torch.equal(torch.get_rng_state(), before)
