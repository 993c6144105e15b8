"""Degrees against the model: each rule with a legal and an illegal case."""

from __future__ import annotations

import pytest

from planner.data.chip import Precision
from planner.data.experts_spec import MoeSpec
from planner.data.load import load_model
from planner.data.model_spec import HybridSpec, ModelSpec
from planner.data.stack import SoftwareStack
from planner.data.workload import Workload
from planner.rules import experts, narrow, sequence, tensor

LLAMA_70B = ModelSpec(
    id="llama3-70b",
    family="llama",
    num_layers=80,
    hidden_size=8192,
    ffn_hidden_size=28672,
    num_attention_heads=64,
    num_query_groups=8,
    head_dim=128,
    vocab_size=128256,
    max_position_embeddings=8192,
    tied_embeddings=False,
    gated_mlp=True,
    activation="silu",
    normalization="rms",
    source="meta-llama/Meta-Llama-3-70B, config.json",
)


def model(**changes: object) -> ModelSpec:
    return LLAMA_70B.model_copy(update=changes)


MIXTURE = model(moe=MoeSpec(num_experts=8, top_k=2, ffn_hidden_size=14336))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tp", "legal"),
    [
        (64, 8, 8, True),
        (52, 52, 8, False),  # LLaMA-30B: 52 = 4 x 13
        (52, 52, 4, True),
        (28, 4, 8, False),  # Qwen2.5-7B
        (28, 4, 4, True),
        (40, 40, 3, False),  # Llama-2 13B on three chips
        (64, 2, 8, True),  # key-value heads are copied to groups of ranks
    ],
)
def test_attention_heads_split_over_whole_ranks(heads: int, kv_heads: int, tp: int, legal: bool) -> None:
    spec = model(num_attention_heads=heads, num_query_groups=kv_heads)
    assert (tensor.heads_split(spec, tp) is None) == legal
    assert tensor.tp_is_legal(spec, tp) == legal


def test_key_value_heads_are_a_multiple_or_a_divisor_of_the_degree() -> None:
    # 12 key-value heads at tp 8: neither divides the other, though 48 heads do split.
    spec = model(num_attention_heads=48, num_query_groups=12)
    assert tensor.heads_split(spec, 8) is None
    message = tensor.tensor_parallel_refusals(spec, 8)[0]
    assert message is not None and "12 key-value heads" in message
    assert message.endswith("legal below it: 1, 2, 4")
    assert tensor.kv_heads_split(spec, 4) is None


def test_feed_forward_widths_split() -> None:
    assert tensor.mlp_splits(model(ffn_hidden_size=28672), 8) is None
    assert "28676" in str(tensor.mlp_splits(model(ffn_hidden_size=28676), 8))
    shared = MoeSpec(num_experts=8, top_k=2, ffn_hidden_size=64, shared_ffn_hidden_size=100)
    assert "100" in str(tensor.mlp_splits(model(moe=shared), 8))


def test_hidden_width_splits_where_tokens_ahead_are_predicted() -> None:
    assert tensor.hidden_splits(model(hidden_size=8196), 8) is None
    assert "8196" in str(tensor.hidden_splits(model(hidden_size=8196, mtp_num_layers=1), 8))
    assert tensor.hidden_splits(model(mtp_num_layers=1), 8) is None


def test_mamba_heads_and_groups_split() -> None:
    layers = HybridSpec(
        pattern="M*-" * 4, mamba_heads=128, mamba_head_dim=64, ssm_state=128, groups=8, conv=4
    )
    assert tensor.mamba_splits(model(num_layers=12, hybrid=layers), 8) is None
    assert "8 Mamba groups" in str(tensor.mamba_splits(model(num_layers=12, hybrid=layers), 16))


def test_refused_degree_lists_the_legal_ones() -> None:
    # 7 divides the 28 heads, but not the 4 key-value heads, nor they it.
    first, *_ = tensor.tensor_parallel_refusals(model(num_attention_heads=28, num_query_groups=4), 8)
    assert first == "tensor_parallel 8: 28 attention heads do not split evenly; legal below it: 1, 2, 4"


def test_a_far_too_large_degree_is_refused_at_once() -> None:
    """Each refusal once listed the legal degrees below it, and for that refused all of those in turn."""
    spec = model(num_attention_heads=32, num_query_groups=8)
    for degree in (31, 96, 1_000_003):
        assert tensor.tensor_parallel_refusals(spec, degree)[0].endswith(
            "legal below it: 1, 2, 4, 8, 16" + (", 32" if degree > 32 else "")
        )


def test_sequence_parallelism_needs_several_ranks() -> None:
    assert sequence.sequence_parallel_has_ranks(2, True) is None
    assert sequence.sequence_parallel_has_ranks(1, False) is None
    assert "switch it off" in str(sequence.sequence_parallel_has_ranks(1, True))


def test_experts_with_tensor_parallelism_need_sequence_parallelism() -> None:
    assert sequence.experts_have_sequence_parallel(MIXTURE, 2, True) is None
    assert sequence.experts_have_sequence_parallel(MIXTURE, 1, False) is None
    assert sequence.experts_have_sequence_parallel(LLAMA_70B, 2, False) is None
    assert "switch it on" in str(sequence.experts_have_sequence_parallel(MIXTURE, 2, False))
    assert sequence.sequence_parallel_is_required(MIXTURE, 2)
    assert not sequence.sequence_parallel_is_required(LLAMA_70B, 2)


def test_sequence_splits_over_context_and_tensor_ranks() -> None:
    assert sequence.sequence_splits(workload(8192), 8, 2) is None
    assert "8200" in str(sequence.sequence_splits(workload(8200), 8, 2))
    assert sequence.sequence_parallel_is_legal(LLAMA_70B, workload(8192), 8, 2)
    assert not sequence.sequence_parallel_is_legal(LLAMA_70B, workload(8200), 8, 2)
    assert not sequence.sequence_parallel_is_legal(LLAMA_70B, workload(8192), 1, 1)


def test_context_parallelism_deals_two_pieces_a_rank() -> None:
    assert sequence.context_splits(workload(8192), 4) is None
    assert sequence.context_splits(workload(8191), 1) is None
    assert "no multiple of 8" in str(sequence.context_splits(workload(8196), 4))


def test_exchanged_heads_split_over_the_ranks_that_exchange_them() -> None:
    ring = SoftwareStack(id="ring")
    heads = SoftwareStack(id="heads", cp_exchange="a2a")
    # 64 query and 8 key-value heads: of two tensor ranks each has 32 and 4, of four 16 and 2.
    assert sequence.exchanged_heads_split(LLAMA_70B, heads, 2, 4, 8) is None
    assert sequence.exchanged_heads_split(LLAMA_70B, ring, 4, 4, 8) is None
    said = str(sequence.exchanged_heads_split(LLAMA_70B, heads, 4, 4, 8))
    assert "16 query and 2 key-value heads" in said and "the 4 ranks that exchange heads" in said


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("llama3-70b", {"p2p", "all_gather", "a2a", "a2a+p2p"}),
        ("gpt-oss-20b", {"a2a"}),  # windows and sinks
        ("gemma2-9b", {"all_gather", "a2a"}),  # windows
        ("deepseek-v3", {"p2p", "a2a+p2p"}),  # latent attention
    ],
)
def test_attention_is_computed_in_parts_where_transformer_engine_can(name: str, runs: set[str]) -> None:
    """Plans of gpt-oss with context parallelism stopped in the first forward pass."""
    model = load_model(name)
    for exchange in ("p2p", "all_gather", "a2a", "a2a+p2p"):
        stack = SoftwareStack(id="own", cp_exchange=exchange)
        said = sequence.attention_runs_in_parts(model, stack, 2, 8, 8)
        assert (said is None) == (exchange in runs), exchange
        assert sequence.attention_runs_in_parts(model, stack, 2, 1, 8) is None
    # Where all ranks exchange heads, or none do, one level is left.
    both = SoftwareStack(id="both", cp_exchange="a2a+p2p")
    assert (sequence.attention_runs_in_parts(model, both, 1, 4, 8) is None) == ("a2a" in runs)
    assert (sequence.attention_runs_in_parts(model, both, 8, 4, 8) is None) == ("p2p" in runs)
    plain = SoftwareStack(id="plain", flash_attention=False)
    assert "flash_attention false" in str(sequence.attention_runs_in_parts(LLAMA_70B, plain, 1, 2, 8))


def test_heads_exchanged_inside_nodes_split_over_the_ranks_of_a_node() -> None:
    both = SoftwareStack(id="both", cp_exchange="a2a+p2p")
    assert [sequence.ranks_that_exchange_heads(both, tp, 8, 8) for tp in (1, 2, 4, 8)] == [8, 4, 2, 1]
    assert sequence.ranks_that_exchange_heads(both, 1, 12, 8) == 1  # 12 ranks make no rings of 8
    assert sequence.exchanged_heads_split(LLAMA_70B, both, 4, 8, 8) is None
    # 4 key-value heads over the 8 ranks of a node: Transformer Engine stops in the first forward pass.
    few = LLAMA_70B.model_copy(update={"num_query_groups": 4})
    assert "the 8 ranks that exchange heads" in str(sequence.exchanged_heads_split(few, both, 1, 8, 8))
    assert sequence.exchanged_heads_split(few, both, 2, 8, 4) is None


def test_eight_bit_formats_want_tokens_in_sixteens() -> None:
    eight_bit = workload(1032, precision="fp8")
    assert sequence.fp8_tokens_fill_rows(eight_bit, 1, 1, 2, False) is None
    assert "1032 tokens" in str(sequence.fp8_tokens_fill_rows(eight_bit, 1, 1, 1, False))
    # 2064 tokens on 8 ranks with sequence parallelism are 258 each, without it 2064 each.
    assert sequence.fp8_tokens_fill_rows(eight_bit, 8, 1, 2, False) is None
    assert sequence.fp8_tokens_fill_rows(eight_bit, 8, 1, 2, True) is not None
    assert sequence.fp8_tokens_fill_rows(workload(1032), 8, 1, 1, True) is None


def workload(seq_length: int, precision: str = "bf16") -> Workload:
    return Workload(seq_length=seq_length, global_batch_size=64, precision=precision)  # type: ignore[arg-type]


def test_expert_parallelism_needs_experts() -> None:
    assert experts.experts_exist(MIXTURE, 4) is None
    assert experts.experts_exist(LLAMA_70B, 1) is None
    assert "has no experts" in str(experts.experts_exist(LLAMA_70B, 4))


def test_experts_split_over_their_ranks() -> None:
    assert experts.experts_split(MIXTURE, 4) is None
    assert "8 experts" in str(experts.experts_split(MIXTURE, 3))
    assert experts.experts_split(LLAMA_70B, 3) is None


def test_expert_width_splits() -> None:
    assert experts.expert_width_splits(MIXTURE, 8) is None
    assert "14336" in str(experts.expert_width_splits(MIXTURE, 5))


def test_experts_with_biases_stay_whole() -> None:
    biased = load_model("gpt-oss-20b")
    assert biased.moe is not None and biased.moe.expert_bias
    assert experts.biased_experts_stay_whole(biased, 1) is None
    assert experts.biased_experts_stay_whole(MIXTURE, 2) is None
    assert "need expert_tensor_parallel 1" in str(experts.biased_experts_stay_whole(biased, 2))


def test_expert_ranks_cover_the_ranks_of_a_stage() -> None:
    # tp 2, cp 1, dp 4: 8 ranks hold 8 experts whole (etp 1, ep 8) but not etp 2, ep 8.
    assert experts.expert_ranks_divide_stage(2, 1, 4, 1, 8) is None
    assert "8 ranks of a stage" in str(experts.expert_ranks_divide_stage(2, 1, 4, 2, 8))


def test_experts_have_as_many_replicas_where_stages_do_not_come_last() -> None:
    assert experts.expert_replicas_match(2, 1, 4, 1, 8, "tp-cp-ep-dp-pp") is None
    assert experts.expert_replicas_match(2, 1, 4, 2, 1, "tp-cp-ep-pp-dp") is None
    for ep, replicas in ((8, 1), (1, 8)):
        said = str(experts.expert_replicas_match(2, 1, 4, 1, ep, "tp-cp-ep-pp-dp"))
        assert f"experts have {replicas} replicas, the rest 4" in said


@pytest.mark.parametrize(
    ("name", "precision", "refused", "complaint"),
    [
        ("llama3-70b", "mxfp8", [], ""),
        ("qwen2.5-72b", "fp8", [], ""),
        ("qwen2.5-72b", "mxfp8", [8], "the feed-forward block is 3696 wide on each rank, no multiple of 32"),
        ("glm-4.5-air", "fp8", [8], "the feed-forward block is 1368 wide on each rank, no multiple of 16"),
        ("glm-4.5-air", "mxfp8", [4, 8], "the feed-forward block is 1368"),
        ("glm-4.5-air", "bf16", [], ""),
        ("gpt2-xl", "nvfp4", [8], "heads are 200 wide"),
        ("nemotron-h-8b", "mxfp8", [8], "Mamba's input map is 2320 wide"),
        ("deepseek-v3", "mxfp8", [], ""),
    ],
)
def test_sides_of_narrow_products_are_made_of_whole_blocks(
    name: str, precision: Precision, refused: list[int], complaint: str
) -> None:
    """Transformer Engine stops at others in the first forward pass: "Incorrect shape ... for MXFP8"."""
    model = load_model(name)
    said = {tp: narrow.tensor_widths_fill_blocks(model, precision, tp) for tp in (1, 2, 4, 8)}
    assert [tp for tp, message in said.items() if message is not None] == refused
    assert complaint in str(said[8])


def test_experts_and_tokens_of_narrow_products_are_made_of_whole_blocks() -> None:
    model = load_model("gpt-oss-20b")  # experts 2,880 wide
    found = [narrow.expert_widths_fill_blocks(model, "mxfp8", etp) for etp in (1, 2, 4)]
    assert found[:2] == [None, None] and "720 wide on each rank, no multiple of 32" in str(found[2])
    assert narrow.expert_widths_fill_blocks(model, "fp8", 4) is None
    assert narrow.expert_widths_fill_blocks(LLAMA_70B, "mxfp8", 3) is None
    blocks = workload(1040).model_copy(update={"precision": "mxfp8"})
    assert "no multiple of 32" in str(sequence.fp8_tokens_fill_rows(blocks, 1, 1, 1, False))
    assert sequence.fp8_tokens_fill_rows(blocks, 1, 1, 2, False) is None
