import copy
import pickle

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import ConversionError, PredictionError
from leanbayes.kl import kl, kl_sum
from leanbayes.layers import BayesLayer
from leanbayes.posteriors import ZeroMeanGaussian

from .cases import CASES, EMBEDDINGS, converted, inputs_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_mean_only_is_the_plain_module_bit_for_bit(case, dtype):
    make, shape = CASES[case]
    module, x = make().to(dtype), inputs_of(shape).to(dtype)
    layer = converted(module, dtype=dtype)
    with lb.using(mean_only=True):
        assert torch.equal(layer(x), module(x))


@pytest.mark.parametrize("case", EMBEDDINGS)
def test_mean_only_is_the_plain_embedding_bit_for_bit(case):
    module, x = EMBEDDINGS[case]().double(), torch.tensor([[0, 1, 4], [1, 2, 2]])
    layer = converted(module)
    with lb.using(mean_only=True):
        assert torch.equal(layer(x), module(x))


@pytest.mark.parametrize("method", [lb.MeanField(), lb.Dropout(0.5)])
def test_a_layer_is_called_as_the_module_was(method):
    wrapped = nn.Sequential(nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1))
    x = torch.randn(1, 2, 4, 4)
    expected = [wrapped[0](x, output_size=[8, 8]), wrapped[0](x, [8, 8]), wrapped[0](input=x)]
    lb.bayesianize_(wrapped, {nn.ConvTranspose2d: method})
    with lb.using(mean_only=True):
        found = [wrapped[0](x, output_size=[8, 8]), wrapped[0](x, [8, 8]), wrapped[0](input=x)]
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    for estimator in ("local", "weight", "flipout"):
        with lb.using(estimator=estimator):
            assert wrapped[0](x, output_size=[8, 8]).shape == (1, 3, 8, 8)


def test_unbatched_inputs_work_as_in_the_plain_module():
    layer = converted(nn.Conv2d(2, 3, 2))
    for estimator in ("local", "weight", "flipout"):
        with lb.using(estimator=estimator):
            assert layer(torch.randn(2, 4, 4, dtype=torch.float64)).shape == (3, 3, 3)


def test_reading_the_weight_gives_a_draw_or_the_mean():
    layer = converted(nn.Linear(4, 3))
    assert not torch.equal(layer.weight, layer.weight)
    assert layer.weight.requires_grad
    with lb.using(mean_only=True):
        assert layer.weight is layer.posteriors["weight"].loc
    noise = {id(q): q.noise() for q in layer.posteriors.values()}
    with lb.using(draws=noise):
        assert torch.equal(layer.weight, layer.weight)
        assert torch.equal(layer.bias, layer.posteriors["bias"].sample(noise[id(layer.posteriors["bias"])]))


def test_options_of_the_module_stay_readable_and_the_rest_is_an_attribute_error():
    layer = converted(nn.Conv2d(2, 3, (3, 2), stride=2, bias=False))
    assert (layer.in_channels, layer.kernel_size, layer.stride) == (2, (3, 2), (2, 2))
    assert layer.bias is None
    with pytest.raises(AttributeError, match="nonsense"):
        layer.nonsense
    assert "Conv2d(2, 3, kernel_size=(3, 2)" in repr(layer)


def test_the_state_dict_holds_the_posteriors_and_nothing_else():
    layer = converted(nn.Linear(4, 3))
    assert set(layer.state_dict()) == {f"posteriors.{n}.{p}" for n in ("weight", "bias") for p in ("loc", "rho")}
    assert set(dict(layer.named_parameters())) == set(layer.state_dict())


def test_kl_is_summed_over_weight_and_bias_but_not_over_padding():
    layer = converted(nn.Linear(4, 3))
    expected = sum(kl(layer.posteriors[n], layer.priors[n]).sum() for n in ("weight", "bias"))
    assert torch.allclose(kl_sum(layer), expected)
    padded = converted(nn.Embedding(5, 3, padding_idx=1))
    terms = kl(padded.posteriors["weight"], padded.priors["weight"])
    assert torch.allclose(kl_sum(padded), terms.sum() - terms[1].sum())


def test_the_padding_row_gets_no_gradient():
    layer = converted(nn.Embedding(5, 3, padding_idx=1))
    for estimator in ("local", "weight", "flipout"):
        layer.zero_grad()
        with lb.using(estimator=estimator):
            (layer(torch.tensor([0, 1, 1, 2])).square().sum() + kl_sum(layer)).backward()
        assert not layer.posteriors["weight"].rho.grad[1].any()
        assert layer.posteriors["weight"].rho.grad[[0, 2, 3, 4]].all()


def zero_mean_layer():
    module = nn.Linear(3, 2, bias=False)
    return BayesLayer(module, {"weight": ZeroMeanGaussian.from_tensor(module.weight)}, {"weight": lb.LogUniform()})


def test_weights_without_a_mean_refuse_mean_only_inference_and_restoring():
    layer, x = zero_mean_layer(), torch.ones(2, 3)
    assert layer(x).shape == (2, 2)
    with lb.using(mean_only=True), pytest.raises(PredictionError, match="meaningless"):
        layer(x)
    with pytest.raises(ConversionError, match="no mean"):
        layer.restored()


def test_posteriors_that_are_not_gaussian_are_sampled_whole():
    class TwoPoint(ZeroMeanGaussian):
        gaussian = False

        def noise(self, generator=None):
            return torch.ones(self.shape).bernoulli_(0.5, generator=generator) * 2 - 1

    module = nn.Linear(1, 1, bias=False)
    layer = BayesLayer(module, {"weight": TwoPoint.from_tensor(torch.ones(1, 1))}, {"weight": lb.LogUniform()})
    y = torch.stack([layer(torch.ones(1, 1)).detach() for _ in range(20)])
    assert torch.allclose(y.abs(), torch.ones(()))


@pytest.mark.parametrize("make", [*(c[0] for c in CASES.values()), *EMBEDDINGS.values()])
def test_copies_and_pickles_are_independent_and_equal(make):
    layer = converted(make())
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(other.restored()) is type(layer.restored())
        for a, b in zip(layer.parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b)
            assert a is not b


def test_restoring_gives_the_module_with_its_flags():
    module = nn.Linear(3, 2)
    module.bias.requires_grad_(False)
    layer = converted(module, dtype=torch.float32).eval()
    back = layer.restored()
    assert type(back) is nn.Linear
    assert torch.equal(back.weight, module.weight)
    assert (back.weight.requires_grad, back.bias.requires_grad, back.training) == (True, False, False)


@pytest.mark.parametrize("estimator", ["local", "weight", "flipout"])
def test_compiles_as_one_graph(estimator):
    torch._dynamo.reset()
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    lb.bayesianize_(model, lb.MeanField(estimator=estimator))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 1, 4, 4)
    first, second = compiled(x), compiled(x)
    assert not torch.equal(first, second)  # the noise is not baked into the graph
    first.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    with lb.using(mean_only=True):
        assert torch.allclose(compiled(x), model(x), atol=1e-6)


@pytest.mark.long  # a C++ compiler takes its time
def test_compiles_with_inductor():
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 3))
    lb.bayesianize_(model, lb.MeanField(std=0.1))
    compiled = torch.compile(model, fullgraph=True)
    x = torch.ones(4000, 4)
    with torch.no_grad(), lb.using(mean_only=True):
        mean = model(x[:1])
    with torch.no_grad():
        draws = compiled(x)
    assert torch.allclose(draws.mean(0), mean[0], atol=5 * 0.1 * 5**0.5 / 4000**0.5)
    assert torch.allclose(draws.std(0), torch.tensor(0.1 * 5**0.5), rtol=5 / 8000**0.5)
