"""Hetplan: the training plan with the least predicted step time that fits every chip, with a proven gap.

`load_problem`, `plan`, `predict` and `export` are imported when first used, so that
`import planner` stays fast and `formulations` can import `planner.data` without a cycle.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "export", "load_problem", "plan", "predict"]

if TYPE_CHECKING:
    from planner.api import export, load_problem, plan, predict

_HERE = os.path.dirname(__file__)
if not os.path.isdir(os.path.join(_HERE, "instances")):
    # In a checkout the data lie beside this package: a script that runs there finds them without an install.
    __path__.append(os.path.dirname(_HERE))


def __getattr__(name: str) -> Any:
    if name in {"export", "load_problem", "plan", "predict"}:
        from planner import api

        return getattr(api, name)
    raise AttributeError(f"module 'planner' has no attribute {name!r}")
