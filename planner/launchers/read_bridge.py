"""The way back from Megatron-Bridge: overrides on a recipe, as the words of a Megatron-LM command line.

The overrides say what the plan decides, the recipe what the model is: a named recipe is one of ours, and a
recipe of our own writing states the fields of its provider. Both become Megatron-LM's arguments, which are
then read as from any launch script.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from planner.data.load import load_model
from planner.errors import InstanceError
from planner.launchers import bridge_model
from planner.launchers.arguments import words
from planner.launchers.megatron_arguments import FP32_GRADIENTS, number_format
from planner.launchers.megatron_bridge import CURRENT_SCALING, MIXED_PRECISION
from planner.launchers.megatron_model import model_arguments, moe_arguments
from planner.launchers.model_constants import all_constants
from planner.rules.versions import NEWEST

VALUES = {
    "model.tensor_model_parallel_size": "--tensor-model-parallel-size",
    "model.pipeline_model_parallel_size": "--pipeline-model-parallel-size",
    "model.context_parallel_size": "--context-parallel-size",
    "model.expert_model_parallel_size": "--expert-model-parallel-size",
    "model.expert_tensor_parallel_size": "--expert-tensor-parallel-size",
    "model.pipeline_model_parallel_layout": "--pipeline-model-parallel-layout",
    "model.num_layers_in_first_pipeline_stage": "--decoder-first-pipeline-num-layers",
    "model.num_layers_in_last_pipeline_stage": "--decoder-last-pipeline-num-layers",
    "model.microbatch_group_size_per_vp_stage": "--microbatch-group-size-per-virtual-pipeline-stage",
    "model.cp_comm_type": "--cp-comm-type",
    "model.hierarchical_context_parallel_sizes": "--hierarchical-context-parallel-sizes",
    "model.recompute_granularity": "--recompute-granularity",
    "model.recompute_method": "--recompute-method",
    "model.recompute_num_layers": "--recompute-num-layers",
    "model.recompute_modules": "--recompute-modules",
    "model.moe_token_dispatcher_type": "--moe-token-dispatcher-type",
    "model.moe_flex_dispatcher_backend": "--moe-flex-dispatcher-backend",
    "model.moe_expert_capacity_factor": "--moe-expert-capacity-factor",
    "model.cross_entropy_fusion_impl": "--cross-entropy-fusion-impl",
    "model.cuda_graph_impl": "--cuda-graph-impl",
    "model.seq_length": "--seq-length",
    "train.micro_batch_size": "--micro-batch-size",
    "train.global_batch_size": "--global-batch-size",
    "train.train_iters": "--train-iters",
    "tokenizer.vocab_size": "--vocab-size",
    "model.rotary_base": "--rotary-base",
    "model.layernorm_epsilon": "--norm-epsilon",
    "ddp.data_parallel_sharding_strategy": "--data-parallel-sharding-strategy",
    "ddp.bucket_size": "--ddp-bucket-size",
    "ddp.num_distributed_optimizer_instances": "--num-distributed-optimizer-instances",
}
"""Fields with a value, and the argument of Megatron-LM that states it."""

SWITCHES = {
    "model.sequence_parallel": "--sequence-parallel",
    "model.tp_comm_overlap": "--tp-comm-overlap",
    "model.account_for_embedding_in_pipeline_split": "--account-for-embedding-in-pipeline-split",
    "model.account_for_loss_in_pipeline_split": "--account-for-loss-in-pipeline-split",
    "model.moe_permute_fusion": "--moe-permute-fusion",
    "model.moe_router_fusion": "--moe-router-fusion",
    "model.moe_router_padding_for_quantization": "--moe-router-padding-for-quantization",
    "model.moe_router_padding_for_fp8": "--moe-router-padding-for-fp8",
    "model.overlap_moe_expert_parallel_comm": "--overlap-moe-expert-parallel-comm",
    "model.moe_grouped_gemm": "--moe-grouped-gemm",
    "model.moe_pad_expert_input_to_capacity": "--moe-pad-expert-input-to-capacity",
    "model.cross_entropy_loss_fusion": "--cross-entropy-loss-fusion",
    "ddp.use_megatron_fsdp": "--use-megatron-fsdp",
    "ddp.use_distributed_optimizer": "--use-distributed-optimizer",
    "ddp.overlap_grad_reduce": "--overlap-grad-reduce",
    "ddp.overlap_param_gather": "--overlap-param-gather",
    "dist.use_tp_pp_dp_mapping": "--use-tp-pp-dp-mapping",
}
"""Fields that are true or false, and the switch of Megatron-LM that says so."""

PROVIDER = {
    "num_layers": "--num-layers",
    "hidden_size": "--hidden-size",
    "ffn_hidden_size": "--ffn-hidden-size",
    "num_attention_heads": "--num-attention-heads",
    "num_query_groups": "--num-query-groups",
    "kv_channels": "--kv-channels",
    "normalization": "--normalization",
    "position_embedding_type": "--position-embedding-type",
    "attention_dropout": "--attention-dropout",
    "hidden_dropout": "--hidden-dropout",
    "mtp_num_layers": "--mtp-num-layers",
    "q_lora_rank": "--q-lora-rank",
    "kv_lora_rank": "--kv-lora-rank",
    "qk_head_dim": "--qk-head-dim",
    "qk_pos_emb_head_dim": "--qk-pos-emb-head-dim",
    "v_head_dim": "--v-head-dim",
    "softmax_type": "--softmax-type",
    "window_attn_skip_freq": "--window-attn-skip-freq",
    "num_moe_experts": "--num-experts",
    "moe_router_topk": "--moe-router-topk",
    "moe_router_score_function": "--moe-router-score-function",
    "moe_ffn_hidden_size": "--moe-ffn-hidden-size",
    "moe_shared_expert_intermediate_size": "--moe-shared-expert-intermediate-size",
    "make_vocab_size_divisible_by": "--make-vocab-size-divisible-by",
    "layernorm_epsilon": "--norm-epsilon",
    "rotary_base": "--rotary-base",
    "rotary_percent": "--rotary-percent",
    "rope_scaling_factor": "--rope-scaling-factor",
    "rotary_scaling_factor": "--rotary-scaling-factor",
    "seq_len_interpolation_factor": "--rotary-seq-len-interpolation-factor",
    "mscale": "--mscale",
    "mscale_all_dim": "--mscale-all-dim",
    "yarn_rotary_scaling_factor": "--rotary-scaling-factor",
    "yarn_mscale": "--mscale",
    "yarn_mscale_all_dim": "--mscale-all-dim",
    "yarn_beta_fast": "--yarn-beta-fast",
    "yarn_beta_slow": "--yarn-beta-slow",
    "yarn_original_max_position_embeddings": "--yarn-original-max-position-embeddings",
    "moe_router_topk_scaling_factor": "--moe-router-topk-scaling-factor",
    "moe_router_num_groups": "--moe-router-num-groups",
    "moe_router_group_topk": "--moe-router-group-topk",
}
"""Fields of a model provider with a value, and the argument of Megatron-LM that states it."""

_FORMATS = {"bfloat16": "bf16", "float32": "fp32"}
"""Number formats by PyTorch's names, in Megatron-LM's."""

IMPLIED = frozenset(
    {
        "model.virtual_pipeline_model_parallel_size",
        "model.overlap_p2p_comm",
        "model.batch_p2p_comm",
        "model.cpu_offloading",
        "model.fine_grained_activation_offloading",
        "model.vocab_size",
        "model.moe_shared_expert_overlap",
        "model.bias_activation_fusion",
        "model.apply_rope_fusion",
        "model.deallocate_pipeline_outputs",
        "tokenizer.use_tokenizer_vocab_size",
        "dataset.seq_length",
        "dataset.create_attention_mask",
        "scheduler.lr_decay_iters",
        "dist.use_megatron_fsdp",
        "checkpoint.ckpt_format",
        "optimizer.use_distributed_optimizer",
        "optimizer.overlap_param_gather",
        "optimizer.use_precision_aware_optimizer",
        "optimizer.optimizer_cpu_offload",
        "comm_overlap",
    }
)
"""Fields that repeat others or switch off what a plan never has."""


def megatron_words(entry_point: Path, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Words of Megatron-LM's command line that say the same as a rank's `train.py` and its overrides.

    Parameters
    ----------
    arguments
        The file of overrides, then further overrides, of which later ones win.

    Raises
    ------
    InstanceError
        Where a file is missing, or the recipe is none that we know.
    """
    lines = [*_text(Path(arguments[0])).splitlines(), *arguments[1:]]
    pairs = [line.partition("=") for line in lines if line.strip() and not line.startswith("#")]
    fields = {key.lstrip("+"): value.strip("\"'") for key, _, value in pairs}
    of_format = _wide_layers_words(entry_point, fields)
    settings = (*_override_words(fields), *_settings_words(entry_point), *of_format)
    return (*_model_words(entry_point, fields), *settings)


def _settings_words(entry_point: Path) -> Iterator[str]:
    """What `train.py` sets itself, as overrides cannot."""
    backend = _constant(entry_point, "ATTENTION_BACKEND", "auto")
    if backend != "auto":
        yield from ("--attention-backend", str(backend))
    formats = _constant(entry_point, "GRADIENT_FORMATS", {})
    assert isinstance(formats, dict)
    for name, value in formats.items():
        yield from ("--" + name.replace("_", "-"), _FORMATS[value])
    narrow = _constant(entry_point, "NARROW_WEIGHTS", {})
    assert isinstance(narrow, dict)
    yield from ("--" + name.replace("_", "-") for name, value in narrow.items() if value)


def _wide_layers_words(entry_point: Path, fields: dict[str, str]) -> Iterator[str]:
    """That first and last layer stay in 16 bits, as current scaling has it unless `train.py` says other."""
    named = fields.get("mixed_precision", "").replace("-", "_")
    if named == CURRENT_SCALING and _constant(entry_point, "FIRST_LAST_LAYERS_BF16", True):
        yield "--first-last-layers-bf16"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InstanceError(f"cannot be read: {error}", str(path)) from None


def _override_words(fields: dict[str, str]) -> Iterator[str]:
    for key, value in fields.items():
        if key in IMPLIED or value == "null":
            continue
        if key == "mixed_precision":
            of_tensor = value == CURRENT_SCALING
            precision = next((p for p, name in MIXED_PRECISION.items() if name == value), None)
            if precision is None and not of_tensor:
                raise InstanceError(f"mixed_precision {value} is not known", "overrides")
            yield from words(number_format(precision or "fp8", current_scaling=of_tensor))
        elif key in SWITCHES:
            if value == "true":
                yield SWITCHES[key]
        elif key == "model.gradient_accumulation_fusion":
            if value == "false":
                yield "--no-gradient-accumulation-fusion"
        elif key == "ddp.grad_reduce_in_fp32":
            yield "--grad-reduce-in-bf16" if value == "false" else FP32_GRADIENTS
        elif key in VALUES:
            yield VALUES[key]
            yield from value.strip("[]").replace(" ", "").split(",")
        else:  # told to the user as a flag that we do not know
            yield f"--{key}"


def _model_words(entry_point: Path, fields: dict[str, str]) -> tuple[str, ...]:
    """The model of the recipe that `train.py` names, as arguments of Megatron-LM."""
    recipe = _constant(entry_point, "RECIPE")
    length = int(told) if (told := fields.get("model.seq_length", "")).isdecimal() else 0
    named = next((model for model, known in bridge_model.RECIPES.items() if known == recipe), None)
    if named is not None:
        model = load_model(named)
        shape = (*model_arguments(model, length), *moe_arguments(model, grouped_gemm=False))
        return words((*shape, *all_constants(model, NEWEST)))
    own = entry_point.parent / "recipe.py"
    if recipe != ("recipe", "pretrain_config") or not own.is_file():
        raise InstanceError(
            f"recipe {recipe} is none that is known; known are those of the export", str(entry_point)
        )
    return tuple(_provider_words(own, length))


def _constant(path: Path, name: str, default: object = None) -> object:
    """A constant that a Python file assigns at its top; the default where it assigns none."""
    for node in ast.parse(_text(path)).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == name for t in node.targets
        ):
            return ast.literal_eval(node.value)
    if default is not None:
        return default
    raise InstanceError(f"assigns no {name}; only train.py as exported is read back", str(path))


def _provider_words(recipe: Path, length: int) -> Iterator[str]:
    """The provider that a recipe of our own writing builds, as arguments of Megatron-LM."""
    calls = [node for node in ast.walk(ast.parse(_text(recipe))) if isinstance(node, ast.Call)]
    provider = next((call for call in calls if "Provider" in ast.unparse(call.func)), None)
    if provider is None:
        raise InstanceError("builds no model provider; only a recipe as exported is read back", str(recipe))
    texts = {word.arg: ast.unparse(word.value) for word in provider.keywords if word.arg is not None}
    values = {name: _literal(text) for name, text in texts.items()}
    for name, flag in PROVIDER.items():
        if values.get(name) is not None:
            yield from (flag, str(values[name]))
    yield from ("--max-position-embeddings", str(length))
    if "num_query_groups" in values and values["num_query_groups"] != values["num_attention_heads"]:
        yield "--group-query-attention"
    if "moe_layer_freq" in values:
        yield from ("--moe-layer-freq", texts["moe_layer_freq"].replace(" ", ""))
    if isinstance(window := values.get("window_size"), tuple):
        yield from ("--window-size", f"{window[0]},{window[1]}")
    switches = {
        "--multi-latent-attention": values.get("multi_latent_attention"),
        "--qk-layernorm": values.get("qk_layernorm"),
        "--untie-embeddings-and-output-weights": not values.get("share_embeddings_and_output_weights"),
        "--disable-bias-linear": values.get("add_bias_linear") is False,
        "--add-qkv-bias": values.get("add_qkv_bias"),
        "--no-yarn-correction-range-round-to-int": values.get("yarn_correction_range_round_to_int") is False,
        "--use-rope-scaling": values.get("rope_scaling"),
        "--moe-shared-expert-gate": values.get("moe_shared_expert_gate"),
        "--moe-router-pre-softmax": values.get("moe_router_pre_softmax"),
        "--moe-router-enable-expert-bias": values.get("moe_router_enable_expert_bias"),
        "--quick-geglu": texts["activation_func"] == "quick_gelu",
        "--squared-relu": texts["activation_func"] == "squared_relu",
        "--swiglu": texts["activation_func"].endswith(".silu") and values.get("gated_linear_unit"),
    }
    yield from (flag for flag, on in switches.items() if on)


def _literal(text: str) -> object:
    """A value written out, or None where it is a name."""
    try:
        return ast.literal_eval(text)
    except ValueError:
        return None
