"""A saved model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import leanbayes as lb
from leanbayes.convert import record

from .saving import mlp


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = mlp()
    lb.bayesianize_(model, {"0": lb.MeanField(), "2": lb.VariationalDropout()})
    record.ensure(model).likelihood = {"kind": "Classification", "version": 1}
    return lb.save(model, tmp_path / "model.safetensors", metadata={"name": "ü", "depth": [1, 2]})
