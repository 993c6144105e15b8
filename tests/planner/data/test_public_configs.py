"""Shipped models against the configurations that their publishers put beside the weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.data.hf.config import model_from_hf_config
from planner.data.load import load_model
from planner.launchers.megatron.model import model_arguments
from planner.launchers.model_constants import all_constants
from planner.rules.versions import NEWEST

PUBLIC = json.loads((Path(__file__).parents[2] / "public_configs.json").read_text())
"""By our name of a model: its page on the Hugging Face hub, where the numbers were read, and the fields."""


@pytest.mark.parametrize("name", PUBLIC)
def test_a_shipped_model_is_the_published_one(name: str) -> None:
    """Qwen2.5-32B and -72B had the epsilon of their Instruct models, Phi-3-mini no sliding window: exports
    would have gone on from published weights as another network."""
    shipped = load_model(name)
    published = model_from_hf_config(PUBLIC[name]["config"], Path(name) / "config.json")
    assert model_arguments(published, 1024) == model_arguments(shipped, 1024)
    assert all_constants(published, NEWEST) == all_constants(shipped, NEWEST)
    sizes = ("vocab_size", "head_dim", "qk_norm", "linear_bias", "tied_embeddings", "moe", "mla", "hybrid")
    for field in sizes:
        assert getattr(published, field) == getattr(shipped, field), field
