"""Kinds of files: what the `schema:` line of each says and which record it holds."""

from __future__ import annotations

from planner.data.base import Data
from planner.data.chip import Chip
from planner.data.cluster import Cluster
from planner.data.layer_profile import LayerProfile
from planner.data.model_spec import ModelSpec
from planner.data.plan import Plan
from planner.data.problem import ProblemFile
from planner.data.result import Evaluation, Result
from planner.data.stack import SoftwareStack

CLASS_OF_KIND: dict[str, type[Data]] = {
    "chip": Chip,
    "model": ModelSpec,
    "cluster": Cluster,
    "stack": SoftwareStack,
    "layer_profile": LayerProfile,
    "problem": ProblemFile,
    "plan": Plan,
    "evaluation": Evaluation,
    "result": Result,
}
"""Record of each kind of file."""

SCHEMA_VERSION = "v1"
"""Version that this release reads and writes."""


def schema_line(kind: str) -> str:
    """Value of the `schema:` key in a file of a kind, such as `hetplan/problem/v1`."""
    return f"hetplan/{kind}/{SCHEMA_VERSION}"
