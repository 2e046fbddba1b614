"""The gradient of learned mixing probabilities, against all assignments one by one."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.kl import kl_sum
from leanbayes.methods.patch.mixing import ScoreFunction, score
from leanbayes.sampling import sites, using
from leanbayes.training.callbacks import State
from leanbayes.training.elbo import Terms

LEARNED = lb.Patch(3, cross=False, probabilities=(0.5, 0.3, 0.2), mixing="learned", perturbation=1.0)


def network(method=LEARNED):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    lb.bayesianize_(model, method)
    return model.eval()


def test_the_estimate_has_the_exact_gradient_as_its_mean():
    model, x, y = network(), torch.randn(10, 4), torch.randint(3, (10,))
    found = list(sites(model).values())
    callback = ScoreFunction(found)
    callback.baseline = 0.7  # any constant
    exact = torch.zeros(())
    mean = [torch.zeros(3) for _ in found]
    for indices in itertools.product(range(3), repeat=len(found)):
        z = [torch.tensor(k) for k in indices]
        p = math.prod(site.weights()[k] for site, k in zip(found, z, strict=True))
        with using(draws={id(site): k for site, k in zip(found, z, strict=True)}):
            nll = nn.functional.cross_entropy(model(x), y).detach()
        exact = exact + p * nll
        state = State(model, None, terms=Terms(nll, nll, nll, 1.0))
        callback.baseline = 0.7
        callback.before_step(state)
        for site, k in zip(found, z, strict=True):
            site.drawn, site.logits.grad = [k], None
        callback.after_backward(state)
        for total, site in zip(mean, found, strict=True):
            total += p.detach() * site.logits.grad
    for site, estimate in zip(found, mean, strict=True):
        (expected,) = torch.autograd.grad(exact, site.logits, retain_graph=True)
        assert torch.allclose(estimate, expected, atol=1e-6)
        assert expected.abs().max() > 1e-3


def test_a_scaled_loss_has_a_scaled_score():
    model, x = network(), torch.randn(10, 4)
    found = list(sites(model).values())
    gradients = []
    for scale in (1.0, 1024.0):
        callback = ScoreFunction(found)
        callback.baseline = 0.5
        state = State(model, None, terms=Terms(torch.ones(()), torch.ones(()), torch.zeros(()), 1.0), scale=scale)
        callback.before_step(state)
        torch.manual_seed(0)
        model(x)
        for site in found:
            site.logits.grad = None
        callback.after_backward(state)
        gradients.append(torch.stack([site.logits.grad for site in found]))
    assert torch.equal(1024 * gradients[0], gradients[1])
    assert gradients[0].abs().max() > 0


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_pass_that_is_computed_again_counts_once(reentrant):
    from torch.utils.checkpoint import checkpoint

    model, x = network(), torch.randn(10, 4, requires_grad=True)
    for site in sites(model).values():
        site.drawn = []
    checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    assert [len(site.drawn) for site in sites(model).values()] == [1, 1]


def test_the_score_is_the_gradient_of_log_p():
    site = next(iter(sites(network(lb.Patch(3, mixing="learned"))).values()))
    with torch.no_grad():
        site.logits.copy_(torch.tensor([0.1, -0.4, 0.9]))
    drawn = [torch.randint(3, (6,)), torch.randint(3, (6,))]
    (expected,) = torch.autograd.grad(sum(site.weights().log()[z].sum() for z in drawn), site.logits)
    assert torch.allclose(score(site, drawn), expected, atol=1e-5)


def test_the_kl_has_the_entropy_of_every_index():
    model = network(lb.Patch(3, mixing="learned", prior=None))
    with torch.no_grad():
        for site in sites(model).values():
            site.logits.copy_(torch.tensor([1.0, 0.0, -1.0]))
    p = torch.tensor([1.0, 0.0, -1.0]).softmax(0)
    each = (p * p.log()).sum() + math.log(3)
    assert kl_sum(model).item() == pytest.approx((6 + 6 + 18 + 3) * each.item(), rel=1e-5)
    kl_sum(model).backward()
    assert all(site.logits.grad.abs().max() > 0 for site in sites(model).values())
    assert kl_sum(network(lb.Patch(3, mixing="learned", prior=None))).item() == pytest.approx(0, abs=1e-5)


def test_fit_finds_the_component_that_is_right():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 2, bias=False))
    lb.bayesianize_(model, {"0": lb.Patch(3, cross=False, prior=None, mixing="learned")})
    q = model[0].posteriors["weight"]
    with torch.no_grad():
        q.loc.copy_(torch.tensor([[[0.0], [0.0]], [[3.0], [-3.0]], [[-3.0], [3.0]]]))
    q.loc.requires_grad_(False)
    x = torch.ones(400, 1)
    lb.fit(model, (x, torch.zeros(400).long()), epochs=4, batch_size=8, lr=0.1, progress=False)
    assert q.assignment.probabilities[1] > 0.8
    assert q.assignment.drawn is None


@pytest.mark.parametrize("cross", [False, True])
def test_learned_probabilities_are_saved_predicted_with_and_copied(cross, tmp_path):
    model, x = network(lb.Patch(3, cross=cross, mixing="learned")), torch.randn(5, 4)
    with torch.no_grad():
        for site in sites(model).values():
            site.logits.copy_(torch.tensor([0.0, 1.0, 2.0]))
    said = lb.predict(model, x, samples=12, task="classification").probs
    path = lb.save(model, tmp_path / "a.safetensors")
    plain = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    loaded = lb.load(path, into=plain)
    assert all(s.probabilities[2] > s.probabilities[0] for s in sites(loaded).values())
    for other in (loaded, copy.deepcopy(model)):
        assert torch.equal(lb.predict(other, x, samples=12, task="classification").probs, said)
    lb.restore_(model)
    assert [type(m) for m in model] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]


def test_frozen_probabilities_stay():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    lb.bayesianize_(model, {"1": lb.Patch(3, mixing="learned"), "3": lb.Patch(2, mixing="learned")})
    model[1].requires_grad_(False)
    logits = [p for name, p in model.named_parameters() if name.endswith("logits")]
    before = [p.clone() for p in logits]
    data = torch.randn(40, 4), torch.randint(3, (40,))
    lb.fit(model, data, epochs=3, batch_size=10, optimizer=torch.optim.Adam(model.parameters(), 0.05), progress=False)
    held = [p.requires_grad for p in logits]
    assert True in held
    assert False in held
    assert [not torch.equal(p, q) for p, q in zip(logits, before, strict=True)] == held
