"""Layers of one block against the transformer layers that two of them make."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.communication.collective_counts import tensor_blocks
from planner.cost.kernels.flop import layer_flop
from planner.cost.parameters import layer_parameters
from planner.cost.prices import PARTS, Prices
from planner.cost.tensors import Divisors, layer_tensors
from planner.data.load import load_model
from planner.data.model_spec import ModelSpec
from tests.planner.cost.problems import prices, problem

MAMBA = {"mamba_heads": 64, "mamba_head_dim": 64, "ssm_state": 128, "groups": 8, "conv": 4}


def in_blocks(model: ModelSpec, letters: str) -> ModelSpec:
    """The same network with every transformer layer as two blocks of a hybrid."""
    pattern = letters * model.num_layers
    moe = model.moe and model.moe.model_copy(update={"first_dense_layers": 0, "layer_freq": 1})
    blocks = {"pattern": pattern, "prediction_pattern": letters if model.mtp_num_layers else None, **MAMBA}
    changes = {"hybrid": blocks, "num_layers": len(pattern), "norms_per_layer": 1}
    return ModelSpec.model_validate({**model.model_dump(), "moe": moe, **changes})


CASES = [("glm-4.5-air", "*E", "moe"), ("qwen3-30b-a3b", "*E", "moe"), ("llama3-8b", "*-", "dense")]


@pytest.mark.parametrize(("name", "letters", "whole"), CASES)
def test_two_blocks_hold_and_compute_what_their_layer_does(name: str, letters: str, whole: str) -> None:
    model = load_model(name)
    blocks = in_blocks(model, letters)
    one, two = blocks.layer_kinds
    assert layer_parameters(blocks, one) + layer_parameters(blocks, two) == layer_parameters(model, whole)  # type: ignore[arg-type]
    assert layer_flop(blocks, one, 4096) + layer_flop(blocks, two, 4096) == layer_flop(model, whole, 4096)  # type: ignore[arg-type]
    assert tensor_blocks(blocks, one) + tensor_blocks(blocks, two) == tensor_blocks(model, whole)  # type: ignore[arg-type]
    degrees = Divisors(2, 4, 1)
    found = [t for kind in (one, two) for t in layer_tensors(blocks, kind, degrees)]
    assert sorted(map(repr, found)) == sorted(map(repr, layer_tensors(model, whole, degrees)))  # type: ignore[arg-type]


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize(("name", "letters", "whole"), CASES)
def test_two_blocks_take_what_their_layer_does(
    name: str, letters: str, whole: str, sequence_parallel: bool
) -> None:
    """Time apart from the host's, and activations; the same products, exchanges and reductions.

    A backward's products hide the reductions of their own block alone, those of a whole layer all of its.
    """
    experts = {"expert_parallel": 8, "expert_tensor_parallel": 1} if whole == "moe" else {}
    degrees = {"tensor_parallel": 2, "sequence_parallel": sequence_parallel, "microbatch_size": 2, **experts}
    of = problem(model=name)
    layer = prices(of, **degrees)
    halves = prices(of.model_copy(update={"model": in_blocks(of.model, letters)}), **degrees)
    k, host, tp = layer.kinds.index(whole), PARTS.index("host"), PARTS.index("tp")
    for field, hidden in (("layer_forward_s", []), ("layer_full_s", []), ("layer_backward_s", [tp])):
        of_layer = getattr(layer, field)[0, k, 0]
        of_blocks = getattr(halves, field)[0, :, 0].sum(axis=0)
        assert np.all(of_blocks[hidden] >= of_layer[hidden])
        equal = [part for part in range(len(PARTS)) if part not in (host, *hidden)]
        np.testing.assert_allclose(of_blocks[equal], of_layer[equal], rtol=1e-9, err_msg=field)
    assert kept(halves).sum() == pytest.approx(kept(layer)[k])
    assert halves.head_forward_s[0, 0, :host] == pytest.approx(layer.head_forward_s[0, 0, :host])
    assert halves.head_activation_bytes == pytest.approx(layer.head_activation_bytes)
    assert halves.head_state_bytes == pytest.approx(layer.head_state_bytes)


def kept(of: Prices) -> np.ndarray:
    """Bytes that each kind of layer keeps."""
    return np.asarray(of.layer_activation_bytes[0, :, 0])
