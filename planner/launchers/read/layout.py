"""Which layers each virtual stage holds, by whichever flags of Megatron-LM say so."""

from __future__ import annotations

import re

from planner.data.checks import MAX_LAYERS
from planner.errors import InstanceError
from planner.launchers.megatron.hybrid import PATTERN, PREDICTION, STAGE_END
from planner.launchers.read.flags import Flags

_VIRTUAL = ("--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage")
_ENDS = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")
_ACCOUNT = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")


def layer_counts(flags: Flags) -> list[list[int]]:
    """Layers of every virtual stage of every pipeline rank, as [stage][chunk].

    Raises
    ------
    InstanceError
        Where the flags place other layers than the model has, or what our plans cannot say.
    """
    p = flags.number("--pipeline-model-parallel-size", 1)
    if STAGE_END in flags.text(PATTERN, ""):
        counts = _by_pattern(flags, p)
    else:
        by_layout = "--pipeline-model-parallel-layout" in flags
        counts = _by_layout(flags, p) if by_layout else _by_numbers(flags, p)
    placed, layers = sum(map(sum, counts)), flags.number("--num-layers")
    if placed != layers:
        raise InstanceError(f"the stages hold {placed} layers, --num-layers is {layers}", flags.where)
    return counts


def even_layout(layers: int, p: int) -> str:
    """A layout string that spreads the layers, the middle stages holding what is left over."""
    each, rest = divmod(layers, p)
    counts = [each + (1 if (p - rest) // 2 <= s < (p - rest) // 2 + rest else 0) for s in range(p)]
    return "E" + "|".join(f"t*{count}" if count else "" for count in counts) + "L"


def _uneven(flags: Flags, layers: int, p: int, what: str) -> InstanceError:
    """The refusal of a split that Megatron-LM refuses, or in older releases rounds down in silence."""
    return InstanceError(
        f"{what}, so that Megatron-LM refuses or, in older releases, builds fewer layers; with "
        f'--pipeline-model-parallel-layout "{even_layout(layers, p)}" every layer has its place',
        flags.where,
    )


def layout_stages(text: str) -> list[str]:
    """Entries of a layout string written out, one character a layer: `Et*2|(tt|)*2L` is Ett, tt, tt, L.

    Megatron repeats groups in parentheses first, then single characters; commas mean nothing.

    Raises
    ------
    InstanceError
        Where it repeats more layers than any model has.
    """
    text = text.replace(",", "").replace(" ", "")
    if any(int(count[:9]) > MAX_LAYERS for count in re.findall(r"\*(\d+)", text)):
        raise InstanceError(f"repeats more than {MAX_LAYERS} times", f"layout {text[:60]!r}")
    text = re.sub(r"\(([^()]*)\)\*(\d+)", lambda m: m[1] * int(m[2]), text)
    text = text.replace("(", "").replace(")", "")
    text = re.sub(r"(.)\*(\d+)", lambda m: m[1] * int(m[2]), text)
    return text.split("|")


def _by_layout(flags: Flags, p: int) -> list[list[int]]:
    text = flags.text("--pipeline-model-parallel-layout")
    besides = [flag for flag in (*_VIRTUAL, *_ENDS, *_ACCOUNT) if flag in flags]
    if besides:
        raise InstanceError(
            f"--pipeline-model-parallel-layout with {' and '.join(besides)}: the layout alone says which "
            "layers a stage holds and how many virtual stages there are; leave the rest out",
            flags.where,
        )
    entries = layout_stages(text)
    strange = set("".join(entries)) - set("EtmL")
    if strange:
        raise InstanceError(f"layout {text}: {', '.join(sorted(strange))} is not understood", flags.where)
    if len(entries) % p:
        raise InstanceError(
            f"layout {text}: {len(entries)} stages on {p} pipeline ranks; write a multiple of them",
            flags.where,
        )
    joined = "|".join(entries)
    if joined.count("E") != 1 or joined.count("L") != 1 or joined[0] != "E" or joined[-1] != "L":
        raise InstanceError(f"layout {text}: needs one E, first, and one L, last", flags.where)
    placed, wanted = joined.count("m"), flags.number("--mtp-num-layers", 0, least=0)
    if placed != wanted:
        raise InstanceError(
            f"layout {text}: has {placed} prediction layers (m), --mtp-num-layers is {wanted}; write "
            "one m for each",
            flags.where,
        )
    return [[entry.count("t") for entry in entries[s::p]] for s in range(p)]


def prediction_stage(flags: Flags) -> int | None:
    """Pipeline rank that holds prediction layers, where it is not the last; the rules say which can.

    Raises
    ------
    InstanceError
        Where the layout parts the prediction layers, or places other ones than there are.
    """
    p = flags.number("--pipeline-model-parallel-size", 1)
    entries = layout_stages(flags.text("--pipeline-model-parallel-layout", "")) if p > 1 else []
    ranks = sorted({position % p for position, entry in enumerate(entries) if "m" in entry})
    if len(ranks) > 1 or any("m" in entry for entry in entries[:-p]):
        raise InstanceError(
            "layout: prediction layers must be together, in the last virtual stage of one pipeline rank",
            flags.where,
        )
    return ranks[0] if ranks and ranks[0] != p - 1 else None


def _by_pattern(flags: Flags, p: int) -> list[list[int]]:
    """Of a hybrid model, whose pattern of layers ends the stages."""
    entries = [len(entry) for entry in flags.text(PATTERN).partition(PREDICTION)[0].split(STAGE_END)]
    if len(entries) % p:
        raise InstanceError(
            f"{PATTERN} ends {len(entries)} stages on {p} pipeline ranks; write a multiple of them",
            flags.where,
        )
    return [entries[s::p] for s in range(p)]


def _by_numbers(flags: Flags, p: int) -> list[list[int]]:
    """Even stages, or first and last with counts of their own, each cut into chunks."""
    layers = flags.number("--num-layers")
    accounted = [flag for flag in _ACCOUNT if flag in flags]
    if any(flag in flags for flag in _ENDS):
        if accounted:
            raise InstanceError(
                f"{accounted[0]} with counts of first or last stage: give one or the other", flags.where
            )
        of_stage = _with_own_ends(flags, p, layers, _ENDS)
    else:
        embedding, loss = (flag in flags for flag in _ACCOUNT)
        total = layers + embedding + loss
        if total % p:
            units = f" (with embedding and loss counted {total})" if total != layers else ""
            what = f"{layers} layers{units} do not split evenly over {p} stages"
            raise _uneven(flags, layers, p, what)
        of_stage = [total // p] * p
        of_stage[0] -= embedding
        of_stage[-1] -= loss
    chunks = _chunks(flags, layers // p)
    if chunks > 1 and any(count % chunks for count in of_stage):
        raise InstanceError(f"{of_stage} layers a stage do not split into {chunks} chunks", flags.where)
    return [[count // chunks] * chunks for count in of_stage]


def _with_own_ends(flags: Flags, p: int, layers: int, ends: tuple[str, str]) -> list[int]:
    given = [flags.number(flag, least=0) if flag in flags else None for flag in ends]
    if p == 1:
        for flag, count in zip(ends, given, strict=True):
            if count not in (None, layers):
                raise InstanceError(
                    f"{flag} {count} with one pipeline stage, which holds all {layers} layers: some releases "
                    f"of Megatron-LM would build {count} of them in silence; leave the flag out",
                    flags.where,
                )
        return [layers]
    if any(count is not None and count <= 0 for count in given):
        raise InstanceError(f"{' and '.join(ends)} must be above 0", flags.where)
    middle = p - sum(count is not None for count in given)
    rest = layers - sum(count or 0 for count in given)
    if rest < 0 or (middle and rest % middle):
        fixed = " and ".join(f"{flag} {count}" for flag, count in zip(ends, given, strict=True) if count)
        what = f"{fixed} leave {rest} of {layers} layers, which do not split evenly over {middle} stages"
        raise _uneven(flags, layers, p, what)
    each = rest // middle if middle else 0
    first, last = (each if count is None else count for count in given)
    return [first, *[each] * (p - 2), last][:p]


def _chunks(flags: Flags, layers_a_stage: int) -> int:
    by_count, by_layers = _VIRTUAL
    if by_count in flags:
        return flags.number(by_count)
    if by_layers in flags:
        each = flags.number(by_layers)
        if each < 1 or layers_a_stage % each:
            raise InstanceError(
                f"{by_layers} {each}: {layers_a_stage} layers of a stage do not split so; take a divisor",
                flags.where,
            )
        return layers_a_stage // each
    return 1
