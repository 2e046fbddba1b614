"""Networks that nobody here wrote: each converts, trains, predicts, is saved, loaded and restored."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanbayes as lb
from leanbayes import batches
from leanbayes.layers import BayesLayer
from leanbayes.likelihoods import Likelihood
from leanbayes.sampling import sites


def package(name: str) -> Any:
    """An optional package; with LEANBAYES_REQUIRE_EXTRAS=1 its absence is a failure, not a skip."""
    if os.environ.get("LEANBAYES_REQUIRE_EXTRAS") == "1":
        return importlib.import_module(name)
    return pytest.importorskip(name)


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, a batch for it, and what its outputs mean."""

    model: nn.Module
    inputs: Any
    targets: Tensor
    task: Any = "classification"
    method: Any = dataclasses.field(default_factory=lb.MeanField)
    vmap: bool = True  # whether torch can vectorise it


def tokens() -> dict[str, Tensor]:
    mask = torch.ones(3, 12, dtype=torch.long)
    mask[1, 7:] = 0
    return {"input_ids": torch.randint(5, 60, (3, 12)), "attention_mask": mask}


def bert_config(**extra: Any) -> Any:
    return package("transformers").BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=16,
        **extra,
    )


def bert_classifier() -> Case:
    model = package("transformers").BertForSequenceClassification(bert_config(num_labels=3))
    return Case(model, tokens(), torch.tensor([0, 1, 2]))


def gpt2() -> Case:
    """Its layers are transformers' Conv1D: a Linear with the weight the other way round."""
    transformers = package("transformers")
    config = transformers.GPT2Config(
        vocab_size=60, n_embd=32, n_layer=2, n_head=4, n_positions=16, num_labels=3,
        pad_token_id=0, bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    inputs = {"input_ids": torch.randint(5, 60, (3, 12))}
    return Case(transformers.GPT2ForSequenceClassification(config), inputs, torch.tensor([0, 1, 2]))


class Words(Likelihood):
    """A user's own likelihood: a word at every position of a text, outputs (batch, positions, words)."""

    class_dim = 1

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return -F.cross_entropy(outputs.transpose(1, 2), targets, reduction="none").sum(1)

    def probs(self, outputs: Tensor) -> Tensor:
        return outputs.transpose(1, 2).softmax(1)


def bert_masked() -> Case:
    inputs, model = tokens(), package("transformers").BertForMaskedLM(bert_config())
    # the decoder's bias is also an attribute of the head around it, which is no layer and cannot be converted
    method = lb.MeanField(random_bias=False)
    return Case(model, inputs, inputs["input_ids"], Words(), method=method)


def vit() -> Case:
    transformers = package("transformers")
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=32,
        patch_size=8,
        num_labels=3,
    )
    model = transformers.ViTForImageClassification(config)
    return Case(model, {"pixel_values": torch.randn(2, 3, 32, 32)}, torch.tensor([0, 2]))


def unet() -> Case:
    networks = package("monai.networks.nets")
    model = networks.UNet(
        spatial_dims=2, in_channels=1, out_channels=3, channels=(8, 16, 32), strides=(2, 2), num_res_units=1
    )
    return Case(model, torch.randn(2, 1, 32, 32), torch.randint(0, 3, (2, 32, 32)), "segmentation")


def densenet() -> Case:
    networks = package("monai.networks.nets")
    model = networks.DenseNet121(spatial_dims=2, in_channels=1, out_channels=3, init_features=8, growth_rate=4)
    return Case(model, torch.randn(4, 1, 32, 32), torch.tensor([0, 1, 2, 0]))


def resnet() -> Case:
    from leanbayes.models import resnet18

    return Case(resnet18(num_classes=3, width=8), torch.randn(4, 3, 64, 64), torch.tensor([0, 1, 2, 0]))


class LSTMClassifier(nn.Module):
    """Words to one label; the recurrent layer keeps several weights in one module."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(x))[0][:, -1])


def lstm() -> Case:
    return Case(LSTMClassifier(), torch.randint(0, 20, (4, 9)), torch.tensor([0, 1, 2, 0]), vmap=False)


class Transformer(nn.Module):
    """torch's own encoder, whose fast paths in eval() read weights without calling the layers that hold them."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


def transformer() -> Case:
    return Case(Transformer(), torch.randn(4, 6, 16), torch.tensor([0, 1, 2, 0]))


EXTRA = (bert_classifier, bert_masked, gpt2, vit, unet, densenet)
OWN = (resnet, lstm, transformer)
ALL = [pytest.param(f, marks=pytest.mark.extra, id=f.__name__) for f in EXTRA] + [
    pytest.param(f, id=f.__name__) for f in OWN
]


@pytest.fixture(params=ALL)
def make(request: pytest.FixtureRequest) -> Callable[[], Case]:
    """Builds the same case, random weights included, every time."""

    def build() -> Case:
        torch.manual_seed(0)
        return request.param()

    return build


def run(model: nn.Module, inputs: Any) -> Tensor:
    return batches.output_tensor(batches.call(model, inputs))


def test_the_whole_way(make: Callable[[], Case], tmp_path: Any) -> None:
    case = make()
    model, inputs = case.model.eval(), case.inputs
    plain = copy.deepcopy(model)
    with torch.no_grad():
        expected = run(plain, inputs)

    plan = lb.bayesianize_(model, case.method)
    assert plan.converted
    with torch.no_grad(), lb.using(mean_only=True):
        assert torch.equal(run(model, inputs), expected), "at the means it is the network it was"
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    model.train()
    elbo = lb.ELBO(case.task, num_data=100)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(2):
        optimiser.zero_grad()
        terms = elbo(model, batches.call(model, inputs), case.targets)
        terms.loss.backward()
        optimiser.step()
        assert torch.isfinite(terms.loss)
    still = [name for name, p in model.named_parameters() if torch.equal(p, before[name])]
    assert not [name for name in still if "posteriors" in name], "every posterior is trained"

    slow = lb.predict(model, inputs, samples=4, task=case.task, strategy="loop")
    for strategy in ("auto", "vmap"):
        refused = nullcontext() if strategy == "auto" or case.vmap else pytest.warns(lb.LeanBayesWarning, match="vmap")
        with refused:
            other = lb.predict(model, inputs, samples=4, task=case.task, strategy=strategy)
        assert strategy == "auto" or other.engine == ("vmap" if case.vmap else "loop")
        torch.testing.assert_close(other.probs, slow.probs, rtol=1e-4, atol=1e-5)
    assert slow.mutual_information.max() > 0

    fresh = make().model
    lb.load(lb.save(model, tmp_path / "model.safetensors"), into=fresh)
    again = lb.predict(fresh, inputs, samples=4, task=case.task, strategy="loop")
    assert torch.equal(again.probs, slow.probs)

    model.eval()
    with torch.no_grad(), lb.using(mean_only=True):
        at_means = run(model, inputs)
    lb.restore_(model)
    assert not sites(model)
    assert [type(m) for m in model.modules()] == [type(m) for m in plain.modules()]
    assert model.state_dict().keys() == plain.state_dict().keys()
    with torch.no_grad():
        assert torch.equal(run(model, inputs), at_means)


def test_noise_reaches_the_outputs_from_every_layer(make: Callable[[], Case]) -> None:
    """In eval() too: a fast path that reads a layer's weight must get a draw, not skip the noise."""
    case = make()
    model = case.model.eval()
    lb.bayesianize_(model, dataclasses.replace(case.method, std=0.05))
    layers = {name: m for name, m in model.named_modules() if isinstance(m, BayesLayer)}
    with torch.no_grad():
        with lb.using(mean_only=True):
            means = run(model, case.inputs)
        everything = {id(site): torch.zeros(site.shape) for site in sites(model).values()}
        with lb.using(estimator="weight", draws=everything):
            torch.testing.assert_close(run(model, case.inputs), means)
        for name, layer in layers.items():
            loud = {id(q): torch.randn(q.shape) for q in layer.posteriors.values()}
            with lb.using(estimator="weight", draws={**everything, **loud}):
                assert not torch.equal(run(model, case.inputs), means), f"the noise of {name} is lost"


def test_plan_touches_nothing_and_prints(make: Callable[[], Case]) -> None:
    case = make()
    model = case.model
    before = {name: id(p) for name, p in model.named_parameters()}
    plan = lb.plan(model, case.method)
    assert {name: id(p) for name, p in model.named_parameters()} == before
    assert plan.parameters_before == sum(p.numel() for p in model.parameters())
    lines = str(plan).splitlines()
    assert f"{len(plan.converted)} converted" in str(plan)
    assert max(map(len, lines)) <= 120
    lb.bayesianize_(model, case.method)
    assert plan.parameters_after == sum(p.numel() for p in model.parameters())


@pytest.mark.extra
def test_the_tied_decoder_of_bert_is_one_posterior() -> None:
    case = bert_masked()
    model = case.model
    lb.bayesianize_(model, case.method)
    decoder = model.cls.predictions.decoder.posteriors["weight"]
    assert decoder is model.bert.embeddings.word_embeddings.posteriors["weight"]
    lb.restore_(model)
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight


def test_the_recurrent_layer_is_reported_and_refused_when_strict() -> None:
    model = LSTMClassifier()
    plan = lb.plan(model, lb.MeanField())
    assert plan.converted == ["embedding", "head"]
    assert plan.left_alone == {"lstm": "no operation for LSTM"}
    with pytest.raises(lb.LeanBayesError, match="strict: lstm"):
        lb.bayesianize_(model, lb.MeanField(), strict=True)
    assert type(model.head) is nn.Linear
    lb.bayesianize_(model, {nn.Linear: lb.MeanField(), "lstm": None, "embedding": None}, strict=True)


@pytest.mark.extra
def test_the_layers_of_gpt2_are_converted_or_refused_with_a_reason() -> None:
    model = gpt2().model
    assert "transformer.h.0.attn.c_attn" in lb.plan(model, lb.MeanField()).converted
    why = lb.plan(model, lb.SparseSubspace(density=0.5)).left_alone["transformer.h.0.attn.c_attn"]
    assert why == "sparse weights are for Linear and convolutions, not Conv1D"


@pytest.mark.extra
def test_from_pretrained_gets_the_means_of_an_extracted_model_and_a_warning_otherwise(tmp_path: Any) -> None:
    case = gpt2()
    lb.bayesianize_(case.model, lb.MeanField())
    with pytest.warns(lb.LeanBayesWarning, match="from_pretrained does not know and would initialise anew"):
        case.model.save_pretrained(tmp_path / "bayesian")
    plain = lb.extract(case.model)
    plain.save_pretrained(tmp_path / "plain")
    again = type(plain).from_pretrained(tmp_path / "plain").eval()
    assert torch.equal(run(again, case.inputs), run(plain, case.inputs))


@pytest.mark.parametrize("wrap", ["compile", "compile in place", "DataParallel"])
def test_a_wrapped_model_goes_the_whole_way(wrap: str, tmp_path: Any) -> None:
    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2))

    model = network()
    if wrap == "compile":
        model = torch.compile(model, backend="aot_eager")  # type: ignore[assignment]
    elif wrap == "DataParallel":
        model = nn.DataParallel(model)
    else:
        model.compile(backend="aot_eager")
    x, y = torch.randn(16, 1, 5, 5), torch.arange(16) % 2
    lb.bayesianize_(model, lb.MeanField())
    lb.fit(model, (x, y), val=(x, y), epochs=1, progress=False)
    lb.conformalize_(model, (x, y), 0.5, samples=2, progress=False)
    found = lb.predict(model, x, samples=2, seed=0)
    again = lb.load(lb.save(model, tmp_path / "model.safetensors"), into=network())
    same = lb.predict(again, x, samples=2, seed=0)
    torch.testing.assert_close(same.probs, found.probs)
    assert same.conformal == found.conformal is not None
