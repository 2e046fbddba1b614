"""The acceptance of the channel graph: cutting channels out equals masking them at their consumers."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import leanbayes as lb
from leanbayes import models
from leanbayes.convert.channels import ChannelGraph, Use, channel_graph
from leanbayes.convert.trace import trace
from leanbayes.errors import ConversionError
from leanbayes.layers.contract import BayesianLayer

from .networks import IMAGE, NETWORKS, Net, RandomNet, conv
from .slicing import assert_slicing_is_masking, half, masked, randomised, sliced


@pytest.mark.parametrize("name", NETWORKS)
def test_slicing_is_masking(name: str) -> None:
    make, shape, free = NETWORKS[name]
    torch.manual_seed(1)
    graph = assert_slicing_is_masking(make(), torch.rand(shape, dtype=torch.float64))
    assert [group.name for group in graph.free] == free


@pytest.mark.parametrize("build", ["resnet18_cifar", "resnet18"])
def test_resnet18(build: str) -> None:
    model = models.build(build, num_classes=3, width=4)
    graph = assert_slicing_is_masking(model, torch.rand(2, 3, 32, 32, dtype=torch.float64))
    assert len(graph.free) == 12
    shared = graph["conv1"]
    assert [use.module for use in shared.producers] == ["conv1", "layer1.0.conv2", "layer1.1.conv2"]
    assert [use.module for use in shared.through] == ["bn1", "layer1.0.bn2", "layer1.1.bn2"]
    assert graph["layer1.0.conv1"].consumers == (Use("layer1.0.conv2", dim=-3),)


_OPS = st.sampled_from(["conv", "conv", "group", "depth", "norm", "gate", "cat", "add", "add", "elu"])


_PROGRAMS = st.lists(st.tuples(_OPS, st.integers(0, 9), st.integers(0, 9), st.integers(1, 3)), min_size=2, max_size=12)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(_PROGRAMS, st.integers(0, 3))
def test_slicing_is_masking_in_random_networks(program: list[tuple[str, int, int, int]], seed: int) -> None:
    program = [("conv", 0, 0, 2), *program]
    model, x = RandomNet(program), torch.rand(2, 3, 4, 4, dtype=torch.float64)
    torch.manual_seed(seed)
    model, rng = randomised(model), random.Random(seed)
    graph = channel_graph(model, x)
    keep = {group.name: half(group, rng) for group in graph.free}
    torch.testing.assert_close(sliced(model, graph, keep)(x), masked(model, graph, keep)(x), rtol=1e-9, atol=1e-9)


def _why(model: nn.Module, x: Any, name: str) -> str:
    group = channel_graph(model, x)[name]
    assert group.fixed
    return "; ".join(group.reasons)


def _one_hidden(forward: Callable[[Any, Tensor], Tensor], out: int = 4, head: int = 4) -> nn.Module:
    return Net(forward, a=conv(3, out), head=nn.Linear(head, 2))


def _through(f: Callable[[Tensor], Tensor], out: int = 4, head: int = 4) -> nn.Module:
    return _one_hidden(lambda m, x: m.head(f(m.a(x)).mean((2, 3))), out, head)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (_through(lambda x: x.matmul(x)), "matmul"),
        (_through(lambda x: x.chunk(2, 1)[0], 8), "chunk"),
        (_through(lambda x: x[:, :4], 8), "getitem"),
        (_through(lambda x: x[:, : x.shape[3] // 2], 8), "getitem"),  # a slice of channels that no constant shows
        (_one_hidden(lambda m, x: m.head(m.a(x)[:, :, x.shape[2] // 8].mean(2))), "getitem"),
        (_through(lambda x: x.softmax(1)), "softmax"),
        (_through(lambda x: x - x.mean(1, keepdim=True)), "mean"),
        (_through(lambda x: x / x.shape[1]), "truediv"),
        (_through(lambda x: F.pixel_shuffle(x, 2), 16), "pixel_shuffle"),
        (_through(lambda x: x + torch.arange(4.0).view(4, 1, 1)), "a constant tensor"),
        (_one_hidden(lambda m, x: m.head(m.a(x).view(-1, 256)), head=256), "constant number of features"),
        (_one_hidden(lambda m, x: m.head(m.a(x).view(2, 64, 4).mean(1))), "view"),
        (_one_hidden(lambda m, x: m.head(m.a(x).flatten(0, 1).mean((1, 2)).view(2, 4))), "flatten"),
        (_one_hidden(lambda m, x: m.head(m.a(x).mean((2, 3))) * m.a.weight.sum()), "used by sum"),
        (Net(lambda m, x: x + m.a(x), a=conv(3, 3)), "model input"),
        (nn.Sequential(conv(3, 4), nn.LocalResponseNorm(2), conv(4, 1)), "normalised across"),
        (nn.Sequential(conv(3, 4), nn.PixelShuffle(2), conv(1, 1)), "PixelShuffle '1'"),
        (nn.Sequential(parametrizations.weight_norm(conv(3, 4)), conv(4, 1)), "computed from other tensors"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_followed_is_fixed(model: nn.Module, reason: str) -> None:
    name = "0" if isinstance(model, nn.Sequential) else "a"
    assert reason in _why(model, torch.rand(2, 3, 8, 8), name)


def test_shared_parameters_fix_their_channels() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    assert "'0' and '1' share a parameter" in _why(model, torch.rand(2, 4), "0")


def test_a_module_also_called_on_something_unknown_is_fixed() -> None:
    model = Net(lambda m, x: m.b(F.relu(m.a(x))) + m.b(x), a=nn.Linear(4, 4), b=nn.Linear(4, 2))
    assert "model input" in _why(model, torch.rand(2, 4), "a")
    norm = Net(lambda m, x: m.b(m.bn(m.a(m.bn(x)))), a=nn.Linear(4, 4), b=nn.Linear(4, 2), bn=nn.BatchNorm1d(4))
    assert "'bn' is also called" in _why(norm, torch.rand(2, 4), "a")


class _Branches(nn.Module):
    """Control flow on a shape: torch.fx cannot, torch.export can."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.bn, self.b, self.act = conv(3, 4), nn.BatchNorm2d(4), conv(4, 6), nn.PReLU(6)
        self.head = nn.Linear(6 * 64, 2)

    def forward(self, x: Tensor, scale: float | None = None) -> Tensor:
        """One way or the other."""
        if x.shape[-1] > 4:
            x = F.relu(self.bn(self.a(x)))
        if scale is not None:
            x = x * scale
        return self.head(self.act(self.b(x)).flatten(1))


def test_torch_export_steps_in_where_fx_fails() -> None:
    x = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    graph = assert_slicing_is_masking(_Branches(), x)
    assert [group.name for group in graph.free] == ["a", "b"]
    assert graph["b"].consumers == (Use("head", block=64),)


def test_what_cannot_be_traced_asks_for_groups_by_hand() -> None:
    with pytest.raises(ConversionError, match=r"give an example_input.*from_groups"):
        channel_graph(_Branches())
    model = Net(lambda m, x: m.b(m.a(x)) if x.sum().item() >= 0 else x, a=nn.Linear(3, 4), b=nn.Linear(4, 2))
    with pytest.raises(ConversionError, match=r"neither by torch.fx .* nor by torch.export .*from_groups"):
        channel_graph(model, torch.rand(2, 3))
    by_hand = ChannelGraph.from_groups(model, {"hidden": {"producers": ["a"], "consumers": ["b"]}})
    assert_slicing_is_masking(model, torch.rand(2, 3, dtype=torch.float64), by_hand)


def test_an_example_input_that_does_not_fit_is_refused() -> None:
    model = nn.Sequential(conv(3, 4), conv(4, 2))
    with pytest.raises(ConversionError, match=r"cannot run on the example input.*expected input.*3 channels"):
        channel_graph(model, torch.rand(2, 5, 8, 8))
    with pytest.raises(ConversionError, match=r"does not fit Sequential.forward"):
        channel_graph(model, {"image": torch.rand(2, 3, 8, 8)})
    with pytest.raises(ConversionError, match=r"lazy modules"):
        channel_graph(nn.Sequential(nn.LazyLinear(3)))


def test_inputs_may_be_a_tensor_a_tuple_or_a_mapping() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.a, self.head = nn.Embedding(5, 4), nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
            y = self.a(x)
            return self.head(torch.relu(y if ids is None else y + self.words(ids)))

    x, ids = torch.rand(2, 3), torch.tensor([1, 4])
    for example in ((x, ids), {"ids": ids, "x": x}):
        assert [use.module for use in channel_graph(Two(), example)["a"].producers] == ["a", "words"]
    for example in (x, (x,), {"x": x}, None):
        assert [use.module for use in channel_graph(Two(), example)["a"].producers] == ["a"]


@pytest.mark.parametrize("name", ["plain", "vgg", "residual", "inverted residual", "dense", "grouped", "lenet5"])
def test_most_networks_need_no_example_input(name: str) -> None:
    make, shape, _ = NETWORKS[name]
    model = make()
    assert channel_graph(model).groups == channel_graph(model, torch.rand(shape)).groups


def test_without_shapes_blocks_are_not_guessed() -> None:
    def two_sizes(m: Any, x: Tensor) -> Tensor:  # 16 and 4 features a channel: 4 * 16 + 4 * 4 is also 8 * 10
        x = F.max_pool2d(m.a(x), 2)
        return m.head(torch.cat([x.flatten(1), F.max_pool2d(m.b(x), 2).flatten(1)], 1))

    model = Net(two_sizes, a=conv(3, 4), b=conv(4, 4), head=nn.Linear(80, 2))
    assert channel_graph(model).free == ()
    graph = assert_slicing_is_masking(model, torch.rand(IMAGE, dtype=torch.float64))
    assert [use.block for _, use in graph.inputs("head")] == [16, 4]


def test_long_chains_of_sums_are_followed() -> None:
    def deep(m: Any, x: Tensor) -> Tensor:
        x = m.stem(x)
        for block in m.blocks:
            x = block(x) + x
        return m.head(x)

    blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(1100))
    graph = channel_graph(Net(deep, stem=nn.Linear(2, 2), blocks=blocks, head=nn.Linear(2, 2)))
    assert len(graph["stem"].producers) == 1101


def test_details_of_calls() -> None:
    class Half(nn.MaxPool2d):
        """A subclass of any name."""

    def details(m: Any, x: Tensor) -> Tensor:
        y = m.pool(m.a(x).to(x.dtype)).to(device=x.device)
        y = F.pad(y, (1, 1)) * (x.shape[0] / 2) + x.mean()
        y = y.permute(0, 2, 3, 1)[..., None].squeeze(-1).transpose(1, -1)
        return m.head(y.reshape(y.size(0), y.size(1), -1).sum(2, keepdim=False))

    model = Net(details, a=conv(3, 4), pool=Half(2), head=nn.Linear(4, 2))
    graph = assert_slicing_is_masking(model, torch.rand(IMAGE, dtype=torch.float64))
    assert [group.name for group in graph.free] == ["a"]


def test_looking_changes_nothing() -> None:
    model = _Branches().train()
    model.bn.eval()
    for net in (model, nn.Sequential(model.a, model.bn, nn.Dropout(), model.b).train()):
        state, flags = copy.deepcopy(net.state_dict()), [m.training for m in net.modules()]
        attributes, generator = set(vars(net)), torch.get_rng_state()
        channel_graph(net, torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)))
        assert torch.equal(torch.get_rng_state(), generator)
        assert set(vars(net)) == attributes
        assert [m.training for m in net.modules()] == flags
        assert all(torch.equal(value, state[key]) for key, value in net.state_dict().items())


def test_bayesian_layers_and_their_masks_are_followed_like_the_modules_they_replaced() -> None:
    class StandIn(BayesianLayer):
        def __init__(self, shell: nn.Module) -> None:
            super().__init__()
            object.__setattr__(self, "shell", shell)

        def forward(self, x: Tensor) -> Tensor:
            return self.shell(x + torch.rand(()).item())  # nothing that a tracer should see

    plain = nn.Sequential(conv(3, 4), nn.Dropout2d(), nn.ReLU(), nn.Flatten(), nn.Linear(256, 2))
    bayes = nn.Sequential(StandIn(plain[0]), StandIn(plain[1]), *plain[2:4], StandIn(plain[4]))
    x = torch.rand(2, 3, 8, 8)
    assert channel_graph(bayes, x) == channel_graph(plain, x)


def test_a_converted_model_has_the_graph_it_had() -> None:
    x = torch.rand(2, 3, 8, 8)
    for method in (lb.MeanField(), lb.VariationalDropout(), lb.Dropout(0.2)):
        model = models.build("resnet18_cifar", width=4)
        before = channel_graph(model, x)
        lb.bayesianize_(model, method)
        assert channel_graph(model, x) == before


def test_subclasses_with_the_same_forward_are_known_and_others_traced_into() -> None:
    class Named(nn.Conv2d):
        pass

    class Scaled(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x, self.weight * 2, self.bias)

    assert channel_graph(nn.Sequential(Named(3, 4, 1), nn.Conv2d(4, 2, 1)))["0"].fixed is False
    graph = channel_graph(nn.Sequential(nn.Conv2d(3, 4, 1), Scaled(4, 4, 1), nn.Conv2d(4, 2, 1)))
    assert "conv2d" in graph["0"].reasons[0]
    assert "0.weight" not in [step.name for step in trace(nn.Sequential(Named(3, 4, 1)))]


def test_a_group_says_what_it_may_keep() -> None:
    make, shape, _ = NETWORKS["grouped"]
    graph = channel_graph(make(), torch.rand(shape))
    graph["reduce"].check([0, 2, 5, 6])
    with pytest.raises(ConversionError, match=r"'grouped' sees 2 runs of 4 channels; keep as many"):
        graph["reduce"].check([0, 1, 2, 5])
    with pytest.raises(ConversionError, match=r"cannot lose channels: is a model output"):
        graph["head"].check([0])
    for wrong in ([], [1, 0], [0, 0], [-1, 2], [8]):
        with pytest.raises(ConversionError, match=r"expected sorted channels of 0\.\.7"):
            graph["reduce"].check(wrong)
    norm = channel_graph(NETWORKS["group norm"][0](), torch.rand(IMAGE))["0"]
    norm.check([2, 3, 6, 7])
    with pytest.raises(ConversionError, match=r"'1' sees 4 runs of 2 channels; keep or drop each as a whole"):
        norm.check([1, 2])
    with pytest.raises(ConversionError, match=r"no group 'nope'; known: input of stem, stem, reduce"):
        graph["nope"]


def test_the_table_says_it_all() -> None:
    make, shape, _ = NETWORKS["grouped"]
    text = str(channel_graph(make(), torch.rand(shape)))
    assert "yes, equal in 2 runs (grouped)" in text
    assert "stem +1" in text
    assert "no: is a model output" in text


def test_a_consumer_of_a_concatenation_sees_offsets() -> None:
    make, shape, _ = NETWORKS["dense"]
    graph = channel_graph(make(), torch.rand(shape))
    assert [(group.name, use.offset) for group, use in graph.inputs("head")] == [("stem", 0), ("a", 4), ("b", 6)]
    assert [(group.name, use.offset) for group, use in graph.carried("bn_b")] == [("stem", 0), ("a", 4)]
    assert [group.name for group, _ in graph.outputs("a")] == ["a"]
