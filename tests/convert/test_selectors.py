import pytest
from torch import nn

import leanbayes as lb
from leanbayes.convert.conversion import Conversion
from leanbayes.convert.selectors import parse
from leanbayes.errors import ConversionError

A, B, C, D = (lb.MeanField(std=s) for s in (0.1, 0.2, 0.3, 0.4))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.decoder = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        self.head = nn.Linear(4, 2)


def methods(model, rules):
    return {e.name: e.method for e in lb.plan(model, rules).entries if e.method is not None}


def test_a_method_alone_takes_all_that_it_can():
    assert methods(Net(), A) == dict.fromkeys(["encoder.0", "encoder.2", "decoder.0", "head"], A)


def test_module_beats_name_beats_type_beats_callable_whatever_the_order():
    model = Net()
    rules = [
        (lambda name, module: True, D),
        (nn.Linear, C),
        ("encoder.*", B),
        (model.encoder[0], A),
    ]
    # the callable never wins here, which is no error: it stands behind the others
    expected = {"encoder.0": A, "encoder.2": B, "decoder.0": C, "head": C}
    assert methods(model, dict(rules)) == expected
    assert methods(model, dict(reversed(rules))) == expected


def test_within_a_kind_the_first_rule_wins():
    assert methods(Net(), {"encoder.0": A, "encoder.*": B, "*": C})["encoder.0"] == A
    assert methods(Net(), {"*": C, "encoder.0": A})["encoder.0"] == C


def test_names_and_modules_hold_for_all_that_a_container_holds():
    model = Net()
    assert methods(model, {"encoder": A}) == {"encoder.0": A, "encoder.2": A}
    assert methods(model, {model.encoder: A}) == {"encoder.0": A, "encoder.2": A}
    assert methods(model, {"encoder": None, nn.Linear: B}) == {"decoder.0": B, "head": B}
    assert methods(model, {model: A, "head": B}) == dict.fromkeys(["encoder.0", "encoder.2", "decoder.0", "head"], A)


def test_none_excludes_and_the_plan_says_by_which_rule():
    plan = lb.plan(Net(), {nn.Linear: A, "head": None})
    assert plan.left_alone["head"] == "excluded by name 'head'"


def test_callables_see_name_and_module():
    assert list(methods(Net(), {lambda n, m: n.endswith("0") and isinstance(m, nn.Linear): A})) == [
        "encoder.0",
        "decoder.0",
    ]


def test_subclasses_match_their_base():
    assert methods(nn.Sequential(nn.Conv2d(1, 1, 1)), {nn.modules.conv._ConvNd: A}) == {"0": A}


def test_every_name_of_a_tied_module_counts():
    model = Net()
    model.decoder[0] = model.head
    assert list(methods(model, {"head": A})) == ["decoder.0"]
    assert list(methods(model, {"decoder": A})) == ["decoder.0"]


REFUSED = {
    "received int": 3,
    "received NoneType": None,
    "received list": [lb.MeanField()],
    "write MeanField()": lb.MeanField,
    "empty mapping": {},
    "expected a method or None, received 'MeanField'": {nn.Linear: "MeanField"},
    r"received its class; write MeanField\(\)": {nn.Linear: lb.MeanField},
    "not part of the model": {nn.Linear(1, 1): A},
    "expected a module type in a rule, received int": {int: A},
    "as selector, received 3": {3: A},
    "as selector, received \\(": {(nn.Linear, nn.Conv2d): A},
    "type Conv2d matches no module; the model has layers of type LayerNorm, Linear": {nn.Conv2d: A},
    "did you mean encoder": {"encodr": A},
    "name 'haed' matches no module; did you mean head": {nn.Linear: A, "haed": None},
    "type Conv2d matches no module": {nn.Linear: A, nn.Conv2d: None},
    "callable <lambda> matches no module": {nn.Linear: A, lambda n, m: False: B},
    "nothing in this Net would be converted: excluded by": {nn.Module: None},
    "converts nothing: decoder.1 \\(LayerNorm\\)": {nn.Linear: A, nn.LayerNorm: B},
    "converts nothing: encoder \\(Sequential\\)": {nn.Linear: A, nn.Sequential: B},
    "converts nothing: encoder.1 \\(ReLU\\)": {nn.Linear: A, nn.ReLU: B},
    "expected a function \\(name, module\\) -> bool, but on the model it raised TypeError": {lambda m: True: A},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_no_rule_is_refused_with_the_way_out(message):
    with pytest.raises(ConversionError, match=message):
        lb.plan(Net(), REFUSED[message])


def test_rules_are_ordered_by_precedence_and_know_their_text():
    model = Net()

    def deep(name, module):
        return name.count(".") > 1

    rules = parse({deep: A, nn.Linear: A, "x*": None, model.head: A}, Conversion(model))
    assert [r.text for r in rules] == ["module head", "name 'x*'", "type Linear", "callable deep"]
