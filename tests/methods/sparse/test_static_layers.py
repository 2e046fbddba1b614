"""No converted layer stays where it began: also where torch reads a weight instead of calling its layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.methods.sparse.growth import Whole, gradient_pieces
from leanbayes.posteriors.sparse import Sparse

METHODS = [lb.SparseSubspace(density=0.15, interval=2), lb.Rigl(density=0.15, interval=2)]


class Encoder(nn.Module):
    """A transformer of torch's, and a head."""

    def __init__(self, width: int, heads: int, layers: int, norm_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))  # type: ignore[no-any-return]


def moved_layers(model: nn.Module, data: Any, **options: Any) -> dict[str, int]:
    """How many slots of every sparse weight have other places after a few updates."""
    weights = {name: q for name, q in model.named_modules() if isinstance(q, Sparse)}
    before = {name: q.index.clone() for name, q in weights.items()}
    lb.fit(model, data, epochs=6, batch_size=16, progress=False, **options)
    return {name: int((q.index != before[name]).sum()) for name, q in weights.items()}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(2))
def test_every_layer_of_a_transformer_moves(method: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    heads, layers = (int(torch.randint(1, 4, (), generator=generator)) for _ in range(2))
    torch.manual_seed(seed)
    model = Encoder(8 * heads, heads, layers, norm_first=bool(seed % 2))
    lb.bayesianize_(model, method)
    moved = moved_layers(model, (torch.randn(64, 5, 8 * heads), torch.arange(64) % 4))
    assert sum("out_proj" in name for name in moved) == layers
    assert all(moved.values()), moved


def test_a_weight_that_is_read_grows_where_the_gradient_of_all_of_it_is_largest() -> None:
    grad, shell = torch.randn(6, 7), nn.Linear(7, 6)
    pieces = list(gradient_pieces([Whole(shell, grad), Whole(shell, grad)], grad.shape, grad.dtype))
    assert torch.equal(torch.cat([piece for _, piece in pieces]), 2 * grad.flatten())


def test_cost_does_not_call_it_compiled() -> None:
    model = Encoder(16, 2, 1, norm_first=False)
    lb.bayesianize_(model, lb.SparseSubspace(density=0.1))
    paths = {layer.name: layer.path for layer in lb.cost(model, torch.randn(2, 3, 16)).layers}
    assert paths["encoder.layers.0.self_attn.out_proj"].startswith("dense: its weight is read")
    assert not any(module.weight_read for module in model.modules() if hasattr(module, "weight_read"))


@pytest.mark.extra
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["bert", "vit"])
def test_every_layer_of_a_pretrained_kind_moves(kind: str, seed: int) -> None:
    transformers = pytest.importorskip("transformers")
    generator = torch.Generator().manual_seed(seed)
    heads, layers = (int(torch.randint(1, 4, (), generator=generator)) for _ in range(2))
    size = {
        "hidden_size": 8 * heads, "num_attention_heads": heads, "num_hidden_layers": layers,
        "intermediate_size": 16 * heads, "num_labels": 4,
    }  # fmt: skip
    torch.manual_seed(seed)
    if kind == "bert":
        config = transformers.BertConfig(vocab_size=30, max_position_embeddings=8, **size)
        model = transformers.BertForSequenceClassification(config)
        inputs = {"input_ids": torch.randint(0, 30, (64, 6))}
    else:
        config = transformers.ViTConfig(image_size=8, patch_size=4, **size)
        model = transformers.ViTForImageClassification(config)
        inputs = {"pixel_values": torch.randn(64, 3, 8, 8)}
    lb.bayesianize_(model, lb.SparseSubspace(density=0.15, interval=2))
    rows = [{name: value[i] for name, value in inputs.items()} | {"labels": torch.tensor(i % 4)} for i in range(64)]
    moved = moved_layers(model, rows_as_batches(rows))
    assert len(moved) >= 6 * layers
    assert all(moved.values()), moved


def rows_as_batches(rows: list[dict[str, Tensor]]) -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(rows, 16)  # type: ignore[arg-type]
