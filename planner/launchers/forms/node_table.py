"""The part of a start script that says what each node runs, as shell branches over node ranks."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from itertools import groupby

from planner.data.problem import Problem
from planner.launchers.placement import HostPlace
from planner.units import MIB


def node_table(
    problem: Problem,
    places: tuple[HostPlace, ...],
    stage_args: Callable[[HostPlace], tuple[str, ...]] | None,
) -> str:
    """Branches over the node rank `$1`; neighbours that run the same share one.

    Parameters
    ----------
    stage_args
        Words that a host adds to the command line for its stages; None where the script has no such words.
    """

    def settings(place: HostPlace) -> str:
        chip = problem.chips[place.chip]
        text = (
            f"        PROCESSES={place.num_processes} CHIPS={place.num_chips} CHIP={place.chip}"
            f" BACKEND={chip.backend} DEVICE_PATTERN={shlex.quote(chip.device_name_pattern or '')}"
            f" MEMORY_MIB={round(chip.memory_bytes / MIB)}"
        )
        if stage_args is not None:
            text += f"\n        STAGE_ARGS=({shlex.join(stage_args(place))})"
        return text

    lines = []
    keyword = "if"
    numbered = enumerate((settings(place), place) for place in places)
    for text, run in groupby(numbered, key=lambda item: item[1][0]):
        members = list(run)
        last = members[-1][0]
        stages = sorted({stage for _, (_, place) in members for stage in place.stages})
        lines.append(f"    {keyword} (($1 <= {last})); then # {_stages_in_words(stages)}\n{text}")
        keyword = "elif"
    return "\n".join([*lines, "    fi"])


def _stages_in_words(stages: list[int]) -> str:
    if len(stages) == 1:
        return f"stage {stages[0]}"
    return f"stages {stages[0]} to {stages[-1]}"
