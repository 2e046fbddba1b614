import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import leanbayes as lb
from leanbayes.config import to_dict
from leanbayes.errors import ConversionError
from leanbayes.layers.contract import BayesianLayer
from leanbayes.registry import methods

from ..snapshots import snapshot


class Everything(nn.Module):
    """Ties, norms, attention, a recurrent layer, a bare parameter and a lazy layer."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.embed = nn.Embedding(11, 8, padding_idx=0)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.again = self.conv
        self.bn = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.1)
        self.lazy = nn.LazyLinear(4)
        self.decoder = nn.Linear(8, 11, bias=False)
        self.decoder.weight = self.embed.weight


def parameters(model):
    lazy = nn.parameter.UninitializedParameter
    return sum(p.numel() for p in model.parameters() if not isinstance(p, lazy))


@pytest.mark.parametrize("name", sorted(name for name, kind in methods().items() if not kind.follows_channels))
def test_plan_touches_nothing_and_counts_what_conversion_makes(name):
    model, method = Everything(), methods()[name]()
    before = snapshot(model)
    plan = lb.plan(model, method)
    assert snapshot(model) == before
    assert plan.parameters_before == parameters(model)
    after = lb.bayesianize_(model, method)
    assert after == plan
    assert plan.parameters_after == parameters(model)
    assert plan.growth == pytest.approx(plan.parameters_after / plan.parameters_before)
    modules = dict(model.named_modules())
    for entry in plan.entries:
        if entry.method is not None:
            assert isinstance(modules[entry.name], BayesianLayer)


def test_a_model_that_starts_afresh_leaves_the_random_state_to_the_conversion():
    model = nn.Sequential(nn.Linear(3, 3))
    state = torch.get_rng_state()
    lb.plan(model, lb.MeanField(keep_weights=False))
    assert torch.equal(state, torch.get_rng_state())


def test_the_reasons_of_what_is_left_alone():
    left = lb.plan(Everything(), lb.MeanField()).left_alone
    assert left[""] == "no operation for Everything"
    assert left["attention"].endswith("projected inside of torch; only its out_proj is a layer")
    assert left["lstm"] == "no operation for LSTM"
    assert left["norm"] == left["bn"] == "norm layer, passes through"
    assert "run one batch" in left["lazy"]
    assert "drop" not in left  # it has no parameters


def test_the_table_shows_rules_reasons_growth_and_precedence():
    text = str(lb.plan(Everything(), {nn.Conv1d: lb.MeanField(), "lstm": None}))
    conv = next(line for line in text.splitlines() if line.startswith("conv (= again)"))
    assert conv.split()[3:] == ["Conv1d", "MeanField", "type", "Conv1d", "200", "400"]
    assert "excluded by name 'lstm'" in text
    assert "1 converted, 9 left alone" in text
    assert "Precedence: module, then name, then type, then callable" in text
    assert all(len(line) <= 120 for line in text.splitlines())
    assert "Precedence" not in str(lb.plan(Everything(), lb.MeanField())), "one method needs no precedence"


def test_what_a_method_does_not_take_by_itself_says_how_to_convert_it():
    left = lb.plan(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)), lb.Patch()).left_alone
    assert left == {"0": "not converted by Patch unless a rule names it"}


def test_the_json_form_names_every_method():
    import json

    plan = lb.plan(Everything(), lb.MeanField())
    data = json.loads(json.dumps(plan.to_dict()))
    conv = next(m for m in data["modules"] if m["name"] == "conv")
    assert conv["method"] == to_dict(lb.MeanField())
    assert conv["aliases"] == ["again"]
    assert data["parameters_after"] == plan.parameters_after


def test_strict_refuses_what_would_be_left_alone_unless_excluded():
    model = nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 4), nn.BatchNorm1d(4))
    with pytest.raises(ConversionError, match=r'strict: 1 \(LSTM\).*no operation for LSTM; exclude.*\{"1": None\}'):
        lb.plan(model, {nn.Linear: lb.MeanField()}, strict=True)
    with pytest.raises(ConversionError, match="LSTM"):
        lb.bayesianize_(model, lb.MeanField(), strict=True)
    plan = lb.plan(model, {nn.Linear: lb.MeanField(), "1": None}, strict=True)
    assert plan.converted == ["0"]


def test_strict_names_the_type_where_a_name_would_exclude_too_much():
    model = Everything()
    with pytest.raises(ConversionError, match=r"the model \(Everything\).*\{Everything: None\}"):
        lb.plan(model, {nn.Linear: lb.MeanField()}, strict=True)
    rules = dict.fromkeys((Everything, nn.MultiheadAttention, nn.LSTM, nn.LazyLinear))
    rules |= {t: lb.MeanField() for t in (nn.Linear, nn.Conv1d, nn.Embedding)}
    plan = lb.plan(model, rules, strict=True)
    assert plan.converted == ["embed", "attention.out_proj", "conv", "decoder"]


def test_strict_accepts_what_is_already_bayesian():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    lb.bayesianize_(model, {"0": lb.MeanField()})
    plan = lb.plan(model, lb.Dropout(), strict=True)
    assert plan.converted == ["1"]
    assert plan.left_alone["0"].startswith("already Bayesian")


def test_the_root_module_cannot_be_replaced():
    with pytest.raises(ConversionError, match=r"wrap it: nn.Sequential\(model\)"):
        lb.plan(nn.Linear(2, 2), lb.MeanField())
    with pytest.raises(ConversionError, match="wrap it"):
        lb.plan(nn.Linear(2, 2), {nn.Linear: lb.MeanField()})


@pytest.mark.parametrize("model", [nn.ReLU(), nn.Sequential(), nn.BatchNorm1d(3), nn.Sequential(nn.LSTM(2, 2))])
def test_nothing_to_convert_raises(model):
    for rules in (lb.MeanField(), lb.Dropout(), lb.VariationalDropout()):
        with pytest.raises(ConversionError, match="nothing in this"):
            lb.plan(model, rules)


def test_what_is_no_module_is_refused():
    for verb in (lb.plan, lb.bayesianize_):
        with pytest.raises(ConversionError, match=r"expected an nn.Module, received 'model'"):
            verb("model", lb.MeanField())
    with pytest.raises(ConversionError, match=r"expected an nn.Module, received 'model'"):
        lb.restore_("model")


def test_a_named_layer_that_cannot_be_treated_raises():
    model = nn.Sequential(nn.Linear(2, 2), parametrizations.weight_norm(nn.Linear(2, 2)))
    with pytest.raises(ConversionError, match=r"rule name '1' converts nothing: 1 .*parametrised"):
        lb.plan(model, {nn.Linear: lb.MeanField(), "1": lb.MeanField()})
    assert lb.plan(model, lb.MeanField()).left_alone["1"].startswith("its weight is parametrised")


def tied(bias=False):
    model = nn.ModuleDict({"embed": nn.Embedding(7, 3), "decoder": nn.Linear(3, 7, bias=bias)})
    model["decoder"].weight = model["embed"].weight
    return model


PARTIAL = {
    "only the embedding": {nn.Embedding: lb.MeanField()},
    "only the decoder": {nn.Linear: lb.MeanField()},
    "one excluded": {nn.Linear: lb.MeanField(), "embed": None},
    "two settings": {nn.Embedding: lb.MeanField(std=0.1), nn.Linear: lb.MeanField(std=0.2)},
    "two methods": {nn.Embedding: lb.MeanField(), nn.Linear: lb.VariationalDropout()},
    "a method that keeps the weight": {nn.Embedding: lb.MeanField(), nn.Linear: lb.Dropout()},
    "multiplicative": {nn.Linear: lb.VariationalDropout(parameterisation="multiplicative")},
}


@pytest.mark.parametrize("case", PARTIAL)
def test_partial_or_conflicting_ties_raise_before_anything_is_touched(case):
    model = tied()
    before = snapshot(model)
    with pytest.raises(ConversionError, match=r"is tied to (embed|decoder)"):
        lb.bayesianize_(model, PARTIAL[case])
    assert snapshot(model) == before


def test_a_parameter_that_its_owner_also_holds_is_a_tie():
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.w = self.fc.weight

    with pytest.raises(ConversionError, match="tied"):
        lb.plan(Holder(), lb.MeanField())


def test_ties_of_untouched_parameters_are_nobodys_business():
    model = tied()
    model["free"] = nn.Linear(2, 2)
    assert lb.plan(model, {"free": lb.MeanField()}).converted == ["free"]
    assert lb.plan(model, {"decoder": lb.Dropout(0.1)}).converted == ["decoder"]


def test_a_model_that_is_copied_plans_alike():
    model = Everything()
    assert lb.plan(copy.deepcopy(model), lb.MeanField()) == lb.plan(model, lb.MeanField())


class SomebodysRMSNorm(nn.Module):
    """As in Llama: a scale by channel and nothing else."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.weight * x * x.square().mean(-1, keepdim=True).add(1e-6).rsqrt()


def test_norms_and_attention_are_named_with_a_reason():
    model = nn.ModuleDict(
        {
            "norm": nn.RMSNorm(8),
            "own": SomebodysRMSNorm(),
            "attention": nn.MultiheadAttention(8, 2),
            "head": nn.Linear(8, 2),
        }
    )
    found = lb.plan(model, lb.MeanField())
    assert found.left_alone["norm"] == found.left_alone["own"] == "norm layer, passes through"
    assert "only its out_proj is a layer" in found.left_alone["attention"]
    assert "head" in found.converted
