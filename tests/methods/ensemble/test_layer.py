import copy
import pickle

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.convert.record import conversions
from leanbayes.errors import ConversionError, PredictionError
from leanbayes.methods.ensemble.layer import EnsembleLayer, Turn, attach, layers, member
from leanbayes.sampling import sites


class Branches(nn.Module):
    """Attention, a recurrent layer and norms: modules with parts, several results and statistics."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.lstm = nn.LSTM(8, 6, batch_first=True)
        self.bn = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = self.embed(x)
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        return self.head(self.bn(self.lstm(x)[1][0][-1]))


def small():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def ensemble(model=None, **options):
    model = small() if model is None else model
    lb.bayesianize_(model, lb.Ensemble(**{"members": 3, **options}))
    return model


def by_hand(model, x, number):
    return member(model, number).eval()(x)


def test_a_pass_goes_through_one_whole_network():
    model, x = ensemble().eval(), torch.randn(5, 4)
    answers = torch.stack([by_hand(model, x, k) for k in range(3)])
    for _ in range(20):
        output = model(x)
        used = model[0].turn.member
        assert torch.equal(output, answers[used])
    assert {int(model(x).eq(answers).flatten(1).all(1).nonzero()) for _ in range(40)} == {0, 1, 2}


def test_training_passes_take_turns_and_leave_the_others_without_a_gradient():
    model, x = ensemble(), torch.randn(5, 4)
    for step in range(7):
        model.zero_grad()
        model(x).sum().backward()
        for layer in layers(model):
            has = [all(p.grad is not None for p in m.parameters()) for m in layer.members]
            none = [all(p.grad is None for p in m.parameters()) for m in layer.members]
            assert has == [k == step % 3 for k in range(3)]
            assert none == [k != step % 3 for k in range(3)]
    assert [int(m.num_batches_tracked) for m in model[1].members] == [3, 2, 2]


@pytest.mark.parametrize("inner", [None, lb.MeanField(), lb.Dropout(0.3), lb.Variance(), lb.VariationalDropout()])
def test_predict_spreads_the_samples_evenly(inner):
    model, x = ensemble(method=inner), torch.randn(5, 4)
    used = []
    model[1].register_forward_hook(lambda layer, args, out: used.append(int(layer.turn.index()) % 3))
    lb.predict(model, x, samples=6, seed=0, task="classification", strategy="loop")
    assert used == ([0, 1, 2] if inner is None else [0, 1, 2, 0, 1, 2])
    used.clear()
    lb.predict(model, x, samples=3, seed=1, task="classification", estimator="local")
    assert used == [1, 2, 0]


def test_predict_averages_the_members():
    model, x = ensemble(), torch.randn(5, 4)
    answers = torch.stack([by_hand(model, x, k).softmax(-1) for k in range(3)])
    assert (answers[0] - answers[1]).abs().max() > 0.01
    for samples in (3, 32):
        said = lb.predict(model, x, samples=samples, seed=4, task="classification", keep_samples=True)
        assert torch.allclose(said.probs, answers.mean(0), atol=1e-6)
        assert len(said.samples) == 3
    one = lb.predict(model, x, samples=1, seed=2, task="classification")
    assert torch.allclose(one.probs, answers[2], atol=1e-6)


@pytest.mark.parametrize("inner", [None, lb.MeanField(std=0.3)])
def test_vectorised_samples_of_an_ensemble_of_heads_share_the_body(inner):
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    lb.bayesianize_(model, {"4": lb.Ensemble(3, method=inner)})
    x, calls = torch.randn(5, 4), []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    loop = lb.predict(model, x, samples=12, task="classification", strategy="loop")
    assert len(calls) == (3 if inner is None else 12)
    calls.clear()
    auto = lb.predict(model, x, samples=12, task="classification")
    assert auto.engine == "vmap"
    assert len(calls) <= 3  # one to look, one to try, one for all samples
    assert torch.allclose(auto.probs, loop.probs, atol=1e-6)


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.filterwarnings("ignore::leanbayes.LeanBayesWarning")  # vmap refuses a recurrent layer
def test_modules_with_parts_and_several_results(strategy):
    model, x = Branches(), torch.randint(7, (4, 5))
    done = lb.bayesianize_(model, lb.Ensemble(3))
    assert done.converted == ["embed", "attention", "norm", "lstm", "bn", "head"]
    assert done.parameters_after == 3 * done.parameters_before
    said = lb.predict(model, x, samples=3, task="classification", strategy=strategy)
    answers = torch.stack([by_hand(model, x, k).softmax(-1) for k in range(3)])
    assert torch.allclose(said.probs, answers.mean(0), atol=1e-5)
    model(x).sum().backward()


def test_parts_of_a_module_that_is_taken_whole_are_random_too():
    model, x = Branches(), torch.randint(7, (4, 5))
    lb.bayesianize_(model, lb.Ensemble(2, method=lb.MeanField(std=0.5)))
    assert {"embed.members.1.posteriors.weight", "attention.members.1.out_proj.posteriors.weight"} <= set(sites(model))
    said = lb.predict(model, x, samples=8, task="classification", keep_samples=True)
    assert len({tuple(s.flatten().tolist()) for s in said.samples}) == 8
    one = member(model, 1)
    assert set(conversions(one).values()) == {lb.MeanField(std=0.5)}
    assert "attention.out_proj" in conversions(one)
    assert isinstance(lb.restore_(model).attention.out_proj, nn.Linear)


def test_prediction_touches_no_statistics():
    model, x = ensemble(), torch.randn(50, 4) + 3
    model(x)
    before = copy.deepcopy(model.state_dict())
    lb.predict(model, x, task="classification")
    model.eval()(x)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_mean_only_is_refused_with_the_reason():
    with pytest.raises(PredictionError, match=r"3 networks.*samples=3"):
        lb.predict(ensemble(), torch.randn(2, 4), mean_only=True, task="classification")


def test_attributes_are_those_of_the_member_in_turn():
    model = ensemble()
    assert (model[0].in_features, model[0].out_features) == (4, 8)
    model[0].turn.member = 2
    assert model[0].weight is model[0].members[2].weight
    assert isinstance(model[0].shell, nn.Linear)
    assert not hasattr(model[0], "kl_terms")
    assert not hasattr(model[0], "no_such_thing")


def test_a_weight_read_elsewhere_is_that_of_the_same_member():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.other = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
            self.other.weight = self.embed.weight
            self.decode = nn.LayerNorm(4)

        def forward(self, x):
            return self.decode(self.embed(x)) @ self.embed.weight.T + self.other(self.embed(x))

    model, x = Tied(), torch.arange(5)
    lb.bayesianize_(model, lb.Ensemble(3))
    for k in range(3):
        assert model.embed.members[k].weight is model.other.members[k].weight
    answers = torch.stack([by_hand(model, x, k).softmax(-1) for k in range(3)])
    for strategy in ("loop", "vmap"):
        said = lb.predict(model, x, samples=3, task="classification", strategy=strategy)
        assert torch.allclose(said.probs, answers.mean(0), atol=1e-6)
    plain = lb.restore_(model)
    assert plain.embed.weight is plain.other.weight


def test_hooks_run_once():
    model, calls = small(), []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    ensemble(model)(torch.randn(2, 4))
    assert len(calls) == 1


def test_copies_take_turns_on_their_own():
    model, x = ensemble(), torch.randn(6, 4)
    twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for twin in twins:
        turns = {id(layer.turn) for layer in layers(twin)}
        assert turns == {id(twin[0].turn)} != {id(model[0].turn)}
        outputs = [twin(x) for _ in range(4)]
        assert torch.equal(outputs[0], outputs[3])
        assert not torch.equal(outputs[0], outputs[1])
    assert model[0].turn.next == 0


def test_layers_converted_one_after_the_other_take_turns_together():
    model, x = small(), torch.randn(6, 4)
    lb.bayesianize_(model, {"3": lb.Ensemble(2)})
    lb.bayesianize_(model, {"0": lb.Ensemble(3), "1": lb.Ensemble(3)})
    turn = model[0].turn
    assert model[3].turn is turn
    assert turn.period == 6
    assert list(sites(model)) == ["0.turn"]
    assert len(model._forward_pre_hooks) == 1
    said = lb.predict(model, x, samples=60, task="classification", keep_samples=True)
    assert len({tuple(s.flatten().tolist()) for s in said.samples}) == len(said.samples) == 6
    assert not lb.restore_(model)._forward_pre_hooks


def test_an_ensemble_inside_a_larger_model_goes_on():
    body = ensemble()
    model = nn.Sequential(body, nn.Linear(3, 2)).eval()
    assert len({tuple(model(torch.ones(1, 4))[0].tolist()) for _ in range(30)}) == 3
    lb.bayesianize_(model, {"1": lb.Ensemble(3)})
    assert not body._forward_pre_hooks
    assert body[0].turn is model[1].turn


def test_gradients_of_zero_reach_the_resting_members_where_processes_train_together(monkeypatch):
    model, x = ensemble(method=lb.MeanField()), torch.randn(5, 4)
    with torch.no_grad():
        model[0].members[1].posteriors["weight"].loc[0, 0] = torch.inf
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    output = model(x)
    assert output.isfinite().all()
    output.sum().backward()
    for layer in layers(model):
        assert all(p.grad is not None and not p.grad.any() for m in layer.resting_members for p in m.parameters())
    assert all(p.grad is None for p in model[2].parameters())
    model.eval()(x)


def test_members_come_out_as_networks_of_their_own():
    model, x = ensemble(method=lb.MeanField()), torch.randn(3, 4)
    one = member(model, 1)
    assert not layers(one)
    assert torch.equal(one[0].posteriors["weight"].loc, model[0].members[1].posteriors["weight"].loc)
    assert lb.predict(one, x, samples=2, task="classification").probs.shape == (3, 3)
    assert lb.callbacks(one) == []
    with pytest.raises(ConversionError, match="from 0 to 2"):
        member(model, 3)
    with pytest.raises(ConversionError, match="an ensemble"):
        member(nn.Linear(2, 2), 0)


def test_attach_on_a_plain_model_does_nothing():
    model = nn.Linear(2, 2)
    attach(model)
    assert not model._forward_pre_hooks


def test_a_layer_alone():
    layer = EnsembleLayer([nn.Linear(2, 2) for _ in range(2)], Turn())
    assert "2 x Linear" in repr(layer)
    assert "period=2" in repr(layer)
    assert torch.equal(layer(torch.ones(1, 2)), layer.members[0](torch.ones(1, 2)))
