"""The number format and the software that a Megatron-LM command line states.

Defaults are those of megatron-core 0.19.2, `megatron/training/arguments.py`.
"""

from __future__ import annotations

from typing import Any, get_args

from planner.data.chip import Precision
from planner.data.stack import CapturedModule, SelectiveModule, SoftwareStack
from planner.errors import InstanceError
from planner.launchers.megatron.plan_arguments import FP32_GRADIENTS
from planner.launchers.read.flags import Flags

_SELECTIVE: tuple[SelectiveModule, ...] = get_args(SelectiveModule)


def read_precision(flags: Flags) -> Precision:
    """Number format of the matrix products.

    Raises
    ------
    InstanceError
        For fp32, which we do not price.
    """
    if "--fp4-format" in flags:
        return "nvfp4"
    if "--fp8-format" in flags:
        recipe = flags.text("--fp8-recipe", "delayed")
        by_recipe: dict[str, Precision] = {"mxfp8": "mxfp8", "blockwise": "fp8_block"}
        return by_recipe.get(recipe, "fp8")
    if "--bf16" in flags:
        return "bf16"
    if "--fp16" in flags:
        return "fp16"
    raise InstanceError("neither --bf16 nor --fp16: training in fp32 is not predicted", flags.where)


def _loss_bytes_per_logit(flags: Flags) -> float:
    """Bytes of a logit at the loss's peak.

    Transformer Engine's puts the gradient in the logits' place; Megatron-LM's own, fused or not, works on an
    fp32 copy beside them (core/tensor_parallel/cross_entropy.py).
    """
    by_te = flags.text("--cross-entropy-fusion-impl", "native") == "te"
    return 2.0 if by_te and "--cross-entropy-loss-fusion" in flags else 6.0


def read_stack(flags: Flags, base: SoftwareStack, notes: list[str], gradient_ranks: int = 1) -> SoftwareStack:
    """The software with the overlaps, kernels and gradient exchange that the flags switch.

    Parameters
    ----------
    gradient_ranks
        Ranks that share the gradient of a dense parameter.

    Raises
    ------
    InstanceError
        Where a value is no number, or the ranks do not part into the groups that are asked for.
    """
    dropout = any([flags.real(name, 0.1) > 0 for name in ("--attention-dropout", "--hidden-dropout")])
    changes: dict[str, Any] = {
        "dp_overlap": "--overlap-grad-reduce" in flags,
        "dropout": dropout,
        "gradient_accumulation_fusion": "--no-gradient-accumulation-fusion" not in flags,
        "fused_cross_entropy": "--cross-entropy-loss-fusion" in flags,
        "gradients_checked": base.gradients_checked and "--no-check-for-nan-in-loss-and-grad" not in flags,
        "gradients_divided_apart": base.gradients_divided_apart
        and "--ddp-average-in-collective" not in flags,
        "loss_bytes_per_logit": _loss_bytes_per_logit(flags),
        "current_scaling": flags.text("--fp8-recipe", "delayed") == "tensorwise",
        "flash_attention": _fuses_attention(flags),
        "longest_softmax": 4096 if _is_own(flags) else base.longest_softmax,
        "optimizer_shard_size": None,
        "bucket_parameters": None,
    }
    if "--fp8-param-gather" in flags or "--fp4-param-gather" in flags:
        changes["narrow_parameters"] = True
    instances = flags.number("--num-distributed-optimizer-instances", 1)
    if gradient_ranks % instances:
        raise InstanceError(
            f"--num-distributed-optimizer-instances {instances} does not divide the {gradient_ranks} ranks "
            "that share a gradient; take a divisor",
            flags.where,
        )
    if instances > 1:
        changes["optimizer_shard_size"] = max(gradient_ranks // instances, 1)
    kind = flags.values.get("--cp-comm-type", ())
    if len(set(kind)) == 1 and kind[0] in get_args(SoftwareStack.model_fields["cp_exchange"].annotation):
        changes["cp_exchange"] = kind[0]
    elif kind:
        notes.append(f"context parallelism around a ring; --cp-comm-type {' '.join(kind)} is not modelled")
    if "--num-experts" in flags:
        changes |= _dispatch(flags, notes)
    if "--no-overlap-p2p-communication" in flags:
        changes["p2p_overlap_interleaved"] = False
    if captures_graphs(flags):
        changes |= _captured(flags, notes)
    if "--ddp-bucket-size" in flags:
        changes["bucket_parameters"] = float(flags.number("--ddp-bucket-size"))
    if "--use-precision-aware-optimizer" in flags:
        changes["step_gradient_bytes"] = 0.0
    widths = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0}
    if "--bf16" in flags:
        changes["gradient_bytes"] = 2.0 if "--grad-reduce-in-bf16" in flags else 4.0
    elif "--fp16" in flags:
        changes["gradient_bytes"] = 4.0 if FP32_GRADIENTS in flags else 2.0
    if (width := widths.get(flags.text("--megatron-fsdp-main-grads-dtype", ""))) is not None:
        changes["gradient_bytes"] = width
    if (width := widths.get(flags.text("--megatron-fsdp-grad-comm-dtype", ""))) is not None:
        changes["scattered_gradient_bytes"] = width
    if "--tp-comm-overlap" in flags and not (base.tp_userbuffers or base.tp_overlap_fraction):
        changes["tp_userbuffers"] = True
        notes.append("tensor-parallel communication beside pieces of the products, for --tp-comm-overlap")
    return base.model_copy(update=changes)


def _fuses_attention(flags: Flags) -> bool:
    """Whether attention keeps no scores: not by Megatron-LM's own layers, but for old ones and MindSpeed's.

    Source: megatron-core 0.19.2, core/models/backends.py (`LocalSpecProvider.core_attention`).
    """
    unfused = flags.text("--attention-backend", "auto") in ("unfused", "local")
    return not unfused and (not _is_own(flags) or "--use-flash-attn" in flags)


def _is_own(flags: Flags) -> bool:
    """Whether layers are Megatron-LM's own, not Transformer Engine's."""
    return flags.text("--transformer-impl", "transformer_engine") == "local"


_ROUTER_PADS = ("--moe-router-padding-for-quantization", "--moe-router-padding-for-fp8")


def _dispatch(flags: Flags, notes: list[str]) -> dict[str, Any]:
    """How tokens reach experts: fields of the software."""
    kind = flags.text("--moe-token-dispatcher-type", "allgather")
    if kind == "allgather":
        notes.append("tokens exchanged all to all; --moe-token-dispatcher-type allgather is not priced")
    hybrid = flags.text("--moe-flex-dispatcher-backend", "deepep") == "hybridep"
    apart = "--moe-grouped-gemm" not in flags
    return {
        **(
            {"experts_apart": True, "experts_as_single_products": False}
            if apart
            else {"experts_apart": False}
        ),
        "moe_dispatcher": "deduplicating" if kind == "flex" else "alltoall",
        "dispatcher_library": "hybridep" if hybrid and kind == "flex" else "deepep",
        "moe_permute_fusion": "--moe-permute-fusion" in flags,
        "moe_router_fusion": "--moe-router-fusion" in flags,
        "ep_overlap": "--overlap-moe-expert-parallel-comm" in flags,
        "pads_narrow_experts": not any(flag in flags for flag in _ROUTER_PADS),
    }


def _captured(flags: Flags, notes: list[str]) -> dict[str, Any]:
    """What CUDA graphs launch: all of a layer, or modules of one with experts."""
    names = flags.values.get("--cuda-graph-modules", flags.values.get("--cuda-graph-scope", ()))
    if "--num-experts" not in flags or not names or {"moe", "full", "full_iteration"} & set(names):
        notes.append("no waiting for the host: CUDA graphs are captured")
        return {"host_layer_floor_ms": 0.0}
    return {"captured_modules": tuple(name for name in get_args(CapturedModule) if name in names)}


def captures_graphs(flags: Flags) -> bool:
    """Whether kernels are launched by captured CUDA graphs."""
    asked = any(flag in flags for flag in ("--enable-cuda-graph", "--external-cuda-graph"))
    return asked or flags.text("--cuda-graph-impl", "none") not in ("none", "")


def read_recompute_modules(
    flags: Flags, stack: SoftwareStack, notes: list[str]
) -> tuple[SelectiveModule, ...] | None:
    """Modules that selective recomputation runs again; None where they are those of the stack."""
    modules = flags.values.get("--recompute-modules", ("core_attn",))
    known = tuple(name for name in _SELECTIVE if name in modules)
    if len(known) < len(modules):
        notes.append(
            f"of --recompute-modules {' '.join(modules)} only {' '.join(known) or 'none'} is modelled"
        )
    return None if not known or set(known) == set(stack.selective_modules) else known
