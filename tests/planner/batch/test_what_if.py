"""Studies: which jobs they become, and what their answers say of each change."""

from __future__ import annotations

import io
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from planner.batch.answer import Answer
from planner.batch.executor import Task
from planner.batch.jobs_file import Job, read_jobs
from planner.batch.rows import read_rows
from planner.batch.run import Batch
from planner.batch.store import Store, job_facts
from planner.commands.results import results_table
from planner.data.problem import ProblemFile
from planner.errors import InstanceError
from tests.planner.batch.samples import InstantExecutor, jobs_text, write_jobs

CLUSTER = "3x8 h100-sxm-80gb, 1x8 a100-sxm-80gb"
MIXED = f"model: llama3-8b, cluster: '{CLUSTER}', seq_length: 4096, global_batch_size: 48"


def read(folder: Path, entry: str) -> tuple[Job, ...]:
    return read_jobs(write_jobs(folder, jobs_text(jobs=[f"{{name: s, {MIXED}, {entry}}}"])))


def nodes(job: Job) -> list[tuple[str, int]]:
    assert job.problem is not None
    return [(c.chip, c.num_nodes) for c in job.problem.cluster.classes]


def test_node_loss_takes_nodes_from_each_class_in_turn(tmp_path: Path) -> None:
    jobs = read(tmp_path, "kind: node_loss, lose: 2")
    assert [(job.variant, nodes(job)) for job in jobs] == [
        ("as it stands", [("h100-sxm-80gb", 3), ("a100-sxm-80gb", 1)]),
        ("without 1 node of h100-sxm-80gb", [("h100-sxm-80gb", 2), ("a100-sxm-80gb", 1)]),
        ("without 1 node of h100-sxm-80gb, changing least", [("h100-sxm-80gb", 2), ("a100-sxm-80gb", 1)]),
        ("without 2 nodes of h100-sxm-80gb", [("h100-sxm-80gb", 1), ("a100-sxm-80gb", 1)]),
        ("without 2 nodes of h100-sxm-80gb, changing least", [("h100-sxm-80gb", 1), ("a100-sxm-80gb", 1)]),
        ("without 1 node of a100-sxm-80gb", [("h100-sxm-80gb", 3)]),
        ("without 1 node of a100-sxm-80gb, changing least", [("h100-sxm-80gb", 3)]),
    ]
    assert {job.study for job in jobs} == {"s"} and len({job.key for job in jobs}) == 7


def test_hosts_keep_their_names_where_the_least_change_is_asked(tmp_path: Path) -> None:
    """The first class loses a host; those of the second are numbered after it and must not move up."""
    jobs = read(tmp_path, "kind: node_loss")
    (loss,) = [job for job in jobs if job.variant == "without 1 node of h100-sxm-80gb, changing least"]
    assert loss.problem is not None and loss.ask is not None and loss.ask.base is not None
    assert loss.problem.cluster.hosts_of(1) == ("node003",)
    assert loss.ask.base.cluster.hosts_of(1) == ("node003",)  # type: ignore[union-attr]


def test_robustness_asks_for_the_plan_as_it_stands_and_under_draws(tmp_path: Path) -> None:
    jobs = read(tmp_path, "kind: robustness, draws: 7")
    assert [job.variant for job in jobs] == ["as it stands", "under 7 draws"]
    assert jobs[0].problem == jobs[1].problem or jobs[0].name != jobs[1].name
    assert jobs[0].key != jobs[1].key and jobs[1].ask is not None and jobs[1].ask.draws == 7
    other = read(tmp_path, "kind: robustness, draws: 8")
    assert other[0].key == jobs[0].key and other[1].key != jobs[1].key


def test_loss_of_the_only_node_is_kept_as_a_refused_job(tmp_path: Path) -> None:
    text = jobs_text(jobs=["{problem: llama3-8b-h100-8, kind: node_loss}"])
    base, lost = read_jobs(write_jobs(tmp_path, text))
    assert base.problem is not None and lost.problem is None
    assert "nothing is left" in (lost.refused or "")


def test_hosts_of_lost_nodes_go_from_the_end(tmp_path: Path) -> None:
    cluster = (
        "{id: c, classes: [{name: n, chip: h100-sxm-80gb, num_nodes: 3, chips_per_node: 8, nics_per_node: 8,"
        " nic_gbit_per_s: 400, hosts: [x, y, z]}]}"
    )
    text = jobs_text(jobs=[f"{{problem: llama3-8b-h100-8, cluster: {cluster}, kind: node_loss}}"])
    _, lost, _ = read_jobs(write_jobs(tmp_path, text))
    assert lost.problem is not None and lost.problem.cluster.hosts_of(0) == ("x", "y")


def test_growth_adds_each_candidate_alone(tmp_path: Path) -> None:
    jobs = read(
        tmp_path,
        "kind: growth, candidates:"
        " [{add: 2x8 h100-sxm-80gb, price_usd: 600000}, {add: 1x8 b200-180gb, name: new}]",
    )
    assert [(job.variant, nodes(job)) for job in jobs[1:]] == [
        ("with 2x8 h100-sxm-80gb", [("h100-sxm-80gb", 5), ("a100-sxm-80gb", 1)]),
        ("with new", [("h100-sxm-80gb", 3), ("a100-sxm-80gb", 1), ("b200-180gb", 1)]),
    ]


def test_sweep_changes_one_value_at_a_time(tmp_path: Path) -> None:
    jobs = read(tmp_path, "kind: sweep, values: {global_batch_size: [48, 96], seq_length: [2048]}")
    assert [job.variant for job in jobs] == ["as it stands", "global_batch_size 96", "seq_length 2048"]


def test_rows_say_what_each_change_gains(tmp_path: Path) -> None:
    """Twice the nodes at 1.5 times the speed: a gain of 50%, 12.5% a node, 25% a million dollars."""
    jobs = read(tmp_path, "kind: growth, candidates: [{add: 4x8 h100-sxm-80gb, price_usd: 2000000}]")

    def answer(task: Task) -> Answer:
        problem = ProblemFile.model_validate_json(task.problem_text)
        step_s = 2.0 if problem.cluster.num_nodes > 4 else 3.0  # type: ignore[union-attr]
        return Answer(task.key, None, {"step_s": step_s, "tokens_per_s": 48 * 4096 / step_s})

    with closing(Store(tmp_path / "plans.db")) as store:
        Batch(jobs, store).run(InstantExecutor(answer))
    base, bought = read_rows(tmp_path / "plans.db")
    assert (base["step_change"], base["gain_per_node"]) == (0.0, None)
    assert bought["step_change"] == pytest.approx(-1 / 3)
    assert bought["tokens_per_s_change"] == pytest.approx(0.5)
    assert bought["gain_per_node"] == pytest.approx(0.125)
    assert bought["gain_per_million_usd"] == pytest.approx(0.25)


def test_table_of_a_loss_fits_a_narrow_screen(tmp_path: Path) -> None:
    jobs = read(tmp_path, "kind: node_loss")

    def answer(task: Task) -> Answer:
        facts = {"step_s": 3.0, "tokens_per_s": 1e6, "loaded_fraction": 0.5, "behind_best": 0.01}
        words = "changes pp; hosts load 50.0% of their weights; 1.0% behind the best"
        return Answer(task.key, None, facts | {"termination": "feasible", "message": words})

    with closing(Store(tmp_path / "plans.db")) as store:
        Batch(jobs, store).run(InstantExecutor(answer))
    rows = [row | {"step_change": -0.1} for row in read_rows(tmp_path / "plans.db")]
    written = io.StringIO()
    Console(file=written, width=80).print(results_table(rows))
    column = [
        line[written.getvalue().splitlines()[1].index("plan") :] for line in written.getvalue().splitlines()
    ]
    assert "".join("".join(column).split()).count("1.0%behindthebest") == len(rows)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("kind: growth", "`kind: growth` needs `candidates:`"),
        ("kind: sweep", "`kind: sweep` needs `values:`"),
        ("lose: 2", "belongs to `kind: node_loss`, this job is of kind plan"),
        ("kind: sweep, values: {gap: [1]}", "unknown key 'gap'; there are global_batch_size and seq_length"),
        ("kind: sweep, values: {seq_length: [0]}", "values.seq_length: must be whole numbers of at least 1"),
        ("kind: node_los", "must be one of"),
        ("one_class: true", "belongs to `kind: fleet_split`, this job is of kind plan"),
    ],
)
def test_study_without_what_it_needs_is_refused(tmp_path: Path, entry: str, words: str) -> None:
    with pytest.raises(InstanceError) as refused:
        read(tmp_path, entry)
    assert words in str(refused.value)


def test_candidate_of_unknown_chips_is_kept_with_its_reason(tmp_path: Path) -> None:
    _, refused = read(tmp_path, "kind: growth, candidates: [{add: 2x8 h101}]")
    assert refused.problem is None and "unknown chip 'h101'" in (refused.refused or "")


def test_named_losses_come_together(tmp_path: Path) -> None:
    jobs = read(tmp_path, "kind: node_loss, lose: {h100-sxm-80gb: 2, a100-sxm-80gb: 1}")
    assert [(job.variant, nodes(job), job.nodes_changed) for job in jobs[1:]] == [
        (
            f"without 2 nodes of h100-sxm-80gb and 1 node of a100-sxm-80gb{end}",
            [("h100-sxm-80gb", 1)],
            -3,
        )
        for end in ("", ", changing least")
    ]
    (everything,) = read(tmp_path, "kind: node_loss, lose: {h100-sxm-80gb: 3, a100-sxm-80gb: 1}")[1:]
    assert everything.problem is None and "nothing is left" in (everything.refused or "")


@pytest.mark.parametrize(
    ("lose", "words"),
    [("{b200: 1}", "no class is named 'b200'"), ("{a100-sxm-80gb: 2}", "has 1 nodes and cannot lose 2")],
)
def test_loss_that_cannot_be_is_refused(tmp_path: Path, lose: str, words: str) -> None:
    (job,) = read(tmp_path, f"kind: node_loss, lose: {lose}")
    assert words in (job.refused or "")


def test_prices_of_nodes_tell_costs_and_are_no_part_of_the_question(tmp_path: Path) -> None:
    candidates = "kind: growth, candidates: [{add: 1x8 b200-180gb}]"
    plain = read(tmp_path, candidates)
    priced = read(
        tmp_path, f"{candidates}, node_usd_per_hour: {{h100-sxm-80gb: 20, a100-sxm-80gb: 10, b200-180gb: 40}}"
    )
    assert [job.key for job in plain] == [job.key for job in priced]
    assert [job_facts(job)["usd_per_hour"] for job in plain] == [None, None]
    assert [job_facts(job)["usd_per_hour"] for job in priced] == [70, 110]


def test_price_of_a_class_goes_before_that_of_its_chip(tmp_path: Path) -> None:
    entry = "{problem: llama3-70b-h100-a100-128, node_usd_per_hour: {h100: 5, h100-sxm-80gb: 20, a100: 1}}"
    (job,) = read_jobs(write_jobs(tmp_path, jobs_text(jobs=[entry])))
    assert job_facts(job)["usd_per_hour"] == 8 * 5 + 8 * 1
