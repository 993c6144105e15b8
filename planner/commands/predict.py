"""`hetplan predict`: what a given plan, or a launch script of your own, would cost."""

from __future__ import annotations

import shlex
from pathlib import Path

from planner import api
from planner.commands import screen
from planner.commands.screen import ExitCode
from planner.data import load
from planner.data.plan import Plan
from planner.data.problem import Problem, TargetName
from planner.data.read import decode, read_raw
from planner.errors import InstanceError
from planner.launchers.read import megatron as read_megatron
from planner.launchers.read.back import ReadBack
from planner.launchers.read.constants import other_constants
from planner.launchers.read.flags import split_words
from planner.launchers.read.launch import read_launch
from planner.launchers.read.same_model import differences
from planner.simulate.uneven_experts import with_most_imbalance


def run(problem_name: str | None, plan_path: Path, *, as_json: bool) -> ExitCode:
    """Print the prediction; a plan that breaks a rule is predicted as well, and reported."""
    plan = load.load_plan(plan_path)
    return _show(problem_of(problem_name, plan, str(plan_path)), plan, as_json=as_json)


def run_from(
    problem_name: str | None,
    *,
    script: Path | None,
    words: str,
    arguments: Path | None,
    cluster: str | None,
    model: str | None,
    num_nodes: int | None,
    stack: str | None,
    as_json: bool,
) -> ExitCode:
    """Read a launch script, FlagScale YAML or argument list, and print what it would cost.

    Raises
    ------
    InstanceError
        Where no cluster is named, the script cannot be read back, or trains another model than `model`.
    """
    if problem_name is not None and cluster is not None:
        raise InstanceError("give PROBLEM, whose cluster counts, or --cluster, not both", "command line")
    if problem_name is None and cluster is None:
        raise InstanceError(
            "a script does not say what chips it runs on; add --cluster, such as '4x8 h100-sxm-80gb'",
            "command line",
        )
    chips = load.load_problem(problem_name).cluster if problem_name is not None else str(cluster)
    chosen = stack or "megatron-core"
    if script is not None:
        parted = split_words(words, "--script-words")
        back = read_launch(script, chips, num_nodes=num_nodes, stack=chosen, words=parted)
    else:
        assert arguments is not None
        text = decode(read_raw(arguments, str(arguments), "list of arguments"), str(arguments))
        back = read_megatron.read_arguments(text, chips, where=str(arguments), stack=chosen)
    if model is not None:
        _check_model(back, model, str(script or arguments))
    code = _show(back.problem, back.plan, as_json=as_json, read_back=back)
    if not as_json and cluster is not None and back.problem.model.id in load.names("models"):
        screen.note(
            f"what a better plan would gain: {_plan_command(back.problem, cluster, back.plan.target)}"
        )
    return code


def _check_model(back: ReadBack, name: str, where: str) -> None:
    """Stop where the script at `where` trains another model than it should."""
    found = back.problem.model
    stated = not any(note.startswith("vocabulary of") for note in back.notes)
    wanted = load.load_model(name)
    # The tokenizer of made-up data adds an entry up to core 0.17, and is told of one fewer.
    stated = stated and found.vocab_size + 1 != wanted.vocab_size
    shape = differences(found, wanted, vocabulary_is_known=stated)
    different = (*shape, *other_constants(found, wanted), *back.other_network)
    if different:
        raise InstanceError(f"trains another model than {name}: {'; '.join(different)}", where)


def _plan_command(problem: Problem, cluster: str, target: TargetName) -> str:
    """The command that plans the same training anew."""
    work = problem.workload
    flags = ["--seq-length", work.seq_length, "--global-batch-size", work.global_batch_size]
    flags += ["--precision", work.precision]
    flags += [] if target == "megatron-lm" else ["--target", target]
    return shlex.join(
        ["hetplan", "plan", "--cluster", cluster, "--model", problem.model.id, *map(str, flags)]
    )


def _show(problem: Problem, plan: Plan, *, as_json: bool, read_back: ReadBack | None = None) -> ExitCode:
    evaluation = with_most_imbalance(problem, plan, api.predict(problem, plan))
    if read_back is not None:
        violations = (*evaluation.violations, *read_back.refusals)
        evaluation = evaluation.model_copy(update={"violations": violations})
    if as_json:
        data = {"schema": "hetplan/evaluation/v1", **evaluation.model_dump(mode="json")}
        if read_back is not None:
            data |= {
                "plan": plan.model_dump(mode="json", exclude={"problem"}),
                "model": problem.model.model_dump(mode="json"),
                "unknown_flags": list(read_back.unknown_flags),
                "notes": list(read_back.notes),
                "warnings": list(read_back.warnings),
            }
        screen.show_json(data)
    else:
        from planner.report.tables import prediction_report

        screen.show(prediction_report(problem, plan, evaluation, width=screen.console().width))
        if read_back is not None:
            from rich.text import Text

            screen.show(Text("\n" + "\n".join(_in_words(read_back))))
    return ExitCode.INFEASIBLE if evaluation.violations else ExitCode.PLAN


def _in_words(read_back: ReadBack) -> list[str]:
    """Traps of the script, what it does not say, and what we do not know of it."""
    lines = [f"warning      {warning}" for warning in read_back.warnings]
    lines += [f"assumed      {note}" for note in read_back.notes]
    if read_back.unknown_flags:
        lines.append(
            f"not known    {', '.join(read_back.unknown_flags)}: the prediction leaves these flags out"
        )
    else:
        lines.append("not known    nothing: every flag of the script is understood")
    return lines


def problem_of(problem_name: str | None, plan: Plan, where: str) -> Problem:
    """The named problem, or the one that the plan carries.

    Raises
    ------
    InstanceError
        Where there is neither.
    """
    if problem_name is not None:
        return load.load_problem(problem_name)
    if plan.problem is None:
        raise InstanceError("the plan does not carry its problem; name the problem as well", where)
    return load.resolve_problem(plan.problem, f"{where}: problem")
