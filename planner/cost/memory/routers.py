"""What a router keeps of every token and expert from forward to backward."""

from __future__ import annotations

from planner.data.model_spec import ModelSpec
from planner.data.scores import expert_scores, softmax_over_all
from planner.data.stack import SoftwareStack

SCORE_BYTES = 4.0
"""Scores are fp32 whatever the logits are."""

MAP_BYTES = 1.0
"""Which experts a token goes to."""


def router_bytes(model: ModelSpec, stack: SoftwareStack) -> float:
    """Bytes that are kept of one token and expert.

    Scores of all experts are kept where softmax or sigmoid comes before the choice; a softmax after it is of
    the chosen alone. The auxiliary loss makes scores of all once more; Transformer Engine's kernels keep what
    is between as well (`topk_routing_with_score_function` and `compute_routing_scores_for_aux_loss` of
    core/transformer/moe/moe_utils.py, Megatron-LM core 0.19; `FusedTopkScoreFunction` of
    transformer_engine/pytorch/router.py). The kernel that sorts tokens by experts keeps places of rows and
    numbers of experts, 32 bits each for every expert (transformer_engine/pytorch/triton/permutation.py,
    `make_row_id_map`: tokens x (2 experts + 1)); those that loop over experts keep places alone. Where one
    copy of a token is sent it sorts what came, by the few experts of a rank.
    """
    over_all = expert_scores(model) != "softmax" or softmax_over_all(model) or stack.moe_router_fusion
    kept = MAP_BYTES + SCORE_BYTES * max(over_all + stack.balances_by_loss, 1)
    if stack.moe_permute_fusion and stack.moe_dispatcher == "alltoall":
        kept += 4.0 if stack.moe_permute_loops else 8.0
    return kept
