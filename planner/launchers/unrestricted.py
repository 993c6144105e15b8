"""A plan that no launcher need be able to run: as JSON with its schema, and what stands in each one's way."""

from __future__ import annotations

import json

import planner
from planner.data.kinds import schema_line
from planner.data.load import problem_file
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation
from planner.data.schema import json_schema
from planner.launchers.megatron.plan_arguments import refusals
from planner.launchers.template_text import fill
from planner.rules.megatron import violations
from planner.rules.target import TARGETS
from planner.units import format_percent, format_seconds


def launch_files(problem: Problem, plan: Plan, evaluation: Evaluation | None) -> dict[str, str]:
    """Text of every file of the directory but `plan.yaml`, by its path in it."""
    whole = plan.model_copy(update={"problem": problem_file(problem)})
    return {
        "plan.json": _json({"schema": schema_line("plan"), **whole.model_dump(mode="json")}),
        "plan.schema.json": _json(json_schema("plan")),
        "README.md": fill(
            "unrestricted_README.md",
            {
                "version": planner.__version__,
                "problem_name": " ".join(problem.name.split()),
                "expected": _expected(evaluation),
                "stage_table": _stage_table(plan) + _pipeline_notes(plan),
                "launchers": "\n".join(_of_launcher(problem, plan, name) for name in _launchers()),
            },
        ),
    }


def obstacles(problem: Problem, plan: Plan, target: str) -> tuple[str, ...]:
    """What keeps a launcher from running the plan, each in a sentence; empty where it can."""
    made_for = plan.model_copy(update={"target": target})
    return (*violations(problem, made_for), *refusals(problem, made_for))


def _launchers() -> list[str]:
    return [name for name, target in TARGETS.items() if target.has_launcher]


def _of_launcher(problem: Problem, plan: Plan, name: str) -> str:
    wrong = obstacles(problem, plan, name)
    if not wrong:
        return f"- **{name}** can run it: `hetplan export plan.yaml --target {name} --out DIR`."
    return f"- **{name}** cannot:\n" + "\n".join(f"  - {sentence}" for sentence in wrong)


def _expected(evaluation: Evaluation | None) -> str:
    if evaluation is None:
        return "Time and memory were not predicted."
    return (
        f"Expected: {format_seconds(evaluation.step_s)} a step "
        f"(+-{format_percent(evaluation.error_band)}), {evaluation.tokens_per_s:,.0f} tokens/s."
    )


def _stage_table(plan: Plan) -> str:
    header = ["stage", "chip", "hosts", "layers", "tensor", "data", "recompute"]
    rows = [header, ["---"] * len(header)]
    for s, stage in enumerate(plan.stages):
        degrees = dict.fromkeys(stage.tensor_parallel_degrees)
        rows.append(
            [
                str(s),
                ", ".join(dict.fromkeys(chip for _, chip, _ in stage.places)),
                ", ".join(stage.hosts),
                ", ".join(f"{first}-{last}" for first, last in stage.chunks),
                ", ".join(map(str, degrees)),
                str(stage.data_parallel),
                f"full {stage.recompute_layers}" if stage.recompute == "full" else stage.recompute,
            ]
        )
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _pipeline_notes(plan: Plan) -> str:
    """Which stages belong to which pipeline, and its share of the batch; empty for a plan of one."""
    lines, first = [], 0
    for i, part in enumerate(plan.pipeline_plans if plan.pipelines is not None else ()):
        last = first + len(part.stages) - 1
        lines.append(
            f"- Pipeline {i} is stages {first} to {last}: {part.data_parallel} replicas, each "
            f"{part.num_microbatches} micro-batches of {part.microbatch_size} sequences a step."
        )
        first = last + 1
    return "\n\n" + "\n".join(lines) if lines else ""


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"
