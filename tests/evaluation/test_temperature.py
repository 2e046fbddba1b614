"""One temperature: against scipy and closed forms, through predict, evaluate, save and load."""

import math

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn

import leanbayes as lb
from leanbayes.convert import record
from leanbayes.errors import EvaluationError, LeanBayesWarning
from leanbayes.evaluation import temperature
from leanbayes.evaluation.temperature import calibrate_, fit_temperature
from leanbayes.likelihoods import Classification, Custom, Segmentation


def case(seed=0, samples=1, rows=400, classes=5, true=2.0):
    """Logits whose labels were drawn at another temperature."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(samples, rows, classes, generator=generator)
    average = (logits / true).softmax(-1).mean(0)
    return logits, torch.multinomial(average, 1, generator=generator).squeeze(1)


def loop_nll(logits, targets, t):
    """By the definition, a datum at a time."""
    total = 0.0
    for i, y in enumerate(targets.tolist()):
        mixed = sum(float((f.double() / t).softmax(0)[y]) for f in logits[:, i]) / len(logits)
        total -= math.log(max(mixed, 1e-300))  # at the coldest it underflows
    return total / len(targets)


@pytest.mark.parametrize("seed", range(3))
def test_one_sample_is_where_the_derivative_in_the_inverse_temperature_is_zero(seed):
    """d NLL / d beta = mean of E_p[f] - f_y: convex in beta, so that a root of it is the answer (Guo et al. 2017)."""
    (logits,), targets = case(seed)
    beta = 1 / fit_temperature(logits, targets)

    def slope(beta):
        f = logits.double()
        return float(((f * beta).softmax(1) * f).sum(1).mean() - f.gather(1, targets[:, None]).mean())

    assert slope(beta * (1 - 1e-4)) < 0 < slope(beta * (1 + 1e-4))
    assert fit_temperature(logits[None], targets) == 1 / beta


@pytest.mark.parametrize("true", [0.3, 1.0, 4.0])
def test_the_average_over_samples_equals_a_search_by_scipy(true):
    logits, targets = case(1, samples=3, rows=60, true=true)
    found = fit_temperature(logits, targets)
    expected = minimize_scalar(
        lambda x: loop_nll(logits, targets, math.exp(x)),
        bounds=(math.log(found) - 1, math.log(found) + 1),
        method="bounded",
        options={"xatol": 1e-6},
    )
    assert found == pytest.approx(math.exp(expected.x), rel=1e-4)
    everywhere = [loop_nll(logits, targets, t) for t in torch.logspace(-2, 2, 40).tolist()]
    assert loop_nll(logits, targets, found) <= min(everywhere) + 1e-12


def test_the_true_temperature_is_found_again():
    logits, targets = case(0, samples=4, rows=20_000, true=2.0)
    assert fit_temperature(logits, targets) == pytest.approx(2.0, rel=0.05)


def test_closed_form_for_two_classes_and_for_votes():
    """k of n right at logits (a, 0): sigmoid(a / T) = k / n. Votes of 3 to 1 in every datum say the same."""
    logits = torch.tensor([[4.0, 0.0]] * 4)
    expected = 4 / math.log(3)
    assert fit_temperature(logits, torch.tensor([0, 0, 0, 1])) == pytest.approx(expected, rel=1e-4)
    assert fit_temperature(logits, torch.tensor([[3, 1]] * 4)) == pytest.approx(expected, rel=1e-4)
    assert fit_temperature(logits, torch.tensor([[0.75, 0.25]] * 4)) == pytest.approx(expected, rel=1e-4)


def test_one_where_nothing_is_better():
    assert fit_temperature(torch.zeros(2, 10, 3), torch.arange(10) % 3) == 1.0


def test_the_ends_of_the_bracket_are_reported():
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    with pytest.warns(LeanBayesWarning, match="too easy"):
        assert fit_temperature(logits, torch.tensor([0, 1])) == 0.01
    with pytest.warns(LeanBayesWarning, match="no information"):
        assert fit_temperature(logits, torch.tensor([1, 0])) == 100.0


def test_data_that_are_all_classified_correctly_leave_a_model_as_it_is():
    model, x, y = torch.nn.Identity(), torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    with pytest.warns(LeanBayesWarning, match="so it is 1: the held-out data are too easy"):
        assert calibrate_(model, (x, y), task="classification", progress=False) == 1.0


@pytest.mark.parametrize(
    ("logits", "targets", "message"),
    [
        (torch.zeros(0, 2), torch.zeros(0).long(), "at least one datum"),
        (torch.tensor([[0.0, 1.0], [math.nan, 0.0]]), torch.tensor([0, 1]), r"logits\[1, 0\]"),
        (torch.zeros(3, 2), torch.tensor([0, 1, 2]), r"targets\[2\].*0\.\.1"),
        (torch.zeros(3, 2), torch.tensor([0, 1]), r"expected shape \(3,\)"),
        (torch.zeros(3), torch.tensor([0, 1, 1]), r"\(samples, N, classes\)"),
        (torch.zeros(1, 3, 2, 4), torch.zeros(3, 4).long(), r"\(samples, N, classes\)"),
        (torch.zeros(0, 3, 2), torch.zeros(3).long(), r"\(samples, N, classes\)"),
        ([[0.0, 1.0]], torch.tensor([0]), "torch tensor"),
    ],
)
def test_bad_input_is_refused(logits, targets, message):
    with pytest.raises(EvaluationError, match=message):
        fit_temperature(logits, targets)


def overconfident(seed=0, bayesian=True):
    """A network, and held-out data that it is too sure of."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    with torch.no_grad():
        model[2].weight.mul_(8)
    x = torch.randn(500, 4)
    y = torch.multinomial((model(x) / 2.5).softmax(1), 1).squeeze(1)
    if bayesian:
        lb.bayesianize_(model, lb.MeanField())
    return model, x, y


@pytest.mark.parametrize("bayesian", [True, False])
def test_calibrate_equals_the_pure_function_on_the_logits_of_predict(bayesian):
    model, x, y = overconfident(bayesian=bayesian)
    raw = Custom(lambda f, t: f[:, 0])  # keeps the outputs as they are
    logits = lb.predict(model, x, samples=6, seed=3, task=raw, keep_samples=True).samples
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=77)
    found = calibrate_(model, loader, task="classification", samples=6, seed=3, progress=False)
    assert found == pytest.approx(fit_temperature(logits, y), rel=1e-4)
    again = calibrate_(model, (x, y), samples=6, seed=3, progress=False)
    assert again == pytest.approx(found, rel=1e-4)  # from the logits, not from the last temperature


def test_predict_evaluate_save_and_load_honour_it(tmp_path):
    model, x, y = overconfident()
    options = {"samples": 8, "seed": 0}
    before = lb.predict(model, x, task="classification", **options)
    found = calibrate_(model, (x, y), task="classification", progress=False, **options)
    assert found > 1
    after = lb.predict(model, x, **options)
    raw = lb.predict(model, x, task=Custom(lambda f, t: f[:, 0]), keep_samples=True, **options).samples
    torch.testing.assert_close(after.probs, (raw / found).softmax(-1).mean(0))
    nll = [-float(prediction.log_prob(y).mean()) for prediction in (before, after)]
    assert nll[1] < nll[0]
    result = lb.evaluate(model, (x, y), progress=False, **options)
    assert result.metrics["nll"] == pytest.approx(nll[1], abs=1e-6)
    assert f"temperature={found}" in result.settings["likelihood"]
    path = lb.save(model, tmp_path / "model.safetensors")
    fresh = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    lb.load(path, into=fresh)
    torch.testing.assert_close(lb.predict(fresh, x, **options).probs, after.probs)
    assert record.get(fresh).likelihood == {"kind": "Classification", "version": 1, "temperature": found}


def test_fit_starts_at_one_again():
    model, x, y = overconfident()
    calibrate_(model, (x, y), task="classification", samples=2, progress=False)
    lb.fit(model, (x, y), task="classification", epochs=1, progress=False)
    assert record.get(model).likelihood == {"kind": "Classification", "version": 1}


def test_mean_only_is_one_pass_at_the_means():
    model, x, y = overconfident()
    with lb.using(mean_only=True), torch.no_grad():
        logits = model(x)
    found = calibrate_(model, (x, y), task="classification", mean_only=True, progress=False)
    assert found == pytest.approx(fit_temperature(logits, y), rel=1e-4)


def test_pixels_count_one_by_one_and_ignored_ones_not():
    torch.manual_seed(0)
    model = nn.Conv2d(1, 3, 1)
    x = 4 * torch.randn(6, 1, 5, 4)
    y = torch.multinomial((model(x) / 2).softmax(1).movedim(1, -1).reshape(-1, 3), 1).reshape(6, 5, 4)
    y[0, 0] = 255
    flat, labels = model(x).detach().movedim(1, -1).reshape(-1, 3), y.flatten()
    found = calibrate_(model, [(x[:4], y[:4]), (x[4:], y[4:])], task=Segmentation(255), progress=False)
    assert found == pytest.approx(fit_temperature(flat[labels != 255], labels[labels != 255]), rel=1e-4)
    assert record.get(model).likelihood["temperature"] == found
    assert record.get(model).likelihood["ignore_index"] == 255


def test_more_logits_than_the_limit_are_a_fair_sample(monkeypatch):
    model, x, y = overconfident(bayesian=False)
    x, y = x.repeat(4, 1), y.repeat(4)
    monkeypatch.setattr(temperature, "LIMIT", 300 * 3)
    sizes = []
    whole = fit_temperature(model(x).detach(), y)
    fitted = temperature._fitted
    monkeypatch.setattr(temperature, "_fitted", lambda f, t, easy: sizes.append(f.shape) or fitted(f, t, easy))
    batched = [(x[at : at + 128], y[at : at + 128]) for at in range(0, 2000, 128)]
    found = calibrate_(model, batched, task="classification", progress=False)
    assert sizes == [(1, 300, 3)]
    assert found == pytest.approx(whole, rel=0.25)  # 300 of 2,000 data: the standard error of log T is about 0.07
    assert calibrate_(model, batched, task="classification", progress=False) == found
    # the chance of being in the sample is the same for the first data and the last
    sample = temperature._Sample(seed=0)
    for at in range(0, 9000, 100):
        sample.add(iter([torch.arange(at, at + 100.0)[:, None].repeat(1, 3)]), torch.zeros(100).long(), 1, None)
    drawn = sample.drawn()[0][0, :, 0]
    assert len(drawn.unique()) == 300
    assert abs(float(drawn.mean()) - 4500) < 4 * 9000 / math.sqrt(12 * 300)


def test_what_has_no_temperature_is_refused_and_the_model_left_alone():
    model, x, y = overconfident()
    with pytest.raises(EvaluationError, match=r"classification or segmentation, received regression"):
        calibrate_(model, (x, y), task="regression", progress=False)
    with pytest.raises(EvaluationError, match=r"targets\[300\].*0\.\.2, received 3"):
        calibrate_(model, (x, torch.where(torch.arange(500) == 300, 3, y)), task="classification", progress=False)
    with pytest.raises(EvaluationError, match="loader: expected at least one datum"):
        calibrate_(model, [], task="classification", progress=False)
    with pytest.raises(EvaluationError, match="samples"):
        calibrate_(model, (x, y), task="classification", samples=0, progress=False)
    with pytest.raises(EvaluationError, match=r"nn\.Module"):
        calibrate_(None, (x, y), task="classification", progress=False)
    spoilt = x.clone()
    spoilt[7] = math.nan
    with pytest.raises(EvaluationError, match=r"probs\[7\].*NaN in the model's outputs"):
        calibrate_(model, (spoilt, y), task="classification", progress=False)
    assert record.get(model).likelihood is None
    assert model.training


def test_single_column_networks_have_one_too():
    torch.manual_seed(0)
    model, x = nn.Linear(3, 1), 5 * torch.randn(300, 3)
    y = torch.bernoulli((model(x).detach() / 3).sigmoid()).long().squeeze(1)
    found = calibrate_(model, (x, y), task="classification", progress=False)
    logits = torch.cat([torch.zeros(300, 1), model(x).detach()], 1)
    assert found == pytest.approx(fit_temperature(logits, y), rel=1e-4)
    torch.testing.assert_close(Classification(found).probs(model(x))[:, 1], (model(x) / found).sigmoid().squeeze(1))


def test_a_task_by_its_name_means_the_models_own_likelihood():
    """What `calibrate_` found is used whether or not the task is said again; another likelihood is taken as given."""
    model, x = nn.Identity(), torch.tensor([[4.0, 0.0]] * 4)
    lb.calibrate_(model, (x, torch.tensor([0, 0, 0, 1])), task="classification", progress=False)
    scaled = lb.predict(model, x).probs
    assert torch.equal(scaled, lb.predict(model, x, task="classification").probs)
    assert not torch.allclose(scaled, lb.predict(model, x, task=lb.Classification()).probs)
