"""A property that is computed once, when first asked for.

That of `functools` takes a lock each time until Python 3.12, longer than most of ours take to compute.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.version_info >= (3, 12):
    lazy = cached_property
else:

    class lazy:
        """`functools.cached_property` of Python 3.12."""

        def __init__(self, compute: Callable[[Any], Any]) -> None:
            self.compute, self.name, self.__doc__ = compute, compute.__name__, compute.__doc__

        def __get__(self, owner: Any, kind: type[Any] | None = None) -> Any:
            if owner is None:
                return self
            found = owner.__dict__[self.name] = self.compute(owner)
            return found
