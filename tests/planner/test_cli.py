"""The command line: what it prints, where, and the exit code; every wrong input ends in one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import SchemaError

from planner.cli import main
from planner.data.load import problem_file
from planner.data.problem import Problem
from planner.data.result import Result
from planner.data.save import to_yaml
from tests.planner.launchers import plans
from tests.planner.stubs import (
    made_up_evaluation,
    made_up_result,
    replace_both,
    replace_referee,
    replace_search,
    two_class_problem,
    two_stage_plan,
    without_plan,
)

FLAGS = {
    "--cluster": "1x8 h100-sxm-80gb, 1x8 a100-sxm-80gb",
    "--model": "llama3-8b",
    "--seq-length": "8192",
    "--global-batch-size": "64",
}


def flags(**changes: str | None) -> list[str]:
    """Flags of a sound problem with some changed (`seq_length="0"`) or left out (None)."""
    chosen: dict[str, str | None] = dict(FLAGS)
    chosen |= {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    return [part for name, value in chosen.items() if value is not None for part in (name, value)]


@pytest.fixture
def sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds a plan at once, and a referee that agrees."""
    replace_both(monkeypatch, made_up_result)


def one_line_error(capsys: pytest.CaptureFixture[str]) -> str:
    """The only line on standard error; standard output must be empty."""
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("hetplan: error: ") and shown.err.count("\n") == 1, shown.err
    return shown.err


# What a plan looks like


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.usefixtures("sound")
def test_plan_is_printed_as_tables_that_fit_the_screen(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["plan", *flags(), "--quiet"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert max(map(len, shown.out.splitlines())) <= width
    text = " ".join(shown.out.split())
    for words in (
        "8 x a100-sxm-80gb",
        "node001",
        "12-31 (20)",
        "full 3/12",
        "61.4 of 76.8",
        "80%",
        "tp 4, dp 2, pp 2",
        "exposed TP",
        "2.00 s (predicted, within about 6.0%)",
        "262,144 tokens/s",
        "MFU 42.0%",
        "more than 0.8% faster (bound 1.98 s)",
        "layers 11, 21",
    ):
        assert words in text, words


@pytest.mark.usefixtures("sound")
def test_json_holds_the_fields_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *flags(), "--json", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    result = json.loads(shown.out)
    for field in ("plan", "evaluation", "bound_s", "gap", "termination", "interrupted", "seconds"):
        assert field in result
    assert result["plan"]["problem"]["workload"]["seq_length"] == 8192
    assert "problem" not in result["runners_up"][0]["plan"]
    assert sum(result["evaluation"]["breakdown_s"].values()) == pytest.approx(result["evaluation"]["step_s"])


@pytest.mark.parametrize(
    ("termination", "code", "headline"),
    [("infeasible", 3, "No plan exists"), ("no_solution_found", 4, "No plan found in time")],
)
def test_search_without_a_plan_says_why_and_how_it_ended(
    termination: str,
    code: int,
    headline: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    replace_both(monkeypatch, lambda problem: without_plan(problem, termination, "12.0 GiB short on a100"))
    out = tmp_path / "launch"
    assert main(["plan", *flags(), "--quiet", "--out", str(out)]) == code
    shown = capsys.readouterr().out
    assert headline in shown and "12.0 GiB short on a100" in shown
    assert not out.exists()

    assert main(["plan", *flags(), "--quiet", "--json"]) == code
    result = json.loads(capsys.readouterr().out)
    assert result["plan"] is None and result["bound_s"] is None
    assert result["reason"] == "12.0 GiB short on a100"


def test_interrupted_search_still_prints_its_best_plan(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(problem: Problem) -> Result:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            return made_up_result(problem, interrupted=True, termination="feasible")
        raise AssertionError("the signal did not arrive")

    replace_both(monkeypatch, stopped)
    assert main(["plan", *flags(), "--quiet"]) == 130
    shown = capsys.readouterr()
    assert "61.4 of 76.8" in shown.out
    assert shown.err == "hetplan: interrupted; this is the best plan so far\n"


def test_time_limit_alone_is_no_interruption(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_both(monkeypatch, lambda p: made_up_result(p, interrupted=True, termination="feasible"))
    assert main(["plan", *flags(), "--quiet"]) == 0
    assert "cut before the wanted gap" in " ".join(capsys.readouterr().out.split())


def test_ctrl_c_outside_the_search_ends_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(problem: Problem, on_progress: Any = None) -> Result:
        raise KeyboardInterrupt

    replace_search(monkeypatch, stopped)
    assert main(["plan", *flags(), "--quiet"]) == 130
    assert "interrupted" in one_line_error(capsys)


def test_our_own_bug_is_named_and_the_plan_withheld(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_search(monkeypatch, lambda problem, on_progress=None: made_up_result(problem))
    replace_referee(monkeypatch, lambda problem, plan: made_up_evaluation(violations=("too full",)))
    assert main(["plan", *flags(), "--quiet"]) == 1
    assert "our bug" in one_line_error(capsys)


# Wrong input


BAD_FLAGS = [
    (flags(cluster="1x8 h100-smx-80gb"), ["h100-smx-80gb", "h100-sxm-80gb"]),
    (flags(model="lama3-8b"), ["lama3-8b", "llama3-8b"]),
    (flags(cluster="0x8 h100-sxm-80gb"), ["0"]),
    (flags(cluster="-1x8 h100-sxm-80gb"), ["-1"]),
    (flags(cluster="1x h100-sxm-80gb"), ["nodes"]),
    (flags(seq_length="0"), ["--seq-length", "0"]),
    (flags(seq_length="-4096"), ["--seq-length", "-4096"]),
    (flags(global_batch_size="0"), ["--global-batch-size", "0"]),
    (flags(global_batch_size="sixty"), ["--global-batch-size", "integer"]),
    (flags(precision="bf17"), ["--precision", "bf17", "bf16"]),
    (flags(gap="-0.1"), ["--gap", "-0.1"]),
    (flags(gap="1"), ["--gap"]),
    (flags(gap="nan"), ["--gap", "nan"]),
    (flags(time_limit_s="0"), ["--time-limit-s", "0"]),
    (flags(top="0"), ["--top", "0"]),
    (flags(workers="0"), ["--workers", "0"]),
    (flags(solver="gurobi"), ["--solver", "gurobi", "highs"]),
    (flags(memory_reserve="1.5"), ["--memory-reserve", "1.5"]),
    (flags(stack="megatron-cor"), ["megatron-core"]),
    ([*flags(target="all"), "--out", "x"], ["--out", "one target"]),
    (flags(target="megatron-ml"), ["megatron-ml", "megatron-lm"]),
    (flags(model=None), ["--model"]),
    (flags(cluster=None), ["--cluster"]),
    (flags(seq_length=None), ["--seq-length 8192"]),
    (flags(seq_length=None, global_batch_size=None), ["--seq-length 8192", "--global-batch-size 512"]),
    (flags(global_batch_size=None), ["--global-batch-size"]),
    ([], ["PROBLEM", "list problems"]),
    (["llama3-8b-h100-8", *flags()], ["not both"]),
    (["llama3-8b-h100-9"], ["llama3-8b-h100-9", "llama3-8b-h100-8"]),
    (["no/such/file.yaml"], ["no/such/file.yaml"]),
    (["llama3-8b-h100-8", "--seq-length", "0"], ["--seq-length", "0"]),
    (["--gp", "0.1"], ["--gp"]),
    (["llama3-8b-h100-8", "--spare", "h100"], ["--spare", "every class"]),
    (["llama3-8b-h100-8", "--spare", "h100", "--use", "h100"], ["--use", "spared as well"]),
    (["llama3-8b-h100-8", "--reach-step-s", "nan"], ["--reach-step-s", "nan"]),
    (["llama3-8b-h100-8", "--reach-step-s", "0"], ["--reach-step-s", "above 0"]),
    (["llama3-8b-h100-8", "--robust", "0"], ["--robust", "1"]),
    (["llama3-8b-h100-8", "--robust", "10001"], ["--robust", "10000"]),
    (["one", "two"], ["two"]),
]


@pytest.mark.parametrize(("arguments", "words"), BAD_FLAGS, ids=[" ".join(a[-2:]) for a, _ in BAD_FLAGS])
def test_wrong_flags_end_in_one_line_that_names_them(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "launch"
    assert main(["plan", *arguments, "--out", str(out)]) == 2
    line = one_line_error(capsys)
    for word in words:
        assert word in line
    assert list(tmp_path.iterdir()) == []


def problem_text(**changes: str) -> str:
    """A sound problem file with some lines changed."""
    lines = {
        "schema": "schema: hetplan/problem/v1",
        "cluster": "cluster: 1x8 h100-sxm-80gb",
        "model": "model: llama3-8b",
        "workload": "workload: {seq_length: 8192, global_batch_size: 64}",
        **changes,
    }
    return "\n".join(lines.values()) + "\n"


BAD_FILES = {
    "unknown key": (problem_text(more="colour: green"), ["colour"]),
    "unknown key inside": (
        problem_text(workload="workload: {seq_length: 8192, global_batch_size: 64, batch: 1}"),
        ["batch"],
    ),
    "unit in the value": (
        problem_text(workload="workload: {seq_length: 8k, global_batch_size: 64}"),
        ["seq_length", "8k"],
    ),
    "another unit in the key": (
        problem_text(
            cluster="cluster: {id: mine, classes: [{name: a, chip: h100-sxm-80gb, num_nodes: 1, "
            "chips_per_node: 8, nics_per_node: 8, nic_gb_per_s: 50}]}"
        ),
        ["nic_gb_per_s", "nic_gbit_per_s"],
    ),
    "negative nodes": (
        problem_text(
            cluster="cluster: {id: mine, classes: [{name: a, chip: h100-sxm-80gb, num_nodes: -1, "
            "chips_per_node: 8, nics_per_node: 8, nic_gbit_per_s: 400}]}"
        ),
        ["num_nodes", "-1"],
    ),
    "not a number": (
        problem_text(workload="workload: {seq_length: .nan, global_batch_size: 64}"),
        [".nan"],
    ),
    "no schema line": (problem_text(schema=""), ["schema"]),
    "another kind": (problem_text(schema="schema: hetplan/plan/v1"), ["plan", "problem"]),
    "no YAML": ("cluster: [unclosed", ["bad.yaml"]),
    "empty": ("", ["bad.yaml"]),
    "binary": ("\x00\x01\x02", ["bad.yaml"]),
    "expands without end": (
        "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
        ["bad.yaml"],
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_wrong_file_ends_in_one_line_that_names_it(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text, words = BAD_FILES[name]
    (tmp_path / "bad.yaml").write_text(text)
    out = tmp_path / "launch"
    assert main(["plan", str(tmp_path / "bad.yaml"), "--out", str(out)]) == 2
    line = one_line_error(capsys)
    for word in [*words, "bad.yaml"]:
        assert word in line
    assert not out.exists()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
@pytest.mark.parametrize("out", ["/proc/launch", "/proc/self/a/b", "/dev/null/launch", "x" * 250, "y" * 300])
def test_a_place_that_takes_no_folder_is_refused_before_the_search(
    out: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Root may write everywhere, so that rights said nothing: the plan was found first and then lost."""
    monkeypatch.chdir(tmp_path)
    replace_both(monkeypatch, lambda problem: pytest.fail("searched"))
    assert main(["plan", *flags(), "--out", out]) == 2
    assert out in one_line_error(capsys)
    assert not any(tmp_path.iterdir())


def test_huge_file_is_refused_before_it_is_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    huge = tmp_path / "huge.yaml"
    with open(huge, "wb") as file:
        file.truncate(10**12)
    assert main(["plan", str(huge)]) == 2
    assert "huge.yaml" in one_line_error(capsys)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    locked = tmp_path / "locked.yaml"
    locked.write_text(problem_text())
    locked.chmod(0)
    assert main(["plan", str(locked)]) == 2
    assert "locked.yaml" in one_line_error(capsys)


def test_folder_in_place_of_a_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["plan", str(tmp_path) + "/"]) == 2
    one_line_error(capsys)


# The output directory


def never(problem: Problem, on_progress: Any = None) -> Result:
    raise AssertionError("the search must not begin")


def test_existing_directory_is_refused_before_the_search(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replace_search(monkeypatch, never)
    assert main(["plan", *flags(), "--out", str(tmp_path)]) == 2
    assert "--force" in one_line_error(capsys)


def test_file_in_the_place_of_the_directory_is_refused_even_with_force(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replace_search(monkeypatch, never)
    out = tmp_path / "launch"
    out.write_text("mine")
    assert main(["plan", *flags(), "--out", str(out), "--force"]) == 2
    one_line_error(capsys)
    assert main(["plan", *flags(), "--out", str(out / "below"), "--force"]) == 2
    one_line_error(capsys)
    assert out.read_text() == "mine"


# The other commands


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    path.write_text(to_yaml(two_stage_plan(two_class_problem())))
    return path


@pytest.fixture
def problem_path(tmp_path: Path) -> Path:
    path = tmp_path / "problem.yaml"
    path.write_text(problem_text(cluster=f"cluster: {FLAGS['--cluster']}"))
    return path


def test_prediction_of_a_plan_that_breaks_a_rule_is_printed_and_exits_with_3(
    plan_file: Path,
    problem_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace_referee(monkeypatch, lambda p, plan: made_up_evaluation(violations=("stage 0 is too full",)))
    assert main(["predict", str(problem_path), "--plan", str(plan_file)]) == 3
    shown = capsys.readouterr().out
    assert "stage 0 is too full" in shown and "exposed TP" in shown
    assert main(["predict", str(problem_path), "--plan", str(plan_file), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["violations"] == ["stage 0 is too full"]


def test_prediction_of_a_sound_plan_exits_with_0(
    plan_file: Path,
    problem_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace_referee(monkeypatch, lambda p, plan: made_up_evaluation())
    assert main(["predict", str(problem_path), "--plan", str(plan_file)]) == 0
    assert "rule" not in capsys.readouterr().out


def test_plan_without_a_problem_asks_for_it(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--plan", str(plan_file)]) == 2
    assert "name the problem" in one_line_error(capsys)


def test_export_of_a_plan_that_breaks_a_rule_writes_nothing(
    plan_file: Path,
    problem_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    replace_referee(monkeypatch, lambda p, plan: made_up_evaluation(violations=("layer 7 is lost",)))
    out = tmp_path / "launch"
    arguments = ["export", str(plan_file), "--problem", str(problem_path), "--out", str(out)]
    assert main(arguments) == 2
    assert "layer 7 is lost" in one_line_error(capsys)
    assert not out.exists()


@pytest.mark.parametrize("kind", ["chips", "models", "clusters", "problems", "targets", "stacks"])
def test_list_shows_a_table_and_the_same_as_json(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", kind]) == 0
    table = capsys.readouterr().out
    assert max(map(len, table.splitlines())) <= 80
    assert main(["list", kind, "--json"]) == 0
    for record in json.loads(capsys.readouterr().out):
        name = record["name"] if kind in ("problems", "targets") else record["id"]
        assert name in table


def test_list_of_an_unknown_kind_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "chip"]) == 2
    assert "chips" in one_line_error(capsys)


def test_list_can_be_narrowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "chips", "h100", "--json"]) == 0
    names = [record["id"] for record in json.loads(capsys.readouterr().out)]
    assert "h100-sxm-80gb" in names and all("h100" in name for name in names)
    assert main(["list", "chips", "abacus"]) == 2
    assert "abacus" in one_line_error(capsys)


@pytest.mark.parametrize("kind", ["problem", "plan", "cluster", "chip", "model", "result", "evaluation"])
def test_schema_is_json_schema(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", kind]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["type"] == "object" and "schema" in schema["required"]


def test_schema_of_an_unknown_kind_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "problems"]) == 2
    assert "problem" in one_line_error(capsys)
    assert main(["schema", "job"]) == 2
    assert "did you mean jobs?" in one_line_error(capsys)


def test_filter_without_an_equals_sign_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accuracy", "runs.jsonl", "--where", "precision"]) == 2
    assert "key=value" in one_line_error(capsys)


def test_every_command_is_listed_with_a_whole_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Half of them broke off amid it."""
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out.split("Commands:")[1].split("Exit codes:")[0].strip()
    assert "..." not in listed and all(line.endswith(".") for line in listed.splitlines())


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("hetplan 0.")
    for arguments in ([], ["--help"]):
        assert main(arguments) == 0
        assert "accuracy" in capsys.readouterr().out


def test_names_with_markup_are_shown_as_they_stand(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_both(monkeypatch, lambda p: without_plan(p, "infeasible", "class [red]west[/red] :smile: lacks"))
    assert main(["plan", *flags(), "--quiet"]) == 3
    assert "[red]west[/red] :smile:" in capsys.readouterr().out


# Seen from the shell


def hetplan(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "planner.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, **options)


@pytest.mark.slow
def test_reader_that_leaves_early_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as broken:
        command = [sys.executable, "-m", "planner.cli", "list", "targets"]
        done = subprocess.run(command, stdout=broken, stderr=subprocess.PIPE, text=True)
    assert done.stderr == ""


def test_ctrl_c_while_modules_load_ends_in_one_line() -> None:
    """Nobody caught it there: the user saw the traceback of an import."""
    program = """
import os, signal, sys
class Ctrl_C:
    def find_spec(name, *rest):
        if name == "planner.cli":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Ctrl_C)
from planner.__main__ import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "hetplan: error: interrupted\n")


def test_shell_sees_the_exit_code_and_no_traceback() -> None:
    done = hetplan("plan", "no-such-problem")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.slow
def test_tables_survive_a_screen_without_unicode() -> None:
    done = hetplan("list", "targets", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and "megatron-lm" in done.stdout


@pytest.mark.parametrize(
    "closed", [*(pytest.param(one, marks=pytest.mark.slow) for one in (">&-", "2>&-")), ">&- 2>&- <&-"]
)
def test_a_program_started_without_output_does_its_work(closed: str, tmp_path: Path) -> None:
    """Once a traceback, or nothing done at all."""
    problem, plan = plans.uniform()
    file = tmp_path / "plan.yaml"
    file.write_text(to_yaml(plan.model_copy(update={"problem": problem_file(problem)})))
    command = f"{sys.executable} -m planner export {file} --target megatron-lm --out {tmp_path}/out {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stdout + done.stderr
    assert (tmp_path / "out" / "launch.sh").is_file()


@pytest.mark.parametrize("columns", ["0", "1"])
def test_a_width_that_no_terminal_has_is_not_taken(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["list", "targets"]) == 0
    assert "megatron-bridge" in capsys.readouterr().out


def test_letters_that_an_output_does_not_know_are_replaced() -> None:
    command = [sys.executable, "-m", "planner", "list", "targets"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0 and "virtual stages" in done.stdout


def test_an_error_that_ctrl_c_left_behind_is_an_interruption(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a script was read closed a file twice: wrong input, said the exit code."""

    def interrupted(*_: object, **__: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            os.close(os.open(os.devnull, os.O_RDONLY) + 1000)

    monkeypatch.setattr("planner.commands.listing.run", interrupted)
    assert main(["list", "targets"]) == 130
    assert one_line_error(capsys).strip() == "hetplan: error: interrupted"


@pytest.mark.parametrize(("words", "code"), [("KeyboardInterrupt: ", 130), ("unknown type", None)])
def test_ctrl_c_while_pydantic_builds_a_class_is_an_interruption(
    words: str, code: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes out as an error of the class, and left a traceback; any other such error still does."""

    def building(*_: object, **__: object) -> None:
        raise SchemaError(f'Field "chip":\n  SchemaError: Error building "literal" validator:\n  {words}')

    monkeypatch.setattr("planner.commands.listing.run", building)
    if code is None:
        with pytest.raises(SchemaError):
            main(["list", "targets"])
    else:
        assert main(["list", "targets"]) == code
        assert one_line_error(capsys).strip() == "hetplan: error: interrupted"
