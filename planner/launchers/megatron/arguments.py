"""Command-line arguments of Megatron-LM as data: groups of (flag, values), in the order they are shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Argument:
    """One flag with its values; none for a switch."""

    flag: str
    values: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the command line."""
        return (self.flag, *self.values)


def switch(flag: str) -> Argument:
    """A flag without a value."""
    return Argument(flag)


def option(flag: str, *values: object) -> Argument:
    """A flag with its values, as Megatron's parser reads them."""
    return Argument(flag, tuple(str(value) for value in values))


Arguments = tuple[Argument, ...]


def words(arguments: Arguments) -> tuple[str, ...]:
    """All words of the command line, in order."""
    return tuple(word for argument in arguments for word in argument.words)
