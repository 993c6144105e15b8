"""Flags of a Megatron-LM command line, read back: their values, and which of them we know.

A flag is known where it decides something that we model, or where it changes neither the time of a
step nor its memory. All others are told to the user: what they do is not in the prediction.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence

from planner.data.checks import MAX_LAYERS
from planner.errors import InstanceError
from planner.launchers.read.dialects import in_upstream_words
from planner.launchers.template_text import template

DECIDING = frozenset(template("deciding_flags.txt").split())
"""Flags that we turn into model, workload, plan or software, or into a warning."""

HARMLESS = frozenset(template("harmless_flags.txt").split())
"""Flags that change neither the time of a step nor its memory, as far as we model them."""


MAX_NUMBER = 10**12
"""More than any count, width or number of parameters that a flag gives; ours."""


class Flags:
    """The flags of one command line; of a flag given twice the last counts, as for Megatron's parser."""

    def __init__(self, words: Sequence[str], where: str = "arguments") -> None:
        self.where = where
        self.values: dict[str, tuple[str, ...]] = {}
        flag = ""
        for word in words:
            if word.startswith("--"):
                flag, equals, value = word.partition("=")
                flag = "--" + flag[2:].replace("_", "-")
                self.values[flag] = (value,) if equals else ()
            elif flag:
                self.values[flag] += (word,)
        self.values = in_upstream_words(self.values, where)
        pattern = self.values.get("--hybrid-layer-pattern")
        if pattern:  # it says how many layers there are, whatever the number says
            layers = pattern[0].partition("/")[0].replace("|", "")
            self.values["--num-layers"] = (str(len(layers)),)

    def __contains__(self, flag: str) -> bool:
        return flag in self.values

    def text(self, flag: str, default: str | None = None) -> str:
        """Value of a flag.

        Raises
        ------
        InstanceError
            Where it is missing and has no default, or has no value.
        """
        values = self.values.get(flag)
        if values is None:
            if default is None:
                raise InstanceError(f"{flag} is missing; Megatron-LM has no default for it", self.where)
            return default
        if not values:
            raise InstanceError(f"{flag} has no value", self.where)
        return values[0]

    def number(self, flag: str, default: int | None = None, *, least: int = 1) -> int:
        """Value of a flag as a whole number.

        Raises
        ------
        InstanceError
            Where it is missing and has no default, is no whole number, or lies below `least` or above all
            sense.
        """
        text = self.text(flag, None if default is None else str(default))
        try:
            value = int(text)
        except ValueError:
            raise InstanceError(f"{flag} is {text[:60]!r}, which is no whole number", self.where) from None
        most = MAX_LAYERS if flag == "--num-layers" else MAX_NUMBER
        if flag in self.values and not least <= value <= most:
            raise InstanceError(f"{flag} is {value}; it must be {least} to {most}", self.where)
        return value

    def real(self, flag: str, default: float | None = None) -> float:
        """Value of a flag as a finite number.

        Raises
        ------
        InstanceError
            Where it is missing and has no default, or is no number.
        """
        text = self.text(flag, None if default is None else str(default))
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InstanceError(f"{flag} is {text[:60]!r}, which is no number", self.where)
        return value

    @property
    def unknown(self) -> tuple[str, ...]:
        """Flags that we know nothing of, in the order in which they stand."""
        return tuple(flag for flag in self.values if flag not in DECIDING | HARMLESS)


def differing(lines: Iterable[Flags]) -> frozenset[str]:
    """Flags whose values are not the same on all lines."""
    all_lines = list(lines)
    flags = {flag for line in all_lines for flag in line.values}
    return frozenset(f for f in flags if len({line.values.get(f) for line in all_lines}) > 1)


def split_words(text: str, where: str) -> list[str]:
    """Words as a shell parts them.

    Raises
    ------
    InstanceError
        Where a quote is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InstanceError(f"{str(error).lower()}; close or escape the quote", where) from None
