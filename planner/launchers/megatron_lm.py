"""A plan as a launch directory for upstream Megatron-LM: a start script and what it reads.

Ranks land where the plan puts them because torchrun is started with static rendezvous and an explicit
node rank, found by host name: its dynamic rendezvous numbers the nodes itself. What differs between
stages is chosen by node; where one host holds stages that recompute differently, by rank.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable

from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation
from planner.errors import PlanRefusedError
from planner.launchers.forms.kubernetes import kubernetes_files
from planner.launchers.forms.mpi import mpi_files
from planner.launchers.forms.readme import readme_text
from planner.launchers.forms.start_script import start_files
from planner.launchers.megatron import plan_arguments as args
from planner.launchers.megatron.arguments import Arguments, words
from planner.launchers.megatron.dispatching import dispatch_arguments
from planner.launchers.megatron.hybrid import entry_point, hybrid_arguments
from planner.launchers.megatron.model import mock_vocabulary, model_arguments, moe_arguments
from planner.launchers.megatron.rotary_positions import has_rotary_positions
from planner.launchers.model_constants import (
    balancing_loss,
    constant_arguments,
    norm_epsilon,
    rotary_base,
)
from planner.launchers.placement import HostPlace, place_hosts
from planner.launchers.template_text import fill
from planner.rules.versions import NEWEST, version_violations


def launch_files(
    problem: Problem, plan: Plan, evaluation: Evaluation | None, version: str = NEWEST
) -> dict[str, str]:
    """Text of every file of the directory but `plan.yaml`, by its path in it, for a version of core.

    Raises
    ------
    PlanRefusedError
        Where Megatron-LM's command line cannot state the model or the plan.
    """
    refusals = (*args.refusals(problem, plan), *version_violations(problem, plan, version))
    if refusals:
        raise PlanRefusedError("megatron-lm cannot run this plan: " + "; ".join(refusals))
    places = place_hosts(problem, plan)
    by_rank = needs_arguments_by_rank(problem, plan, places)
    files = start_files(
        problem,
        plan,
        places,
        command=_command(problem, plan, by_rank, version),
        where_the_plan_is="The arrays of arguments are the plan: change them and it is no longer the one "
        "that was computed.",
        stage_args=(lambda _: ()) if by_rank else stage_arguments(problem, plan),
    )
    files["README.md"] = readme_text(problem, plan, places, evaluation, version)
    if by_rank:
        files["lib/run_stage.py"] = _stage_runner(problem, plan, version)
    library = sorted(name.removeprefix("lib/") for name in files if name.startswith("lib/"))
    return files | mpi_files(places) | kubernetes_files(problem, places, library)


def needs_arguments_by_rank(problem: Problem, plan: Plan, places: Iterable[HostPlace]) -> bool:
    """Whether some host holds stages that recompute differently, so that its ranks differ."""
    modules = args.recompute_modules(problem, plan)
    recompute = [args.recompute_arguments(stage, modules) for stage in plan.stages]
    return any(len({recompute[stage] for stage in place.stages}) > 1 for place in places)


def stage_arguments(problem: Problem, plan: Plan) -> Callable[[HostPlace], tuple[str, ...]]:
    """Words that a host adds for the stages on it, which recompute alike."""
    modules = args.recompute_modules(problem, plan)
    return lambda place: words(args.recompute_arguments(plan.stages[place.stages[0]], modules))


def _command(problem: Problem, plan: Plan, by_rank: bool, version: str) -> str:
    """What a node starts: Megatron's script and its arguments, in groups."""
    model, workload = problem.model, problem.workload
    script = entry_point(model, version)
    moe = moe_arguments(model, args.grouped_gemm_runs(problem, plan)) + dispatch_arguments(problem, plan)
    return fill(
        "megatron_command.sh",
        {
            "core_version": version,
            "model_args": _array(
                model_arguments(model, workload.seq_length, version) + hybrid_arguments(model, version)
            ),
            "moe_args": _array(moe),
            "parallel_args": _array(args.parallel_arguments(problem, plan)),
            "batch_args": _array(args.batch_arguments(problem, plan)),
            "precision_args": _array(args.precision_arguments(problem)),
            "optimizer_args": _array(args.optimizer_arguments(problem, plan)),
            "train_iters": workload.train_iters,
            "norm_epsilon": f"{norm_epsilon(model):g}",
            "training_args": _training_placeholders(problem, version),
            "vocab_size": mock_vocabulary(model, version),
            "checkpoint_format": args.checkpoint_format(plan),
            "script": script,
            "entry_point": "$HERE/lib/run_stage.py" if by_rank else f"$MEGATRON_PATH/{script}",
        },
    )


def _array(arguments: Arguments) -> str:
    """One flag a line, quoted for the shell."""
    return "\n".join("    " + shlex.join(argument.words) for argument in arguments)


def _training_placeholders(problem: Problem, version: str) -> str:
    """Lines of the training arguments that only some models have; the user may set them."""
    lines = []
    if has_rotary_positions(problem.model):
        lines.append(f'--rotary-base "${{ROTARY_BASE:-{rotary_base(problem.model)}}}"')
    if problem.model.moe is not None:
        kind, weight = balancing_loss(problem.model)
        lines.append(f'--moe-router-load-balancing-type "${{MOE_BALANCING:-{kind}}}"')
        lines.append(f'--moe-aux-loss-coeff "${{MOE_AUX_LOSS_COEFF:-{weight}}}"')
    lines += [shlex.join(argument.words) for argument in constant_arguments(problem.model, version)]
    return "\n".join("    " + line for line in lines)


def _stage_runner(problem: Problem, plan: Plan, version: str) -> str:
    modules = args.recompute_modules(problem, plan)
    rows = (list(words(args.recompute_arguments(stage, modules))) for stage in plan.stages)
    return fill(
        "run_stage.py.txt",
        {
            "script": entry_point(problem.model, version),
            "tensor_x_context": plan.tensor_parallel * plan.context_parallel,
            "data_parallel": plan.data_parallel,
            "pipeline_parallel": plan.pipeline_parallel,
            "stages_are_outermost": str(plan.rank_order == "tp-cp-ep-dp-pp"),
            "stage_args": "\n".join(f"    {row!r}," for row in rows),
        },
    )
