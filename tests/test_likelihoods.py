import json
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.distributions import Bernoulli, Categorical, Normal

from leanbayes.errors import ConfigError, DataError, LeanBayesError, PredictionError
from leanbayes.likelihoods import Classification, Custom, Regression, Segmentation, from_dict, likelihood


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_classification_is_categorical():
    logits, labels = randn(7, 4), torch.arange(7) % 4
    torch.testing.assert_close(Classification().log_prob(logits, labels), Categorical(logits=logits).log_prob(labels))
    torch.testing.assert_close(Classification().probs(logits), logits.softmax(-1))
    assert Classification().probs(randn(3, 7, 4)).shape == (3, 7, 4)  # samples in front are welcome


def test_one_column_is_bernoulli():
    logits, labels = randn(7, 1), torch.arange(7) % 2
    expected = Bernoulli(logits=logits[:, 0]).log_prob(labels.float())
    torch.testing.assert_close(Classification().log_prob(logits, labels), expected)
    torch.testing.assert_close(Classification().log_prob(logits, labels.bool()[:, None]), expected)
    torch.testing.assert_close(Classification().probs(logits)[:, 1], logits[:, 0].sigmoid())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_a_temperature_divides_the_logits(temperature):
    logits, labels = randn(7, 4), torch.arange(7) % 4
    scaled = Categorical(logits=logits / temperature)
    torch.testing.assert_close(Classification(temperature).log_prob(logits, labels), scaled.log_prob(labels))
    torch.testing.assert_close(Classification(temperature).probs(logits), scaled.probs)
    column, two = randn(7, 1), torch.arange(7) % 2
    expected = Bernoulli(logits=column[:, 0] / temperature).log_prob(two.float())
    torch.testing.assert_close(Classification(temperature).log_prob(column, two), expected)
    pixels, classes = randn(2, 3, 4, 5), torch.arange(40).reshape(2, 4, 5) % 3
    expected = (pixels / temperature).log_softmax(1).gather(1, classes[:, None]).sum((1, 2, 3))
    torch.testing.assert_close(Segmentation(temperature=temperature).log_prob(pixels, classes), expected)
    torch.testing.assert_close(Segmentation(temperature=temperature).probs(pixels), (pixels / temperature).softmax(1))
    assert not list(Classification(temperature).parameters())


def test_another_temperature_leaves_the_rest_as_it_was():
    warm = Segmentation(7, "mean").at(1.5)
    assert (warm.ignore_index, warm.reduction, warm.temperature) == (7, "mean", 1.5)
    assert warm.at(1.0).to_dict() == Segmentation(7, "mean").to_dict()
    assert Classification().to_dict() == {"kind": "Classification", "version": 1}  # as before there were temperatures
    assert Classification(2).to_dict() == {"kind": "Classification", "version": 1, "temperature": 2.0}
    for temperature in (0, -1.0, math.inf, math.nan, "1", True, None):
        with pytest.raises(ConfigError, match="temperature"):
            Classification(temperature)
        with pytest.raises(ConfigError, match="temperature"):
            from_dict({"kind": "Segmentation", "version": 1, "temperature": temperature})


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_several_annotators_are_averaged_and_one_is_drawn(reduction):
    logits, labels = randn(3, 2, 4, 5), torch.randint(0, 2, (3, 6, 4, 5), generator=torch.Generator().manual_seed(0))
    labels[:, 2, :2] = 255
    model = Segmentation(255, reduction)
    each = torch.stack([model.log_prob(logits, labels[:, i]) for i in range(6)])
    torch.testing.assert_close(model.log_prob(logits, labels), each.mean(0))
    torch.testing.assert_close(model.log_prob(logits, labels[:, :1]), each[0])
    torch.manual_seed(0)
    drawn = torch.stack([model.drawn(logits, labels) for _ in range(3000)])
    which = (drawn.unsqueeze(2) == labels).flatten(3).all(3).double()  # (draws, images, annotators)
    assert (which.sum(2) == 1).all()
    assert (which.mean(0) - 1 / 6).abs().max() < 4 * (5 / 36 / 3000) ** 0.5
    state = torch.get_rng_state()
    assert torch.equal(model.drawn(logits, labels[:, 0]), labels[:, 0])
    assert torch.equal(torch.get_rng_state(), state)  # one annotator: nothing is drawn


def test_segmentation_sums_over_labelled_pixels():
    logits, labels = randn(2, 3, 4, 5), torch.arange(40).reshape(2, 4, 5) % 3
    labels[0, 0, 0] = 255
    pixels = logits.log_softmax(1).gather(1, labels.clamp(max=2)[:, None])[:, 0]
    pixels[0, 0, 0] = 0
    torch.testing.assert_close(Segmentation(255).log_prob(logits, labels), pixels.sum((1, 2)))
    torch.testing.assert_close(Segmentation(255).log_prob(logits, labels[:, None]), pixels.sum((1, 2)))
    mean = Segmentation(255, "mean").log_prob(logits, labels)
    torch.testing.assert_close(mean, pixels.sum((1, 2)) / torch.tensor([19, 20]))
    assert Segmentation().probs(randn(2, 1, 4, 5)).shape == (2, 2, 4, 5)
    with pytest.raises(DataError, match=r"received 255 at \[0, 0, 0\]"):
        Segmentation().log_prob(logits, labels)


@pytest.mark.parametrize("noise", ["fixed", "learned"])
def test_regression_is_normal(noise):
    mean, y = randn(6, 3), randn(6, 3) + 1
    model = Regression(noise, std=0.7)
    torch.testing.assert_close(model.log_prob(mean, y), Normal(mean, 0.7).log_prob(y).sum(1))
    assert model.std == pytest.approx(0.7, rel=1e-6)
    got, variance = model.mean_and_noise(mean)
    torch.testing.assert_close(got, mean)
    torch.testing.assert_close(variance, torch.full((6, 3), 0.49))
    assert len(list(model.parameters())) == (noise == "learned")


def test_heteroscedastic_reads_halves():
    outputs, y = randn(6, 4), randn(6, 2)
    std = nn.functional.softplus(outputs[:, 2:]) + Regression.MIN_STD
    model = Regression("heteroscedastic")
    torch.testing.assert_close(model.log_prob(outputs, y), Normal(outputs[:, :2], std).log_prob(y).sum(1))
    extreme = torch.tensor([[0.0, -1e4]])  # a network that is sure beyond all measure
    assert torch.isfinite(model.log_prob(extreme, torch.zeros(1, 1))).all()
    with pytest.raises(DataError, match="twice as many outputs"):
        model.log_prob(randn(6, 3), y)
    with pytest.raises(DataError, match="twice as many outputs"):
        model.log_prob(randn(6, 2), y)


def test_regression_never_broadcasts():
    model, y = Regression(), randn(5)
    expected = Normal(torch.zeros(5), 1.0).log_prob(y)
    for outputs in (torch.zeros(5), torch.zeros(5, 1)):
        for targets in (y, y[:, None], y.double()):
            torch.testing.assert_close(model.log_prob(outputs, targets), expected)
    for outputs, targets in [
        ((5, 1), (4,)),
        ((5, 2), (5,)),
        ((5, 2), (5, 1)),
        ((5, 1), (1, 5)),
        ((5, 1), ()),
        ((5,), (1,)),
    ]:
        with pytest.raises(DataError, match="expected targets of shape"):
            model.log_prob(torch.zeros(outputs), torch.zeros(targets))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([0, 1, 3]), r"expected 0 to 2 .* received 3 at \[2\]"),
        (torch.tensor([0, -1, 1]), r"received -1 at \[1\]"),
        (torch.eye(3), r"targets.argmax\(1\)"),
        (torch.eye(3, dtype=torch.long), r"one-hot.*argmax"),
        (torch.tensor([0.0, 1.0, 2.0]), r"targets.long\(\)"),
        (torch.tensor([0, 1]), r"expected shape \(3,\)"),
        (None, "must yield"),
        ([0, 1, 2], "received list"),
    ],
)
def test_bad_labels(targets, message):
    with pytest.raises(DataError, match=message):
        Classification().log_prob(randn(3, 3), targets)


@pytest.mark.parametrize(
    ("model", "outputs", "targets", "message"),
    [
        (Classification(), (3,), torch.zeros(3).long(), r"\(batch, classes\)"),
        (Classification(), (3, 2, 4, 4), torch.zeros(3).long(), "segmentation"),
        (Segmentation(), (3, 2), torch.zeros(3).long(), "batch, classes"),
        (Regression(), (2, 1), torch.tensor([0.0, math.nan]), r"received nan at \[1, 0\]"),
        (Regression(), (2, 1), torch.tensor([True, False]), "real targets"),
        (Regression(), (2, 1), torch.zeros(2, dtype=torch.cfloat), "real targets"),
    ],
)
def test_bad_outputs_and_targets(model, outputs, targets, message):
    with pytest.raises(DataError, match=message):
        model.log_prob(torch.zeros(outputs), targets)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["classification", "regression", "segmentation"]),
    st.lists(st.integers(0, 3), max_size=4),
    st.lists(st.integers(0, 3), max_size=4),
    st.sampled_from([torch.float32, torch.int64, torch.bool]),
)
def test_any_shapes_give_one_number_a_datum_or_an_error(task, outputs, targets, dtype):
    try:
        value = likelihood(task).log_prob(torch.zeros(outputs), torch.ones(targets, dtype=dtype))
    except LeanBayesError:
        return
    assert value.shape == (outputs[0],)
    assert math.prod(targets) in (
        math.prod(outputs),
        math.prod(outputs) // max(outputs[1] if len(outputs) > 1 else 1, 1),
    )


def test_half_precision_is_raised():
    logits, labels = randn(2, 3, 64, 64).half() * 20, torch.zeros(2, 64, 64).long()
    assert Segmentation().log_prob(logits, labels).dtype == torch.float32
    assert torch.isfinite(Regression().log_prob(torch.full((1, 1), 300.0).half(), torch.zeros(1))).all()


@pytest.mark.parametrize(
    "model",
    [
        Classification(),
        Classification(1.7),
        Segmentation(7, "mean"),
        Segmentation(7, "mean", 0.4),
        Regression("fixed", 0.3),
        Regression("learned", 0.3),
        Regression("heteroscedastic"),
    ],
)
def test_json_round_trip(model):
    again = from_dict(json.loads(json.dumps(model.to_dict())))
    assert type(again) is type(model)
    outputs = randn(2, 2, 2, 2) if isinstance(model, Segmentation) else randn(2, 2)
    targets = (
        torch.ones(2, 1) if isinstance(model, Regression) and model.noise == "heteroscedastic" else torch.ones(2, 2)
    )
    targets = torch.ones(2, 2, 2).long() if isinstance(model, Segmentation) else targets
    targets = torch.ones(2).long() if isinstance(model, Classification) else targets
    torch.testing.assert_close(again.log_prob(outputs, targets), model.log_prob(outputs, targets))
    assert again.to_dict() == model.to_dict()


def test_bad_dictionaries_and_tasks():
    for data in ({}, None, {"kind": "os.system"}, {"kind": "Regression", "std": -1}, {"kind": "Regression", "x": 1}):
        with pytest.raises(ConfigError):
            from_dict(data)
    with pytest.raises(ConfigError, match="newer"):
        from_dict({"kind": "Regression", "version": 2})
    for task in ("classify", 3, None, Regression, nn.CrossEntropyLoss()):
        with pytest.raises(ConfigError):
            likelihood(task)
    for kwargs in ({"noise": "loud"}, {"std": 0}, {"std": math.nan}, {"std": "1"}):
        with pytest.raises(ConfigError):
            Regression(**kwargs)


def test_custom():
    poisson = likelihood(lambda f, y: y * f[:, 0] - f[:, 0].exp())
    assert isinstance(poisson, Custom)
    assert poisson.to_dict() is None
    assert poisson.log_prob(torch.zeros(3, 1), torch.ones(3)).shape == (3,)
    for method in ("probs", "mean_and_noise"):
        with pytest.raises(PredictionError, match=f"Custom\\(f, {method}="):
            getattr(poisson, method)(torch.zeros(3, 1))
    with pytest.raises(DataError, match=r"shape \(3,\), received \(3, 1\)"):
        likelihood(lambda f, y: f).log_prob(torch.zeros(3, 1), None)
    with pytest.raises(DataError, match="received float"):
        likelihood(lambda f, y: 1.0).log_prob(torch.zeros(3, 1), None)
    told = Custom(lambda f, y: f[:, 0], probs=lambda f: f.softmax(1), mean_and_noise=lambda f: (f, f))
    assert told.probs(torch.zeros(1, 2)).tolist() == [[0.5, 0.5]]
    assert told.mean_and_noise(torch.zeros(1, 1))[0].item() == 0


def test_what_a_task_does_not_have():
    with pytest.raises(PredictionError, match="mean_and_noise"):
        Regression().probs(torch.zeros(1, 1))
    with pytest.raises(PredictionError, match="probs"):
        Classification().mean_and_noise(torch.zeros(1, 1))
