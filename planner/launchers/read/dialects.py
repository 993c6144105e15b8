"""Words of Megatron-LM's forks and older releases, said in those of today's Megatron-LM.

MindSpeed-LLM, Pai-Megatron-Patch and Megatron-DeepSpeed have names of their own for what Megatron-LM has
too, and older releases had others. A script that uses them would describe another network if they were passed
over, so that they are turned into upstream's words before anything is read. (Their arguments and example
scripts: Ascend/MindSpeed-LLM, alibaba/Pai-Megatron-Patch, deepspeedai/Megatron-DeepSpeed; NVIDIA/Megatron-LM
v2.0 to core 0.6.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from planner.data.checks import MAX_LAYERS
from planner.errors import InstanceError
from planner.launchers.megatron.layer_lists import layer_list

Values = dict[str, tuple[str, ...]]
"""Values of every flag of a command line."""

_RENAMED = {
    "--multi-head-latent-attention": "--multi-latent-attention",
    "--qk-rope-head-dim": "--qk-pos-emb-head-dim",
    "--qk-nope-head-dim": "--qk-head-dim",
    "--moe-intermediate-size": "--moe-ffn-hidden-size",
    "--num-mtp-predictor": "--mtp-num-layers",
    "--moe-expert-parallel-size": "--expert-model-parallel-size",
    "--topk": "--moe-router-topk",
    "--layernorm-epsilon": "--norm-epsilon",
    "--routed-scaling-factor": "--moe-router-topk-scaling-factor",
    "--model-parallel-size": "--tensor-model-parallel-size",
    "--encoder-num-layers": "--num-layers",
    "--batch-size": "--micro-batch-size",
    "--warmup": "--lr-warmup-fraction",
    "--checkpoint-num-layers": "--recompute-num-layers",
    "--activations-checkpoint-num-layers": "--recompute-num-layers",
}
"""Other names for the same; where both stand, upstream's counts."""

_PADDED = ("--padded-vocab-size", "--pad-vocab-size-to")
"""Entries of the vocabulary that the network has, whatever the tokenizer's."""

_EXCHANGES = {"megatron_cp_algo": "p2p", "ulysses_cp_algo": "a2a", "hybrid_cp_algo": "a2a+p2p"}
"""MindSpeed's names of context exchanges."""

_VIRTUAL = ("--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank")


def in_upstream_words(given: Values, where: str) -> Values:
    """The same command line in upstream's words.

    Raises
    ------
    InstanceError
        Where forks' flags contradict one another.
    """
    values = {flag: words for flag, words in given.items() if flag not in _RENAMED}
    for flag in given.keys() & _RENAMED.keys():
        values.setdefault(_RENAMED[flag], given[flag])
    for translate in (_dense_of_deepspeed, _old_recomputation, _old_fp8, _context, _vocabulary):
        translate(values)
    _experts(values, where)
    if " ".join(values.get("--spec", ())).startswith("mindspeed"):  # layers that the other flags describe
        del values["--spec"]
    _layer_list(values, where)
    _empty_layers(values, where)
    return values


def expert_pattern(text: str, layers: int, where: str) -> list[bool]:
    """Which layers have experts, by `--moe-layer-freq`: every how many, or a list expression.

    Raises
    ------
    InstanceError
        Where it is neither, or names another number of layers.
    """
    text = text.replace(" ", "")
    if text.isdecimal() and int(text[:9]) > 0:
        return [i % int(text) == 0 for i in range(layers)]
    try:
        found = [number == 1 for number in layer_list(text)]
    except ValueError:
        raise InstanceError(f"--moe-layer-freq {text[:60]} is not understood", where) from None
    if len(found) != layers:
        raise InstanceError(f"--moe-layer-freq {text} names {len(found)} layers of {layers}", where)
    return found


def _number(values: Values, flag: str, default: int) -> int:
    """A whole number of at most nine digits; the default where it is absent or something else."""
    words = values.get(flag, ())
    return int(words[0]) if words and re.fullmatch("[0-9]{1,9}", words[0]) else default


def _asked(flag: str, words: tuple[str, ...], where: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", " ".join(words)):
        raise InstanceError(f"{flag} is {' '.join(words)[:60]!r}, which is no whole number", where)
    return int(words[0])


def _dense_of_deepspeed(values: Values) -> None:
    """Megatron-DeepSpeed's words: one expert a layer is none, ZeRO stage 1 is the distributed optimizer.

    In bf16 its optimizer is one of stage 1, whatever stage is named (BF16_Optimizer).
    """
    if not values.keys() & {"--deepspeed", "--deepspeed-config", "--zero-stage"}:
        return
    if _number(values, "--num-experts", 0) == 1:
        for flag in ("--num-experts", "--moe-router-topk", "--expert-model-parallel-size"):
            values.pop(flag, None)
    if _number(values, "--zero-stage", 0) == 1 or ("--deepspeed" in values and "--bf16" in values):
        values["--use-distributed-optimizer"] = ()
    # By this method embedding and head weigh as a layer each.
    if "embedding" in " ".join(values.pop("--pp-partition-method", ())):
        values["--account-for-embedding-in-pipeline-split"] = ()
        values["--account-for-loss-in-pipeline-split"] = ()


def _old_recomputation(values: Values) -> None:
    """One switch, or a method alone, where there are granularity and method today."""
    method = values.pop("--activations-checkpoint-method", None)
    switches = values.keys() & {"--checkpoint-activations", "--deepspeed-activation-checkpointing"}
    for flag in switches:
        del values[flag]
    if method is not None or switches:
        values.setdefault("--recompute-granularity", ("full",))
        values.setdefault("--recompute-method", method or ("uniform",))
        values.setdefault("--recompute-num-layers", ("1",))


def _old_fp8(values: Values) -> None:
    """A switch for each format, where there is one flag today."""
    for switch, name in (("--fp8-hybrid", "hybrid"), ("--fp8-e4m3", "e4m3")):
        if values.pop(switch, None) is not None:
            values.setdefault("--fp8-format", (name,))


def _experts(values: Values, where: str) -> None:
    """Leading dense layers, shared experts and experts spread over tensor ranks, as MindSpeed says them."""
    layers = min(_number(values, "--num-layers", 0), MAX_LAYERS)
    dense = values.pop("--first-k-dense-replace", None)
    if dense is not None and "--num-experts" in values:
        first = _asked("--first-k-dense-replace", dense, where)
        every = max(1, _number(values, "--moe-layer-freq", 1))
        digits = ",".join(str(int(i >= first and i % every == 0)) for i in range(layers))
        values["--moe-layer-freq"] = (f"[{digits}]",)
    shared = values.pop("--n-shared-experts", None)
    if shared is not None:
        width = _asked("--n-shared-experts", shared, where) * _number(values, "--moe-ffn-hidden-size", 0)
        values.setdefault("--moe-shared-expert-intermediate-size", (str(width),))
    if values.pop("--moe-tp-extend-ep", None) is not None:
        tp, ep = (_number(values, f"--{of}-model-parallel-size", 1) for of in ("tensor", "expert"))
        values["--expert-model-parallel-size"] = (str(tp * ep),)
        values["--expert-tensor-parallel-size"] = ("1",)


def _context(values: Values) -> None:
    kind = values.pop("--context-parallel-algo", None)
    if kind and kind[0] in _EXCHANGES:
        values.setdefault("--cp-comm-type", (_EXCHANGES[kind[0]],))


def _vocabulary(values: Values) -> None:
    """The network's entries go before the tokenizer's, but where they are these in whole multiples."""
    for padded in (values.pop(flag) for flag in _PADDED if flag in values):
        entries = _number(values, "--vocab-size", 0)
        multiple = _number(values, "--make-vocab-size-divisible-by", 128)
        multiple *= _number(values, "--tensor-model-parallel-size", 1)
        is_padding = multiple > 0 and padded == (str(-(-entries // multiple) * multiple),)
        if not entries or not is_padding:
            values["--vocab-size"] = padded


def _layer_list(values: Values, where: str) -> None:
    """Layers of every stage as a list (MindSpeed), as a layout."""
    if "--num-layer-list" not in values:
        return
    text = ",".join(values.pop("--num-layer-list"))
    if any(flag in values for flag in _VIRTUAL):
        raise InstanceError(
            f"--num-layer-list {text} with virtual stages: the list gives each pipeline rank one run of "
            "layers; leave one of the two out",
            where,
        )
    counts = [int(count) for count in text.split(",") if re.fullmatch(r"\s*[0-9]{1,9}\s*", count)]
    stages = _number(values, "--pipeline-model-parallel-size", 1)
    if len(counts) != stages:
        raise InstanceError(
            f"--num-layer-list {text} has {len(counts)} entries for {stages} pipeline ranks; write one each",
            where,
        )
    values["--pipeline-model-parallel-layout"] = (_layout(counts, values),)


def _empty_layers(values: Values, where: str) -> None:
    """Layers that do nothing (MindSpeed) pad a count until it divides: a layout of the others."""
    if "--noop-layers" not in values:
        return
    text = ",".join(values.pop("--noop-layers"))
    padded = min(_number(values, "--num-layers", 0), MAX_LAYERS)
    empty = {int(layer) for layer in text.split(",") if re.fullmatch(r"\s*[0-9]{1,9}\s*", layer)}
    stages = max(1, _number(values, "--pipeline-model-parallel-size", 1))
    each = _layers_of_a_run(values, padded, stages)
    if not empty <= set(range(padded)) or padded % (stages * each):
        raise InstanceError(
            f"--noop-layers {text}: {padded} layers, from 0, do not split evenly over {stages} stages in "
            f"runs of {each}, or have no such layer",
            where,
        )
    if "--moe-layer-freq" in values:
        pattern = expert_pattern("".join(values["--moe-layer-freq"]), padded, where)
        digits = ",".join(str(int(has)) for i, has in enumerate(pattern) if i not in empty)
        values["--moe-layer-freq"] = (f"[{digits}]",)
    values["--num-layers"] = (str(padded - len(empty)),)
    runs = [range(start, start + each) for start in range(0, padded, each)]
    if stages > 1:
        values["--pipeline-model-parallel-layout"] = (
            _layout([sum(layer not in empty for layer in run) for run in runs], values),
        )
    for flag in _VIRTUAL:
        values.pop(flag, None)


def _layers_of_a_run(values: Values, padded: int, stages: int) -> int:
    by_layers, by_count = _VIRTUAL
    if by_layers in values:
        return max(1, _number(values, by_layers, 1))
    return max(1, padded // (stages * max(1, _number(values, by_count, 1))))


def _layout(counts: Sequence[int], values: Values) -> str:
    """A layout string; prediction layers stand before the loss."""
    prediction = "m" * min(_number(values, "--mtp-num-layers", 0), MAX_LAYERS)
    return "E" + "|".join(f"t*{count}" if count else "" for count in counts) + prediction + "L"
