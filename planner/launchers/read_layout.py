"""Which layers each virtual stage holds, by whichever flags of Megatron-LM say so."""

from __future__ import annotations

import re

from planner.errors import InstanceError
from planner.launchers.read_flags import Flags


def layer_counts(flags: Flags) -> list[list[int]]:
    """Layers of every virtual stage of every pipeline rank, as [stage][chunk].

    Raises
    ------
    InstanceError
        Where the flags place other layers than the model has, or what our plans cannot say.
    """
    p = flags.number("--pipeline-model-parallel-size", 1)
    by_layout = "--pipeline-model-parallel-layout" in flags
    counts = _by_layout(flags, p) if by_layout else _by_numbers(flags, p)
    placed, layers = sum(map(sum, counts)), flags.number("--num-layers")
    if placed != layers:
        raise InstanceError(f"the stages hold {placed} layers, --num-layers is {layers}", flags.where)
    return counts


def layout_stages(text: str) -> list[str]:
    """Entries of a layout string written out, one character a layer: `Et*2|(tt|)*2L` is Ett, tt, tt, L.

    Megatron repeats groups in parentheses first, then single characters; commas mean nothing.
    """
    text = text.replace(",", "").replace(" ", "")
    text = re.sub(r"\(([^()]*)\)\*(\d+)", lambda m: m[1] * int(m[2]), text)
    text = text.replace("(", "").replace(")", "")
    text = re.sub(r"(.)\*(\d+)", lambda m: m[1] * int(m[2]), text)
    return text.split("|")


def _by_layout(flags: Flags, p: int) -> list[list[int]]:
    text = flags.text("--pipeline-model-parallel-layout")
    entries = layout_stages(text)
    strange = set("".join(entries)) - set("EtmL")
    if strange:
        raise InstanceError(f"layout {text}: {', '.join(sorted(strange))} is not understood", flags.where)
    if len(entries) % p:
        raise InstanceError(f"layout {text}: {len(entries)} stages on {p} pipeline ranks", flags.where)
    joined = "|".join(entries)
    if joined.count("E") != 1 or joined.count("L") != 1 or joined[0] != "E" or joined[-1] != "L":
        raise InstanceError(f"layout {text}: needs one E, first, and one L, last", flags.where)
    if any("m" in entry for entry in entries[:-1]):
        raise InstanceError(
            f"layout {text}: prediction layers apart from the loss are not priced", flags.where
        )
    return [[entry.count("t") for entry in entries[s::p]] for s in range(p)]


def _by_numbers(flags: Flags, p: int) -> list[list[int]]:
    """Even stages, or first and last with counts of their own, each cut into chunks."""
    layers = flags.number("--num-layers")
    ends = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")
    if any(flag in flags for flag in ends):
        of_stage = _with_own_ends(flags, p, layers, ends)
    else:
        embedding = "--account-for-embedding-in-pipeline-split" in flags
        loss = "--account-for-loss-in-pipeline-split" in flags
        total = layers + embedding + loss
        if total % p:
            raise InstanceError(f"{total} layers do not split evenly over {p} stages", flags.where)
        of_stage = [total // p] * p
        of_stage[0] -= embedding
        of_stage[-1] -= loss
    chunks = _chunks(flags, layers // p)
    if chunks > 1 and any(count % chunks for count in of_stage):
        raise InstanceError(f"{of_stage} layers a stage do not split into {chunks} chunks", flags.where)
    return [[count // chunks] * chunks for count in of_stage]


def _with_own_ends(flags: Flags, p: int, layers: int, ends: tuple[str, str]) -> list[int]:
    given = [flags.number(flag) if flag in flags else None for flag in ends]
    middle = p - sum(count is not None for count in given)
    rest = layers - sum(count or 0 for count in given)
    if middle and rest % middle:
        raise InstanceError(f"{rest} layers do not split evenly over {middle} stages", flags.where)
    each = rest // middle if middle else 0
    first, last = (each if count is None else count for count in given)
    return [first, *[each] * (p - 2), last][:p]


def _chunks(flags: Flags, layers_a_stage: int) -> int:
    if "--num-virtual-stages-per-pipeline-rank" in flags:
        return flags.number("--num-virtual-stages-per-pipeline-rank")
    if "--num-layers-per-virtual-pipeline-stage" in flags:
        return max(1, layers_a_stage // flags.number("--num-layers-per-virtual-pipeline-stage"))
    return 1
