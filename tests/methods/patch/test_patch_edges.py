"""Patches where conversions come in stages, parents read parameters, and layers are unusual."""

import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import leanbayes as lb
from leanbayes import DropConnect, Patch
from leanbayes.errors import ArtifactError, ConfigError, ConversionError
from leanbayes.eval_mode import undisturbed
from leanbayes.methods.patch import norms, norms_and_output, norms_input_output
from leanbayes.methods.patch.mixture import Mixture, dropout
from leanbayes.prediction.engine import Engine
from leanbayes.prediction.stacking import fit_weights


class Sum(nn.Module):
    """Two towers, alike down to the names inside them."""

    def __init__(self, make=lambda: nn.LayerNorm(2)):
        super().__init__()
        self.a, self.b = nn.Sequential(make()), nn.Sequential(make())

    def forward(self, x):
        return self.a(x) + self.b(x)


def in_stages(method=None, make=lambda: nn.LayerNorm(2)):
    model = Sum(make)
    for part in (model.a, model.b):
        lb.bayesianize_(part, {"0": method or Patch(2, cross=False)})
    return model


def apart(layer):
    """Components -1 and 1 whatever the input."""
    with torch.no_grad():
        layer.posteriors["weight"].loc.zero_()
        for k, value in enumerate(torch.linspace(-1, 1, layer.posteriors["bias"].components)):
            layer.posteriors["bias"].loc[k] = value


def networks(model, x, samples, **options):
    said = lb.predict(model, x, samples=samples, task="regression", keep_samples=True, **options).samples
    return said, len(said.unique(dim=0))


def test_layers_converted_one_by_one_are_laid_out_by_themselves():
    model = in_stages()
    apart(model.a[0])
    apart(model.b[0])
    said = lb.predict(model, torch.zeros(1, 2), samples=2000, task="regression")
    assert (said.epistemic - 2).abs().max() < 5 * math.sqrt(4 / 2000)  # of a sum of two independent signs


@pytest.mark.parametrize("method", [Patch(3, cross=False), DropConnect(0.5)])
def test_stages_make_no_difference_to_a_seed(method, tmp_path):
    torch.manual_seed(0)
    model, x = in_stages(method, lambda: nn.Linear(2, 2)), torch.randn(4, 2)
    lb.save(model, tmp_path / "model.safetensors")
    loaded = lb.load(tmp_path / "model.safetensors", into=Sum(lambda: nn.Linear(2, 2)))
    before, after = (lb.predict(m, x, samples=7, seed=3, task="regression").mean for m in (model, loaded))
    assert torch.equal(before, after)


def test_dropout_as_a_mixture_draws_for_every_layer():
    from leanbayes.methods.patch.layer import Patched

    torch.manual_seed(0)
    layers = [Patched(nn.Linear(6, 2, bias=False), {"weight": dropout(torch.ones(2, 6), 0.5)}, {}) for _ in range(2)]

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(layers)

        def forward(self, x):
            return torch.cat([layer(x) for layer in self.layers], 1)

    said, _ = networks(Both(), torch.randn(1, 6), 20)
    assert not torch.allclose(said[..., :2], said[..., 2:])


def test_an_ensemble_is_asked_as_often_as_was_said_where_it_is_drawn():
    model = nn.Sequential(nn.LayerNorm(1))
    lb.bayesianize_(model, {"0": Patch(2, cross=False, shared=True)})
    apart(model[0])
    x = torch.zeros(1, 1)
    assert networks(model, x, 400)[0].shape[0] == 2  # laid out: each once
    said = networks(model, x, 400, balanced=False)[0]
    assert said.shape[0] == 400
    assert said.mean().abs() < 5 / math.sqrt(400)


def test_two_ensembles_meet_in_every_way():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    lb.bayesianize_(model, {"0": Patch(2, cross=False, shared=True), "1": Patch(3, cross=False, shared=True)})
    said, count = networks(model, torch.randn(2, 3), 100)
    assert (said.shape[0], count) == (100, 6)


def test_an_ensemble_that_came_in_stages_is_one():
    torch.manual_seed(0)
    model, method = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), Patch(4, cross=False, shared=True)
    lb.bayesianize_(model, {"0": method})
    lb.bayesianize_(model, {"1": method})
    x = torch.randn(2, 3)
    assert networks(model, x, 50)[1] == 4
    assert len(torch.stack([model(x) for _ in range(200)]).unique(dim=0)) == 4


def test_a_shared_draw_ends_with_its_pass():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), torch.randn(2, 3)
    lb.bayesianize_(model, Patch(5, cross=False, shared=True))
    model(x)
    assert len(torch.stack([model[1](x) for _ in range(60)]).unique(dim=0)) == 5
    with pytest.raises(RuntimeError):
        model(torch.randn(2, 9))  # a pass that fails ends as well
    assert len(torch.stack([model[1](x) for _ in range(60)]).unique(dim=0)) == 5


def test_a_shared_draw_holds_while_a_pass_is_computed_again():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)

    torch.manual_seed(0)
    model = Checkpointed()
    lb.bayesianize_(model, {"inner.0": (p := Patch(5, cross=False, shared=True)), "inner.1": p})
    for _ in range(10):
        model.zero_grad()
        model(torch.randn(4, 3)).sum().backward()
        used = [q.loc.grad.flatten(1).abs().sum(1) > 0 for q in model.modules() if isinstance(q, Mixture)]
        assert all(torch.equal(each, used[0]) and each.sum() == 1 for each in used)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


def test_the_output_of_attention_takes_weight_and_bias_of_one_component():
    torch.manual_seed(0)
    model = Attention()
    lb.bayesianize_(model, {"attention.out_proj": Patch(2, cross=False)})
    q = model.attention.out_proj.posteriors
    with torch.no_grad():
        q["weight"].loc[0], q["weight"].loc[1] = 0, torch.eye(4)
        q["bias"].loc[0], q["bias"].loc[1] = 10, 20
    for mode in (True, False):
        model.train(mode)
        seen = {
            (bool(o.std() < 1e-6), round(o.mean().item() / 10))
            for o in (model(torch.randn(1, 3, 4)) for _ in range(40))
        }
        assert seen == {(True, 1), (False, 2)}
    _, count = networks(model, torch.randn(1, 3, 4), 10)
    assert count == 2


@pytest.mark.parametrize("components", [3, 4])
def test_the_start_is_as_strong_as_the_perturbation_says_whatever_the_probabilities(components):
    torch.manual_seed(0)
    p = (0.1, 0.85, 0.05) if components == 3 else (0.4, 0.3, 0.2, 0.1)
    model = nn.Sequential(nn.Linear(100, 100))
    size = model[0].weight.detach().square().mean().sqrt()
    lb.bayesianize_(model, {"0": Patch(components, probabilities=p, perturbation=0.3)})
    q = model[0].posteriors["weight"]
    expected = 0.3 * math.sqrt(1 - p[0])
    assert (q.variance.mean().sqrt() / size).item() == pytest.approx(expected, rel=5 / math.sqrt(2 * 10_000))
    assert torch.allclose(q.mean, q.loc[0], atol=1e-6)


@pytest.mark.parametrize("half", [False, True])
def test_components_start_apart_where_there_is_nothing_to_perturb(half):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Conv2d(3, 8, 3))
    for parameter in model.parameters():
        nn.init.constant_(parameter, 7e-5 if half else 0.0)  # whose square is no number in half precision
    lb.bayesianize_(model.half() if half else model, {"*": Patch(3, perturbation=0.3)})
    for q in (m for m in model.modules() if isinstance(m, Mixture)):
        apart = q.loc.float().std(0).mean()
        assert (0.3 * 7e-5 / 2 < apart < 7e-5) if half else apart > 1e-3


@pytest.mark.parametrize("method", [Patch(3), Patch(3, cross=False), DropConnect(0.3)])
def test_memory_formats_are_those_of_a_weight(method):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(36, 2)), torch.randn(5, 3, 5, 5)
    lb.bayesianize_(model, {"0": method})
    before = lb.predict(model, x, samples=6, task="classification").probs
    model.to(memory_format=torch.channels_last)
    loc = model[0].posteriors["weight"].loc
    assert all(part.is_contiguous(memory_format=torch.channels_last) for part in loc)
    after = lb.predict(model, x.to(memory_format=torch.channels_last), samples=6, task="classification").probs
    assert torch.allclose(before, after, atol=1e-5)
    model.double()
    assert loc.dtype == torch.float64


@pytest.mark.parametrize("statistics", ["shared", "component"])
def test_a_batch_norm_without_running_statistics(statistics):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 2))
    lb.bayesianize_(model, {"1": Patch(3, cross=False, statistics=statistics)})
    x = torch.randn(5, 4)
    loop = lb.predict(model, x, samples=6, task="classification", strategy="loop").probs
    assert torch.allclose(lb.predict(model, x, samples=6, task="classification").probs, loop, atol=1e-6)
    lb.restore_(model)
    assert type(model[1]) is nn.BatchNorm1d


def test_what_samples_share_is_computed_once():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 5, padding=2), nn.Conv2d(64, 4, 1), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    lb.bayesianize_(model, {"0": Patch(5, cross=False), "2": Patch(5, cross=False)})
    x = torch.randn(4, 3, 8, 8)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model[0](x)
    one = counter.get_total_flops()
    with undisturbed(model):
        for _, groups in Engine(model, 50, 0).numbered(x):
            with FlopCounterMode(display=False) as counter:
                list(groups)
    assert counter.get_total_flops() / one < 6  # five components, and the small layer behind them


def test_learned_mixing_compiles_to_one_graph():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    lb.bayesianize_(model, {"1": Patch(3, mixing="learned", probabilities=(0.7, 0.2, 0.1))})
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert compiled(torch.randn(5, 4)).shape == (5, 2)
    drawn = torch.stack([site.noise() for site in model[1].assignments()[:1] for _ in range(500)])
    share = drawn.flatten().bincount(minlength=3) / drawn.numel()
    assert ((share - torch.tensor([0.7, 0.2, 0.1])).abs() < 5 * math.sqrt(0.25 / drawn.numel())).all()


@pytest.mark.parametrize(
    ("task", "targets", "seed", "error"),
    [
        ("classification", torch.zeros(20).long(), None, "expected a seed"),
        ("classification", torch.full((20,), -100), 0, "expected labels from 0 to 2"),
        ("regression", torch.zeros(20, 7), 0, "expected targets of shape"),
    ],
)
def test_bad_targets_of_stacking_are_refused(task, targets, seed, error):
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    lb.bayesianize_(model, Patch(3))
    with pytest.raises(lb.errors.LeanBayesError, match=error):
        fit_weights(model, (torch.randn(20, 4), targets), samples=6, seed=seed, task=task)


def test_stacking_takes_a_column_of_labels():
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    lb.bayesianize_(model, Patch(3))
    x, y = torch.randn(20, 4), torch.randint(3, (20,))
    flat, column = (fit_weights(model, (x, t), samples=6, task="classification") for t in (y, y.unsqueeze(1)))
    assert torch.equal(flat, column)


def test_options_of_a_patched_layer_can_be_set():
    model = nn.Sequential(nn.BatchNorm1d(2))
    lb.bayesianize_(model, {"0": Patch(3)})
    model[0].momentum, model[0].eps = 1.0, 0.5
    x = torch.randn(50, 2) + 5
    model(x)
    assert torch.allclose(model[0].running_mean, x.mean(0), atol=1e-5)
    lb.restore_(model)
    assert (model[0].momentum, model[0].eps) == (1.0, 0.5)


@pytest.mark.parametrize("method", [Patch(3, prior=lb.Normal()), lb.MeanField()])
def test_what_a_user_calls_as_we_do_is_still_the_users(method):
    model = nn.Sequential(nn.Linear(3, 2))
    model[0].priors = model[0].approximation = "mine"
    lb.bayesianize_(model, {"0": method})
    assert lb.kl_sum(model) > 0
    lb.restore_(model)
    assert model[0].priors == model[0].approximation == "mine"


def test_ensembles_of_parts_cannot_be_saved_as_one(tmp_path):
    method = Patch(3, cross=False, shared=True)
    model = in_stages(method)
    with pytest.raises(ArtifactError, match="one call"):
        lb.save(model, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())
    whole = Sum()
    lb.bayesianize_(whole, {"a.0": method, "b.0": method})
    lb.save(whole, tmp_path / "a.safetensors")


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.out = nn.Embedding(7, 4), nn.LayerNorm(4), nn.Linear(4, 7)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(self.norm(self.embed(x).mean(1)))


@pytest.mark.parametrize("rules", [norms_and_output, norms_input_output])
def test_rule_sets_take_what_is_tied_to_the_output(rules):
    model = Tied()
    assert lb.bayesianize_(model, rules(model, Patch(3))).converted == ["embed", "norm", "out"]


def test_weight_and_bias_of_a_tied_layer_take_one_component():
    model = Tied()
    lb.bayesianize_(model, Patch(3, cross=False))
    sites = {q.assignment for layer in (model.embed, model.out) for q in layer.posteriors.values()}
    assert len(sites) == 1


@pytest.mark.parametrize("init", ["perturb", "fresh"])
def test_the_padding_row_is_a_constant(init):
    model = nn.Sequential(nn.Embedding.from_pretrained(torch.ones(5, 3), freeze=False, padding_idx=1))
    lb.bayesianize_(model, {"0": Patch(4, init=init)})
    loc = model[0].posteriors["weight"].loc
    assert (loc[:, 1] == 1).all()
    assert (loc[1:, 0] != 1).all()


def test_slips_with_rule_sets_say_what_to_type():
    with pytest.raises(ConversionError, match=r"norms_and_output\(model, lb.Patch"):
        norms_and_output(Patch(5))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Patch"):
        norms(nn.BatchNorm1d(2))  # type: ignore[arg-type]
    for norm, why in ((nn.BatchNorm1d(4, affine=False), "no weight"), (nn.SyncBatchNorm(4), "SyncBatchNorm")):
        with pytest.raises(ConversionError, match=why):
            lb.plan(nn.Sequential(nn.Linear(4, 4), norm), norms())
