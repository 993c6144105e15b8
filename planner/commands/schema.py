"""`hetplan schema`: the JSON Schema of a kind of file."""

from __future__ import annotations

from planner.commands import screen
from planner.commands.screen import ExitCode
from planner.data.schema import json_schema


def run(kind: str) -> ExitCode:
    """Print the schema."""
    if kind == "jobs":
        from planner.batch.jobs_file import jobs_schema

        screen.show_json(jobs_schema())
        return ExitCode.PLAN
    screen.show_json(json_schema(kind))
    return ExitCode.PLAN
