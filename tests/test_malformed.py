"""Whatever is typed in: an error of leanbayes (or one that torch documents), and never a half-converted model."""

import contextlib
import dataclasses
import math

import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import nn
from torch.nn.utils import parametrizations

import leanbayes as lb
from leanbayes.config import from_dict, to_dict
from leanbayes.convert.record import conversions
from leanbayes.registry import methods

from .snapshots import snapshot


def tries(count):
    """So many examples, the same ones in every run."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=slow)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from([10**400, -(10**400), math.nan, math.inf, "local", "weight", "molchanov", object, object()]),
)
JUNK = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=4,
)
KINDS = ["Normal", "LogUniform", "StudentT", "ScaleMixture", *sorted(methods())]
FIELDS = sorted(
    {field for name in methods() for field in to_dict(methods()[name]())} | {"mean", "df", "scale", "float"}
)
CONFIGS = st.recursive(
    JUNK,
    lambda inner: st.fixed_dictionaries(
        {"kind": st.sampled_from(KINDS) | inner},
        optional={field: inner for field in FIELDS if field != "kind"},
    ),
    max_leaves=6,
)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.2))
        self.normed = parametrizations.weight_norm(nn.Linear(4, 4))
        self.lstm = nn.LSTM(4, 4)
        self.decoder = nn.Linear(4, 5, bias=False)
        self.decoder.weight = self.embed.weight

    def forward(self, x):
        return self.decoder(self.normed(self.body(x)))


def raising(name, module):
    raise KeyError(name)


GOOD = st.sampled_from(
    [
        lb.MeanField(),
        lb.MeanField(std=0.5, random_bias=False, estimator="flipout"),
        lb.MeanField(keep_weights=False),
        lb.VariationalDropout(),
        lb.VariationalDropout(parameterisation="multiplicative", granularity="neuron"),
        lb.Dropout(),
        lb.Dropout(0.5),
        None,
    ]
)
SELECTORS = st.one_of(
    st.sampled_from(["*", "body", "body.*", "body.0", "embed", "decoder", "dec*", "lstm", "normed", "", "[", "boddy"]),
    st.sampled_from([nn.Linear, nn.Embedding, nn.Module, nn.LSTM, nn.Dropout, nn.BatchNorm1d, nn.Conv2d, int, type]),
    st.sampled_from([raising, lambda name, module: True, lambda module: True, lambda name, module: 1 / 0]),
    st.sampled_from(["module:embed", "module:decoder", "module:body", "module:", "module:lstm", "module:foreign"]),
    st.text(max_size=3),
    st.integers(),
    st.none(),
)
RULES = st.one_of(
    GOOD,
    JUNK,
    st.sampled_from([lb.MeanField, lb.Dropout, lb.Normal()]),
    st.dictionaries(SELECTORS, st.one_of(GOOD, GOOD, JUNK), max_size=4),
)


def resolved(rules, model):
    """Rules in which "module:name" has become that module of the model."""
    if not isinstance(rules, dict):
        return rules
    modules = {**dict(model.named_modules()), "foreign": nn.Linear(2, 2)}
    marked = (isinstance(k, str) and k.startswith("module:") for k in rules)
    return {modules[k[7:]] if m else k: v for (k, v), m in zip(rules.items(), marked, strict=True)}


@tries(250)
@given(rules=RULES, strict=st.sampled_from([False, False, True]))
def test_rules(rules, strict):
    model = Mixed()
    rules = resolved(rules, model)
    before = snapshot(model)
    try:
        planned = lb.plan(model, rules, strict=strict)
    except lb.LeanBayesError:
        planned = None
    assert snapshot(model) == before
    try:
        done = lb.bayesianize_(model, rules, strict=strict)
    except lb.LeanBayesError:
        assert planned is None
        assert snapshot(model) == before
        return
    assert done == planned
    assert sorted(conversions(model)) == sorted(done.converted)
    assert done.parameters_after == sum(p.numel() for p in model.parameters())
    str(done)
    lb.restore_(model)
    assert not conversions(model)


@tries(250)
@given(data=CONFIGS)
def test_configs(data):
    with contextlib.suppress(lb.LeanBayesError):
        built = from_dict(data)
        assert from_dict(to_dict(built)) == built


@tries(120)
@given(name=st.sampled_from(sorted(methods())), values=st.dictionaries(st.sampled_from(FIELDS), SCALARS, max_size=3))
def test_method_arguments(name, values):
    known = {f.name: values[f.name] for f in dataclasses.fields(methods()[name]) if f.name in values}
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    before = snapshot(model)
    try:
        lb.bayesianize_(model, methods()[name](**known))
    except lb.LeanBayesError:
        assert snapshot(model) == before


TENSORS = st.sampled_from(
    [
        torch.ones(2, 4),
        torch.ones(0, 4),
        torch.ones(2, 5),
        torch.ones(4),
        torch.ones(2, 3, 4),
        torch.tensor(1.0),
        torch.ones(2, 4, dtype=torch.long),
        torch.ones(2, 4, dtype=torch.float64),
        torch.full((2, 4), math.nan),
    ]
)
INPUTS = st.one_of(TENSORS, st.lists(TENSORS | SCALARS, max_size=3), st.dictionaries(st.just("input"), TENSORS), JUNK)
ARGUMENTS = st.fixed_dictionaries(
    {"task": st.one_of(st.sampled_from(["classification", "regression", "segmentation"]), JUNK)},
    optional={
        "samples": st.integers(-1, 4) | JUNK.filter(lambda v: not isinstance(v, int)),
        "seed": SCALARS,
        "chunk": st.integers(-1, 4) | SCALARS,
        "settle": SCALARS,
        "mean_only": st.booleans(),
        "keep_samples": st.booleans(),
        "estimator": st.sampled_from(["weight", "local", "flipout"]) | JUNK,
        "strategy": st.sampled_from(["auto", "loop"]) | JUNK,
    },
)


@tries(200)
@given(inputs=INPUTS, arguments=ARGUMENTS)
def test_predict_arguments(inputs, arguments):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 3))
    lb.bayesianize_(model, {"0": lb.MeanField(), "1": lb.Dropout()})
    if arguments.get("seed", 0) is None:
        arguments["seed"] = 1  # None draws from the global generator, by contract
    before, raised_in = snapshot(model), ""
    try:
        assert len(lb.predict(model, inputs, **arguments)) > 0
    except lb.LeanBayesError:
        pass
    except (RuntimeError, TypeError, IndexError) as error:  # what torch says to inputs of a wrong shape or number
        raised_in = _where(error)
    assert not any(room in raised_in for room in ("leanbayes/predict", "leanbayes/batches", "leanbayes/sampling"))
    assert snapshot(model) == before


def _where(error):
    traceback = error.__traceback__
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_code.co_filename
