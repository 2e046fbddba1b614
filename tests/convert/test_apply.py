import copy
import io
import pickle

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.convert.implementation import implementation
from leanbayes.convert.record import conversions, get
from leanbayes.errors import ConversionError
from leanbayes.kl import kl_sum
from leanbayes.layers import BayesLayer

from ..snapshots import snapshot

METHODS = [
    lb.MeanField(),
    lb.VariationalDropout(),
    lb.VariationalDropout(parameterisation="multiplicative", granularity="neuron"),
    lb.Dropout(0.3),
]


def network():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def means(model, x):
    with torch.no_grad(), lb.using(mean_only=True):
        return model.eval()(x)


@pytest.mark.parametrize("method", METHODS)
def test_pretrained_weights_become_the_means_and_restore_gives_them_back(method):
    model, x = network(), torch.randn(2, 1, 4, 4)
    plain = copy.deepcopy(model)
    expected = plain.eval()(x)
    report = lb.bayesianize_(model, {nn.Conv2d: method, nn.Linear: method})
    assert report.converted == ["0", "4"]
    assert torch.equal(means(model, x), expected)
    assert lb.restore_(model) is model
    assert torch.equal(model.eval()(x), expected)
    assert list(model.state_dict()) == list(plain.state_dict())
    for a, b in zip(model.modules(), plain.modules(), strict=True):
        assert type(a) is type(b)
        assert repr(a) == repr(b)
    with pytest.raises(ConversionError, match="found none"):
        lb.restore_(model)


def test_means_can_start_afresh():
    model = nn.Sequential(nn.Linear(4, 3))
    before = model[0].weight.clone()
    state = model[0].weight
    lb.bayesianize_(model, lb.MeanField(keep_weights=False))
    assert not torch.equal(model[0].posteriors["weight"].loc, before)
    assert torch.equal(state, before)


def test_methods_compose_in_one_model():
    model = network()
    lb.bayesianize_(model, {nn.Conv2d: lb.Dropout(0.2), nn.Linear: lb.MeanField()})
    assert conversions(model) == {"0": lb.Dropout(0.2), "4": lb.MeanField()}
    model = network()
    lb.bayesianize_(model, {"4": lb.MeanField()})
    lb.bayesianize_(model, {"0": lb.VariationalDropout()})
    assert conversions(model) == {"0": lb.VariationalDropout(), "4": lb.MeanField()}
    with pytest.raises(ConversionError, match="already Bayesian"):
        lb.bayesianize_(model, lb.MeanField())


@pytest.mark.parametrize("method", METHODS)
def test_flags_dtype_and_device_are_kept(method):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)).double()
    model[0].weight.requires_grad_(False)
    model[0].eval()
    lb.bayesianize_(model, {"*": method})
    layer = model[0]
    frozen = layer.posteriors["weight"].loc if isinstance(layer, BayesLayer) else layer.weight
    assert not frozen.requires_grad
    assert not any(m.training for m in layer.modules())
    assert all(m.training for m in model[1].modules())
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    on_meta = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)).to("meta")
    lb.bayesianize_(on_meta, {"*": method})
    assert {p.device.type for p in on_meta.parameters()} == {"meta"}


@pytest.mark.parametrize("method", METHODS)
def test_a_module_in_two_places_is_converted_once(method):
    shared = nn.Linear(3, 3)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    report = lb.bayesianize_(model, {nn.Linear: method})
    assert report.converted == ["0"]
    assert model[0] is model[2]
    alone = nn.Sequential(copy.deepcopy(shared))
    lb.bayesianize_(alone, {nn.Linear: method})
    assert torch.allclose(kl_sum(model), kl_sum(alone))
    lb.restore_(model)
    assert model[0] is model[2]
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize("method", METHODS[:3])
def test_tied_parameters_share_one_posterior_and_count_once(method):
    model = nn.ModuleDict({"embed": nn.Embedding(7, 3), "decoder": nn.Linear(3, 7, bias=False)})
    model["decoder"].weight = model["embed"].weight
    report = lb.bayesianize_(model, method)
    q = model["embed"].posteriors["weight"]
    assert model["decoder"].posteriors["weight"] is q
    assert report.parameters_after == sum(p.numel() for p in model.parameters())
    terms = [term() for layer in model.values() for _, term in layer.kl_terms()]
    assert torch.allclose(kl_sum(model), terms[0])
    other = copy.deepcopy(model)
    assert other["decoder"].posteriors["weight"] is other["embed"].posteriors["weight"]
    lb.restore_(model)
    assert model["decoder"].weight is model["embed"].weight


@pytest.mark.parametrize("method", METHODS)
def test_an_optimiser_made_before_conversion_goes_on_training_the_means(method):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    lb.bayesianize_(model, {nn.Linear: method})
    with lb.using(mean_only=True):
        before = model[1].weight.detach().clone()
    model(torch.randn(4, 3)).square().sum().backward()
    optimiser.step()
    with lb.using(mean_only=True):
        assert not torch.equal(model[1].weight, before)


@pytest.mark.parametrize("method", METHODS)
def test_hooks_are_carried_there_and_back(method):
    calls = []
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    layer = model[1]
    layer.register_forward_hook(lambda m, a, y: calls.append("forward"))
    layer.register_forward_pre_hook(lambda m, a, k: calls.append("pre"), with_kwargs=True)
    layer.register_full_backward_hook(lambda m, gi, go: calls.append("backward"))
    layer.register_full_backward_pre_hook(lambda m, go: calls.append("backward pre"))
    removed = layer.register_forward_hook(lambda m, a, y: calls.append("removed"))
    lb.bayesianize_(model, {nn.Linear: method})
    removed.remove()
    expected = ["pre", "forward", "backward pre", "backward"]
    for _ in range(2):
        calls.clear()
        model(torch.ones(2, 3, requires_grad=True)).sum().backward()
        assert calls == expected
        lb.restore_(model) if conversions(model) else None


@pytest.mark.parametrize("method", METHODS)
def test_copies_and_pickles_of_a_converted_model_work_alike(method):
    model, x = network(), torch.randn(3, 1, 4, 4)
    lb.bayesianize_(model, {nn.Conv2d: method, nn.Linear: method})
    expected = lb.predict(model, x, samples=4, task="classification").probs
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(stream, weights_only=False)):
        assert conversions(other) == conversions(model)
        assert torch.equal(lb.predict(other, x, samples=4, task="classification").probs, expected)
        with torch.no_grad():
            for p in other.parameters():
                p.add_(1.0)
    assert torch.equal(lb.predict(model, x, samples=4, task="classification").probs, expected)


def test_other_peoples_modules_may_have_an_attribute_called_method():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.method = "dot"
            self.fc = nn.Linear(2, 2)

    model = Attention()
    lb.bayesianize_(model, lb.MeanField())
    assert list(conversions(model)) == ["fc"]
    assert get(model).callbacks(model) == []
    assert type(lb.restore_(model).fc) is nn.Linear


def test_a_failing_conversion_leaves_the_model_as_it_was(monkeypatch):
    model = network()
    before = snapshot(model)
    doing = type(implementation(lb.MeanField()))
    convert, calls = doing.convert, []

    def fails_at_last(self, module, conversion):
        calls.append(module)
        if len(calls) == 2:
            raise MemoryError
        return convert(self, module, conversion)

    monkeypatch.setattr(doing, "convert", fails_at_last)
    with pytest.raises(MemoryError):
        lb.bayesianize_(model, lb.MeanField())
    assert snapshot(model) == before


def test_weights_that_are_not_finite_are_refused_where_a_spread_is_made_of_them():
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].weight.data.fill_(float("nan"))
    before = [id(m) for m in model.modules()]
    with pytest.raises(lb.LeanBayesError, match="finite"):
        lb.bayesianize_(model, lb.VariationalDropout())
    assert [id(m) for m in model.modules()] == before


def test_restoring_weights_without_a_mean_raises_and_touches_nothing():
    from leanbayes.posteriors import ZeroMeanGaussian

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    lb.bayesianize_(model, lb.MeanField())
    model[1].posteriors["weight"] = ZeroMeanGaussian.from_tensor(torch.ones(2, 2))
    before = snapshot(model)
    with pytest.raises(ConversionError, match="1: its weight has no mean"):
        lb.restore_(model)
    assert snapshot(model) == before


class Encoder(nn.Module):
    def __init__(self, batch_first=True):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=batch_first)
        self.stack = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=batch_first), 2, enable_nested_tensor=True
        )
        self.head = nn.Linear(8, 3)
        self.batch_first = batch_first

    def forward(self, x):
        y = x if self.batch_first else x.transpose(0, 1)
        y = self.stack(self.layer(y))
        return self.head(y.mean(1 if self.batch_first else 0))


SITES = {
    "attention output": {"*out_proj": lb.MeanField(std=0.3)},
    "feed forward": {"*linear?": lb.MeanField(std=0.3)},
    "own dropout": {nn.Dropout: lb.Dropout(0.5)},
    "masked inputs": {"*linear?": lb.Dropout(0.5)},
}


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("case", SITES)
def test_noise_inside_a_transformer_layer_reaches_the_predictions(case, batch_first):
    """torch's fast path in evaluation mode reads weights without calling the modules that hold them."""
    model, x = Encoder(batch_first).eval(), torch.randn(3, 5, 8)
    with torch.no_grad():
        plain = model(x).softmax(-1)
    lb.bayesianize_(model, SITES[case])
    found = {
        strategy: lb.predict(model, x, samples=6, task="classification", strategy=strategy, keep_samples=True)
        for strategy in ("loop", "vmap")
    }
    assert found["vmap"].engine == "vmap"
    assert torch.allclose(found["loop"].samples, found["vmap"].samples, atol=1e-5)
    assert (found["loop"].samples.std(0) > 1e-4).any(-1).all()
    mean = lb.predict(model, x, mean_only=True, task="classification")
    assert torch.allclose(mean.probs, plain, atol=1e-5)
    assert torch.backends.mha.get_fastpath_enabled()


def test_dropout_refuses_the_output_of_an_attention_which_reads_the_weight_itself():
    model = nn.Sequential(nn.MultiheadAttention(4, 2))
    with pytest.raises(ConversionError, match="without calling it"):
        lb.plan(model, {nn.Linear: lb.Dropout(0.5)})


def test_attention_trains_its_random_output():
    model = Encoder().train()
    lb.bayesianize_(model, {"*out_proj": lb.MeanField()})
    model(torch.randn(3, 5, 8)).sum().backward()
    rho = model.layer.self_attn.out_proj.posteriors["weight"].rho
    assert rho.grad is not None
    assert rho.grad.any()


def test_every_layer_is_converted_once(monkeypatch):
    kind, seen = type(implementation(lb.MeanField())), []
    convert = kind.convert
    monkeypatch.setattr(kind, "convert", lambda self, module, c: seen.append(module) or convert(self, module, c))
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    own = [model[0], model[2]]
    lb.bayesianize_(model, lb.MeanField())
    assert seen == own
