"""Models go to a Hub and come back the same; names and failures are clear, and nothing is half written."""

import json

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import ArtifactError, ConfigError
from leanbayes.integrations.card import card

from ..test_foreign_models import package
from .fake_hub import Hub

INPUTS = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(40) % 2


def network():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    made = network()
    lb.bayesianize_(made, lb.MeanField())
    lb.fit(made, (INPUTS, LABELS), epochs=1, progress=False)
    return made


@pytest.fixture(scope="module")
def evaluation(model):
    ood = {"a|b <i>": INPUTS + 5}
    return lb.evaluate(model, (INPUTS, LABELS), ood=ood, samples=2, replicates=20, progress=False, name="mlp")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    package("huggingface_hub")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Hub()
    yield server
    server.shutdown()
    server.server_close()


def test_the_card_has_every_number_and_every_plot(model, evaluation):
    text, pictures = card(model, "user/mlp", evaluation, "mit", "What it is *for*.")
    head, body = text.split("---\n", 2)[1:]
    fields = {line.partition(": ")[0]: json.loads(line.partition(": ")[2]) for line in head.splitlines()}
    assert fields["library_name"] == "leanbayes"
    assert fields["license"] == "mit"
    assert "meanfield" in fields["tags"]
    values = {m["type"]: m["value"] for m in fields["model-index"][0]["results"][0]["metrics"]}
    assert values["accuracy"] == pytest.approx(evaluation["accuracy"])
    assert "What it is *for*." in body
    assert f"| {100 * evaluation['accuracy']:.1f} % |" in body.replace("± ", "")
    assert "ECE" in body
    assert len(pictures) >= 2
    assert all(f"]({name})" in body for name in pictures)
    assert all(picture.startswith(b"\x89PNG") for picture in pictures.values())
    assert "a|b" not in body
    assert "<i>" not in body


def test_a_card_without_an_evaluation():
    text, pictures = card(network(), "user/mlp", None, None, "")
    assert "A plain network" in text
    assert "Evaluation" not in text
    assert pictures == {}


@pytest.mark.extra
def test_a_model_goes_up_and_comes_back(hub, model, evaluation, tmp_path):
    said = lb.push_to_hub(model, "user/mlp", evaluation=evaluation, license="mit", token="hf_x", endpoint=hub.endpoint)
    assert said.startswith(f"{hub.endpoint}/user/mlp/commit/")
    files = hub.files["user/mlp"]
    assert {"README.md", "model.safetensors", "report.html", "evaluation.json"} < files.keys()
    assert lb.Evaluation.from_dict(json.loads(files["evaluation.json"])).metrics == evaluation.metrics
    assert [path for method, path in hub.calls if "/commit/" in path] == ["/api/models/user/mlp/commit/main"]
    options = {"endpoint": hub.endpoint, "cache_dir": tmp_path, "token": False}
    hub.calls.clear()
    back = lb.from_hub("user/mlp", into=network(), **options)
    expected, received = (lb.predict(m, INPUTS, samples=3, seed=1).probs for m in (model, back))
    assert torch.equal(expected, received)
    assert {path for _, path in hub.calls} == {"/user/mlp/resolve/main/model.safetensors"}, "nothing else is read"


@pytest.mark.extra
@pytest.mark.parametrize(
    "name", ["mlp", "a/b/c", "user/..", "user/a--b", "user/a b", "user/" + "a" * 100, "", 3, None, "user/x.git"]
)
def test_a_name_that_is_not_allowed_is_refused_before_anything_is_sent(name, hub, model):
    with pytest.raises(ConfigError, match="repo: expected"):
        lb.push_to_hub(model, name, endpoint=hub.endpoint)
    if name != "mlp":
        with pytest.raises(ConfigError, match="repo: expected"):
            lb.from_hub(name, into=network(), endpoint=hub.endpoint)
    assert hub.calls == []


@pytest.mark.extra
def test_failures_of_the_hub_are_clear(hub, model, tmp_path):
    options = {"endpoint": hub.endpoint, "cache_dir": tmp_path / "cache", "token": False}
    plain = network()
    before = {k: v.clone() for k, v in plain.state_dict().items()}
    with pytest.raises(ArtifactError, match="no such repository"):
        lb.from_hub("user/none", into=plain, **options)
    with pytest.raises(ConfigError, match=r"a \.safetensors file"):
        lb.from_hub("user/none", into=plain, file="model.pt", **options)
    hub.files["user/bad"] = {"model.safetensors": b"not a model"}
    with pytest.raises(ArtifactError):
        lb.from_hub("user/bad", into=plain, **options)
    assert all(torch.equal(before[k], v) for k, v in plain.state_dict().items())
    hub.status = 401
    with pytest.raises(ArtifactError, match="hf auth login"):
        lb.push_to_hub(model, "user/mlp", token="hf_x", endpoint=hub.endpoint)
    with pytest.raises(ArtifactError, match="is the address right"):
        lb.push_to_hub(model, "user/mlp", token="hf_x", endpoint="http://127.0.0.1:9")
    assert hub.files.keys() == {"user/bad"}
