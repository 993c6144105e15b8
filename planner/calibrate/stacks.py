"""Which software ran: the words of a measured run -> a family of software and its properties.

More than a hundred free texts name the software of the known runs; they are no key to compare by. The
family is, and a correction factor learnt on one member serves the others.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import get_args

from planner.calibrate.patterns import occurs, table
from planner.calibrate.runs import Run
from planner.data.load import load_stack
from planner.data.stack import SelectiveModule, SoftwareStack

Setting = float | bool | str | tuple[str, ...]
"""Value of a field of a stack."""


def stack_id(run: Run) -> str:
    """Stack of a run's software, such as `nemo` or `megatron-deepspeed`."""
    return str(_rule(run.software, run.source)["stack"])


def family(run: Run) -> str:
    """Which runs say how far off a prediction of this one is: those of its stack, timed as it was."""
    rule = _rule(run.software, run.source)
    return str(rule.get("family", rule["stack"]))


@lru_cache(maxsize=4096)
def _rule(software: str, source: str) -> dict[str, str]:
    rules = table("stack_patterns")
    for rule in rules["families"]:
        if occurs(rule.get("software"), software) and occurs(rule.get("source"), source):
            return dict(rule)
    return {"stack": rules["default"]}


def memory_kind(run: Run) -> str | None:
    """What the run's memory figure counts, as `Run.memory_kind` has it."""
    for rule in table("stack_patterns")["memory_kinds"]:
        if occurs(rule["software"], run.software):
            return str(rule["kind"])
    return run.memory_kind


RELEASE = re.compile(r"\b(?:v|20)?(2\d)[.-](0[1-9]|1[0-2])\b")
"""Year and month in the words for a piece of software: `25.09`, `v24.11.1`, `2024-12`."""


def release_year(software: str) -> float:
    """When a release came out, in years since 2000; NaN where its words do not say."""
    found = RELEASE.search(software)
    return math.nan if found is None else int(found[1]) + (int(found[2]) - 1) / 12


def stack_of(run: Run) -> SoftwareStack:
    """Properties of the run's software, with what its notes, model and chip say changed."""
    chips = " ".join(group.chip for group in run.cluster.groups)
    num_chips = str(sum(group.num_chips for group in run.cluster.groups))
    precision = run.workload.precision or ""
    mixture = run.model.moe is not None
    changed = _overrides(run.text, run.source, run.model.name, chips, num_chips, precision, mixture)
    if modules := _recomputed(run.text):
        changed += (("selective_modules", modules),)
    if run.plan.dp_mode == "distopt" and run.plan.optimizer_shard_size is not None:
        changed += (("optimizer_shard_size", run.plan.optimizer_shard_size),)
    return _stack(stack_id(run), changed)


@lru_cache(maxsize=4096)
def _overrides(
    text: str, source: str, model: str, chips: str, num_chips: str, precision: str, mixture: bool
) -> tuple[tuple[str, Setting], ...]:
    changed: dict[str, Setting] = {}
    for rule in table("stack_patterns")["overrides"]:
        asked = (
            ("pattern", text),
            ("source", source),
            ("model", model),
            ("chip", chips),
            ("num_chips", num_chips),
            ("precision", precision),
        )
        fits = rule.get("mixture", mixture) == mixture
        if fits and all(occurs(rule.get(name), words) for name, words in asked):
            changed.update((k, tuple(v) if isinstance(v, list) else v) for k, v in rule["set"].items())
    return tuple(changed.items())


RECOMPUTED = re.compile(r"recompute_modules=(.*?)(?=\b\w+=|[;|]|$)")
"""The modules that a recipe's words name, up to the next setting of it."""


@lru_cache(maxsize=4096)
def _recomputed(text: str) -> tuple[str, ...]:
    """Modules that the run's recipe says it recomputes, in its order."""
    found = RECOMPUTED.search(text)
    names = re.findall(r"\w+", found[1]) if found else []
    return tuple(name for name in names if name in get_args(SelectiveModule))


@lru_cache(maxsize=4096)
def _stack(name: str, overrides: tuple[tuple[str, Setting], ...]) -> SoftwareStack:
    stack = load_stack(name)
    return SoftwareStack.model_validate({**stack.model_dump(), **dict(overrides)}) if overrides else stack
