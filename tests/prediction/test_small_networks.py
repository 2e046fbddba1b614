"""What makes predictions of small networks quick, and that it changes no values and leaves no trace."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import models, sampling
from leanbayes.kernels import convolution
from leanbayes.prediction import draws, engine as engine_module, probe
from leanbayes.prediction.pooling import fast_max_pooling


def convnet(method):
    torch.manual_seed(0)
    model = models.build("convnet")
    lb.bayesianize_(model, method)
    return model


def ask(model, x, samples=6, **options):
    return lb.predict(model, x, samples, task="classification", **options)


@pytest.fixture
def nothing_kept():
    draws._kept.clear()
    yield
    draws._kept.clear()


METHODS = [lb.MeanField(), lb.VariationalDropout(), lb.Dropout(0.3), lb.SparseSubspace(density=0.3), lb.Nested()]


@pytest.mark.parametrize("data", [1, 64])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_few_data_are_asked_all_samples_at_once_and_answer_as_in_a_loop(method, data):
    if data > 1 and not convolution.narrow(models.build("convnet").conv2):
        pytest.skip("no kernels")
    model, x = convnet(method), torch.randn(data, 1, 8, 8)
    together, apart = ask(model, x), ask(model, x, strategy="loop")
    assert (together.engine, apart.engine) == ("vmap", "loop")
    assert torch.allclose(together.probs, apart.probs, atol=1e-5)
    assert torch.equal(together.probs, ask(model, x).probs)  # a seed repeats an answer to the last bit


@pytest.mark.parametrize("method", [*METHODS, lb.Variance()], ids=lambda m: type(m).__name__)
def test_weights_of_all_samples_are_those_drawn_one_by_one(method, monkeypatch):
    model, x = convnet(method), torch.randn(512, 1, 8, 8)
    if isinstance(method, lb.MeanField):
        lb.prune_(model, fraction=0.5, scope="layer")
    together = ask(model, x, keep_samples=True)
    monkeypatch.setattr(engine_module.Weights, "of_samples", lambda self, site: None)
    apart = ask(model, x, keep_samples=True)
    assert (together.engine, apart.engine) == ("loop", "loop")
    assert torch.equal(together.samples, apart.samples)


def test_a_posterior_with_a_law_of_its_own_draws_one_by_one():
    class Halved(lb.posteriors.Gaussian):
        def sample(self, noise=None):
            return 0.5 * super().sample(noise)

    model, x = convnet(lb.MeanField()), torch.randn(512, 1, 8, 8)
    posteriors = model.dense2.posteriors
    before = ask(model, x).probs
    posteriors["weight"] = Halved(*posteriors["weight"].parameters())
    assert torch.equal(ask(model, x).probs, ask(model, x, strategy="loop").probs)
    assert not torch.allclose(ask(model, x).probs, before, atol=1e-3)


def test_the_choice_depends_on_the_number_of_data_and_not_on_a_clock():
    model = convnet(lb.MeanField())
    assert ask(model, torch.randn(2, 1, 8, 8)).engine == "vmap"
    assert ask(model, torch.randn(2048, 1, 8, 8), samples=2).engine == "loop"


def test_operations_are_counted_at_the_first_call_and_again_when_the_model_changes(monkeypatch):
    counted = []

    def counting(*args):
        counted.append(args)
        return probe.probe(*args)

    monkeypatch.setattr(engine_module, "probe", counting)
    model, x = convnet(lb.Nested()), torch.randn(3, 1, 8, 8)
    first = ask(model, x)
    assert torch.equal(ask(model, x).probs, first.probs)
    ask(model, torch.randn(5, 1, 8, 8))
    assert len(counted) == 1
    lb.set_width_(model, 0.5)
    ask(model, x)
    model.act3 = nn.Tanh()
    ask(model, x)
    ask(copy.deepcopy(model), x)
    assert len(counted) == 4


@pytest.mark.usefixtures("nothing_kept")
def test_noise_is_kept_between_predictions_with_the_values_that_are_drawn(monkeypatch):
    model, x = convnet(lb.MeanField()), torch.randn(2, 1, 8, 8)
    first = ask(model, x)
    assert sum(t.numel() for t in draws._kept.values()) == 6 * sum(
        q.shape.numel() for q in sampling.sites(model).values()
    )
    for (_, seed, number, samples, balanced), kept in draws._kept.items():
        site = list(sampling.sites(model).values())[number]
        assert torch.equal(kept, draws.noise(site, seed, number, samples, balanced))

    def never(*args):
        raise AssertionError("drawn again")

    monkeypatch.setattr(draws, "noise", never)
    assert torch.equal(ask(model, x).probs, first.probs)


@pytest.mark.usefixtures("nothing_kept")
def test_what_is_kept_is_bounded_and_the_oldest_goes_first(monkeypatch):
    monkeypatch.setattr(draws, "KEPT", 100)
    sites = list(sampling.sites(convnet(lb.MeanField())).values())
    bias = next(s for s in sites if s.shape == (16,))
    for seed in range(4):
        draws.kept_noise(bias, seed, 0, (0, 1), None)
    assert [key[1] for key in draws._kept] == [1, 2, 3]
    draws.kept_noise(bias, 1, 0, (0, 1), None)
    assert [key[1] for key in draws._kept] == [2, 3, 1]
    whole = draws.kept_noise(bias, 0, 0, tuple(range(9)), None)  # more than may be kept
    assert whole.shape == (9, 16)
    assert len(draws._kept) == 3


def test_predictions_follow_the_parameters_whatever_is_kept():
    model, x = convnet(lb.MeanField()), torch.randn(300, 1, 8, 8)
    before = ask(model, x, samples=2, strategy="loop")
    for site in sampling.sites(model).values():
        site.rho.data.fill_(-30.0)
    after = ask(model, x, samples=2, strategy="loop")
    assert not torch.allclose(after.probs, before.probs)
    assert torch.allclose(after.probs, ask(model, x, mean_only=True).probs, atol=1e-5)
    assert sampling.context.scales is None


POOLS = [{"kernel_size": 2}, {"kernel_size": (3, 2)}, {"kernel_size": 2, "stride": 1}, {"kernel_size": 3, "padding": 1}]
POOLS += [{"kernel_size": 2, "ceil_mode": True}, {"kernel_size": 2, "dilation": 2}, {"kernel_size": 1}]


@pytest.mark.parametrize("options", POOLS, ids=str)
def test_max_pooling_is_torch_s_to_the_last_bit(options):
    layer = nn.MaxPool2d(**options)
    x = torch.randn(2, 3, 12, 6)
    x[0, 0, 0, 0] = torch.nan
    for each in (x, x[0], x[:, :, :11, :5], x.to(memory_format=torch.channels_last)):
        with torch.no_grad(), fast_max_pooling(nn.Sequential(layer)):
            found = layer(each)
        assert torch.equal(found.nan_to_num(9.0), layer(each).nan_to_num(9.0))
    assert "forward" not in vars(layer)


def test_max_pooling_keeps_torch_s_gradients_and_indices():
    x = torch.zeros(1, 1, 4, 4, requires_grad=True)
    layer, both = nn.MaxPool2d(2), nn.MaxPool2d(2, return_indices=True)
    with fast_max_pooling(nn.ModuleList([layer, both])):
        layer(x).sum().backward()
        with torch.no_grad():
            assert len(both(x)) == 2
    assert int(x.grad.count_nonzero()) == 4  # equal numbers: the first of each window, not a share for all


def test_rectifiers_and_maxima_of_all_samples_are_torchs():
    """In memory that is used again, where it is a megabyte or more."""
    x = torch.randn(40, 16, 4, 16, 32)
    x[0, 0, 0, 0, 0], x[1, 0, 0, 0, 0] = float("nan"), -0.0
    model = nn.Sequential(nn.ReLU(), nn.MaxPool2d((2, 4)), nn.ReLU(inplace=True))
    for dim in (0, 2, 4):
        given = x.movedim(0, dim)
        before = given.clone()
        with torch.no_grad(), fast_max_pooling(model):
            found = torch.vmap(model, dim)(given)
            nested = torch.vmap(torch.vmap(model))(x[None])
        expected = torch.nn.functional.max_pool2d(x.flatten(0, 1).relu(), (2, 4)).unflatten(0, (40, 16))
        assert torch.allclose(found, expected, 0, 0, equal_nan=True)
        assert torch.equal(found.signbit(), expected.signbit())
        assert torch.allclose(nested[0], expected, 0, 0, equal_nan=True)
        assert torch.allclose(given, before, 0, 0, equal_nan=True)
