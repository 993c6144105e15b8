"""The model of a measured run: its stated sizes, with the traits that its name implies."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from planner.calibrate.patterns import SkipRun, compiled, occurs, table
from planner.calibrate.runs import Run, RunModel
from planner.data.load import load_model
from planner.data.model_spec import ModelSpec

NO_MTP = r"w/o MTP|slice|without MTP"
"""Words that say that the multi-token-prediction layers of the named model were left out."""


def model_of(run: Run) -> tuple[ModelSpec, tuple[str, ...]]:
    """Model of a run and what was assumed of it.

    Sizes are the run's own. What it does not say (gate, norms, biases, latent attention,
    multi-token prediction, a missing vocabulary) is that of the model or family that its name
    matches in `instances/tables/model_patterns.yaml`.

    Raises
    ------
    SkipRun
        Where the vocabulary, the shape of the experts or the order of a hybrid's layers is unknown, or the
        sizes fit no model.
    """
    if run.model.moe is None and (run.plan.expert_parallel or 1) > 1:
        raise SkipRun("model shape: experts unknown")
    one_rank = run.plan.tensor_parallel or 1 if run.plan.shard_of_one_rank_only else 1
    with_mtp = not occurs(NO_MTP, f"{run.model.name} {run.notes or ''}")
    return _model(run.model, run.workload.seq_length, one_rank, with_mtp)


@lru_cache(maxsize=4096)
def _model(
    shape: RunModel, seq_length: int, shards: int, with_mtp: bool
) -> tuple[ModelSpec, tuple[str, ...]]:
    """Build the model of a shape; `shards` > 1 gives the part that one tensor-parallel rank computes."""
    assumptions: list[str] = []
    base = _family(shape, assumptions)
    vocab_size = shape.vocab_size or base.pop("named_vocab_size", None)
    ffn = shape.ffn_hidden_size
    if ffn is None:
        ffn = base.pop("named_ffn_hidden_size", None)
    if vocab_size is None:
        raise SkipRun("vocab")
    dense_layers = shape.moe is None or shape.moe.first_dense_layers > 0 or shape.moe.moe_layer_freq > 1
    if ffn is None and dense_layers:
        raise SkipRun("model shape: feed-forward width unknown")
    if not with_mtp:
        base["mtp_num_layers"] = 0
        if base.get("hybrid") is not None:
            base["hybrid"] = {**base["hybrid"], "prediction_pattern": None}
    named = {key: value for key, value in base.items() if not key.startswith("named_")}
    values: dict[str, Any] = {
        "id": compiled(r"[^a-z0-9.\-]+").sub("-", shape.name.lower()).strip("-.") or "model",
        "family": "measured run",
        "source": "measured run",
        **named,
        "num_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "ffn_hidden_size": -(-(ffn or 0) // shards),
        "num_attention_heads": max(1, shape.num_attention_heads // shards),
        "num_query_groups": max(1, (shape.num_query_groups or shape.num_attention_heads) // shards),
        "head_dim": shape.head_dim or shape.hidden_size // shape.num_attention_heads,
        "vocab_size": vocab_size,
        "max_position_embeddings": seq_length,
        "moe": _experts(shape, named),
    }
    if shape.tied_embeddings is not None:
        values["tied_embeddings"] = shape.tied_embeddings
    if shape.vocab_size is None:
        assumptions.append(f"vocabulary of the named model: {vocab_size}")
    try:
        return ModelSpec.model_validate(values), tuple(assumptions)
    except ValidationError:
        raise SkipRun("model shape: impossible sizes") from None


def _family(shape: RunModel, assumptions: list[str]) -> dict[str, Any]:
    """Traits that the name implies; sizes of a named model under `named_...`."""
    rules, name = table("model_patterns"), shape.name.lower().replace("_", "-")
    for rule in rules["families"]:
        if not occurs(rule["pattern"], name):
            continue
        if "skip" in rule:
            raise SkipRun(rule["skip"])
        if "model" not in rule:
            return dict(rule["traits"])
        named = load_model(rule["model"])
        in_order = named.hybrid is not None or named.linear_attention is not None
        if in_order and named.num_layers != shape.num_layers:
            raise SkipRun("model shape: order of the kinds of layers unknown")
        values = named.model_dump(exclude={"published_params", "note", "verified"})
        values["named_vocab_size"] = named.vocab_size
        if named.hidden_size == shape.hidden_size:
            values["named_ffn_hidden_size"] = named.ffn_hidden_size
        values.update(rule.get("traits", {}))
        return values
    kind = shape.kind if shape.kind in rules["kinds"] else None
    if kind is None:
        # Without a gate the usual width is four times the hidden size; with one it is less, or odd.
        kind = "gpt" if shape.ffn_hidden_size == 4 * shape.hidden_size else "llama"
        assumptions.append(f"name matches no known family: read as {kind}-like by its feed-forward width")
    return dict(rules["kinds"][kind])


def _experts(shape: RunModel, named: dict[str, Any]) -> dict[str, Any] | None:
    """Experts as the run states them; biases, latent width and places in a pattern are the named model's."""
    if shape.moe is None:
        return None
    experts = named.get("moe") or {}
    traits = ("router_bias", "expert_bias", "shared_expert_gate")
    biases = {key: experts.get(key, False) for key in traits}
    in_pattern = named.get("hybrid") is not None
    return {
        "num_experts": shape.moe.num_experts,
        "top_k": shape.moe.top_k,
        "ffn_hidden_size": shape.moe.ffn_hidden_size,
        "shared_ffn_hidden_size": shape.moe.shared_ffn_hidden_size,
        "first_dense_layers": 0 if in_pattern else shape.moe.first_dense_layers,
        "layer_freq": 1 if in_pattern else shape.moe.moe_layer_freq,
        "latent_size": experts.get("latent_size"),
        **biases,
    }
