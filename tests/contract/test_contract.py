"""What every registered method owes its users. A new method is tested by being registered; nothing is added here."""

import copy
import gc
import io
import json
import math
import pickle
import weakref

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.config import from_dict, to_dict
from leanbayes.convert.record import conversions
from leanbayes.errors import PredictionError
from leanbayes.kl import kl, kl_kind, kl_sum
from leanbayes.layers import BayesLayer
from leanbayes.methods.sparse.growth import Activation
from leanbayes.posteriors import Posterior
from leanbayes.priors import EmpiricalNormal
from leanbayes.registry import methods
from leanbayes.sampling import sites

from ..snapshots import snapshot
from .networks import NETWORKS, data
from .training import train

METHODS = sorted(methods())
pytestmark = [pytest.mark.parametrize("method", METHODS), pytest.mark.parametrize("network", NETWORKS)]


def converted(method, network, dtype=torch.float32):
    torch.manual_seed(1)
    model = NETWORKS[network]().to(dtype)
    return model, lb.bayesianize_(model, methods()[method]())


def ask(model, x, **options):
    return lb.predict(model, x, **{"samples": 4, "task": "classification", **options})


def has_means(model):
    return all(getattr(site, "has_mean", True) for site in sites(model).values())


def test_the_plan_is_what_happens(method, network):
    config = methods()[method]()
    plain = NETWORKS[network]()
    planned = lb.plan(plain, config)
    model, done = converted(method, network)
    assert planned == done
    assert done.converted
    assert conversions(model) == dict.fromkeys(done.converted, config)
    assert done.parameters_after == sum(p.numel() for p in model.parameters())
    assert bool(sites(model)) == config.random


def test_the_config_survives_json(method, network):
    config = methods()[method]()
    assert from_dict(json.loads(json.dumps(to_dict(config), allow_nan=False))) == config
    assert config.summary


def test_the_kl_is_finite_and_what_monte_carlo_says(method, network):
    model, _ = converted(method, network, torch.float64)
    total, draws, by_hand = kl_sum(model), 2000, {}
    assert total.shape == ()
    assert total.isfinite()
    kinds = set()
    layers = [m for m in model.modules() if hasattr(m, "kl_terms")]
    plain = [layer for layer in layers if type(layer) is BayesLayer]  # others may weigh their terms
    for layer in plain:
        for name, q in layer.posteriors.items():
            prior, approximation = layer.priors[name], layer.approximation
            value, kind = kl(q, prior, approximation).detach(), kl_kind(q, prior, approximation)
            kinds.add(kind)
            by_hand[id(q)] = value.sum()
            q = q.active() if hasattr(q, "active") else q  # of a sparse one, what is random
            density = prior
            if isinstance(prior, EmpiricalNormal):  # has one only beside the posterior that it is centred on
                density = torch.distributions.Normal(q.mean, prior.std(q.mean))
            with torch.no_grad():
                weights = (q.sample(q.noise()) for _ in range(draws))
                sampled = torch.stack([q.log_prob(w) - density.log_prob(w) for w in weights])
            gap, error = sampled.mean(0) - value, sampled.std(0) / math.sqrt(draws)
            if kind in ("approximation", "up to a constant"):  # only differences between weights mean anything
                gap = gap - gap.mean()
            slack = 0.1 if kind == "approximation" else 1e-9
            assert kind == "monte carlo" or (gap.abs() < 5.5 * error + slack).all()
    if layers == plain and "monte carlo" not in kinds:
        assert torch.allclose(total.double(), sum(by_hand.values(), torch.zeros((), dtype=torch.float64)))


def test_training_moves_what_should_move_and_nothing_else(method, network):
    model, _ = converted(method, network)
    frozen = next(p for name, p in model.named_parameters() if name.endswith("bias") or "loc" in name)
    frozen.requires_grad_(False)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    train(model, *data(network), steps=10)  # an ensemble trains its five members in turn
    for name, p in model.named_parameters():
        assert p.isfinite().all()
        # every trained parameter takes part in the loss: an unused one would stop DistributedDataParallel
        assert torch.equal(p, before[name]) != p.requires_grad, name
    for name, b in model.named_buffers():
        if name.startswith("bn."):
            assert not torch.equal(b, buffers[name]), name
    after = snapshot(model.eval())
    with torch.no_grad():
        model(data(network)[0])
    assert snapshot(model)[:2] == after[:2]


def test_a_step_lets_its_activations_go(method, network):
    """What one step leaves behind, every step leaves behind."""
    model, _ = converted(method, network)
    seen = []
    for module in model.modules():
        module.register_forward_hook(lambda m, args, out: seen.append(weakref.ref(Activation.of(out).values)))
    gc.collect()
    gc.disable()
    try:
        train(model, *data(network), steps=2)
        assert seen
        assert not any(ref() is not None for ref in seen)
    finally:
        gc.enable()


def test_a_seed_repeats_a_prediction_whatever_the_chunk(method, network):
    model, _ = converted(method, network)
    x, _ = data(network)
    before = snapshot(model)
    reference = ask(model, x, seed=5)
    for options in ({"chunk": 1}, {"chunk": 3}, {"strategy": "loop"}, {"strategy": "vmap"}):
        assert torch.allclose(ask(model, x, seed=5, **options).probs, reference.probs, atol=1e-6)
    if methods()[method].random and reference.counts.max() == 1:  # widths alone are random, and full unless asked for
        assert torch.equal(ask(model, x, seed=6).probs, reference.probs)
        lb.set_width_(model, "sampled")
        before, reference = snapshot(model), ask(model, x, seed=5)
        assert torch.allclose(ask(model, x, seed=5, chunk=3).probs, reference.probs, atol=1e-6)
    assert torch.equal(ask(model, x, seed=6).probs, reference.probs) != methods()[method].random
    assert torch.equal(ask(model.eval(), x, seed=5).probs, reference.probs)
    model.train()
    assert snapshot(model) == before


def test_mean_only_inference_is_one_network_or_refused(method, network):
    model, _ = converted(method, network)
    x, _ = data(network)
    if not has_means(model):
        with pytest.raises(PredictionError):
            ask(model, x, mean_only=True)
        if any(isinstance(site, Posterior) and not site.has_mean for site in sites(model).values()):
            with pytest.raises(lb.LeanBayesError):
                lb.restore_(model)
        return  # an ensemble has no mean network either, but gives its first member back
    mean = ask(model, x, mean_only=True)
    assert torch.equal(mean.probs, ask(model, x, mean_only=True, seed=9).probs)
    plain = lb.restore_(copy.deepcopy(model))
    assert {type(m) for m in plain.modules()} == {type(m) for m in NETWORKS[network]().modules()}
    assert torch.allclose(ask(plain, x).probs, mean.probs, atol=1e-6)


def test_pretrained_weights_are_kept(method, network):
    torch.manual_seed(1)
    plain = NETWORKS[network]()
    model, _ = converted(method, network)
    x, _ = data(network)
    sparse = [layer for layer in model.modules() if getattr(layer, "subspace", None)]
    if has_means(model) and not sparse:
        assert torch.allclose(ask(model, x, mean_only=True).probs, ask(plain, x).probs, atol=1e-6)
    kept = dict(plain.named_modules())
    for name, layer in model.named_modules():
        if layer in sparse:  # the largest of them
            q, old = layer.posteriors["weight"], kept[name].weight
            assert torch.equal(q.mean, torch.where(q.mean != 0, old, 0.0))
            assert old[q.mean == 0].abs().max() <= old[q.mean != 0].abs().min()


def test_save_and_load_give_the_same_answers(method, network, tmp_path):
    model, _ = converted(method, network)
    x, y = data(network)
    train(model, x, y, steps=2)
    path = lb.save(model, tmp_path / "model.safetensors")
    torch.manual_seed(2)
    loaded = lb.load(path, into=NETWORKS[network]())
    assert conversions(loaded) == conversions(model)
    assert torch.equal(ask(loaded, x).probs, ask(model, x).probs)


def test_copies_pickles_and_state_dicts_give_the_same_answers(method, network):
    model, _ = converted(method, network)
    x, y = data(network)
    train(model, x, y, steps=2)
    expected = ask(model, x).probs
    other = NETWORKS[network]()
    lb.bayesianize_(other, methods()[method]())
    other.load_state_dict(model.state_dict())
    stream = io.BytesIO(pickle.dumps(model))
    copies = [copy.deepcopy(model), pickle.load(stream), other]
    assert all(torch.equal(ask(c, x).probs, expected) for c in copies)
    train(copies[0], x, y, steps=1)
    assert torch.equal(ask(model, x).probs, expected)


def test_tied_modules_convert_once(method, network):
    torch.manual_seed(1)
    model = nn.Sequential(NETWORKS[network](), nn.ConstantPad1d((0, 5), 1.0), nn.Linear(8, 8))
    model.append(model[2])
    done = lb.bayesianize_(model, methods()[method]())
    assert model[2] is model[3]
    assert "3" not in done.converted
    assert done.parameters_after == sum(p.numel() for p in model.parameters())
    assert len(sites(model)) == len({id(s) for s in sites(model).values()})
    assert ask(model, data(network)[0]).probs.shape == (8, 8)


def test_double_precision_stays_double(method, network):
    model, _ = converted(method, network, torch.float64)
    x, y = data(network, dtype=torch.float64)
    train(model, x, y, steps=1)
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert model(x).dtype == ask(model, x).probs.dtype == torch.float64


def test_autocast_trains(method, network):
    model, _ = converted(method, network)
    with torch.autocast("cpu", torch.bfloat16):
        train(model, *data(network), steps=1)
    assert all(p.isfinite().all() for p in model.parameters())


def test_compiles_as_one_graph(method, network):
    torch._dynamo.reset()
    model, _ = converted(method, network)
    x, _ = data(network)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), compiled(x)) != methods()[method].random
    compiled(x).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
